//! Sensors that decide whether an executor may admit more actions.

mod disk;
mod load;
mod memory;
mod paused;
mod starting;

use std::path::Path;

use policy::actions::Signal;
use settings::ExecutorSettings;

pub(crate) use memory::machine_memory;

/// The reading of a sensor; `why` is the reason if it is not green.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) signal: Signal,
    pub(crate) why: String,
}

impl Reading {
    fn green() -> Self {
        Self { signal: Signal::Green, why: String::new() }
    }

    fn red(why: String) -> Self {
        Self { signal: Signal::Red, why }
    }
}

/// The consequence of a red sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Too many actions run: the congestion window is reduced.
    Congestion,
    /// Nothing starts until it is green.
    Stop,
    /// No more is requested until it is green; the code that requests work enforces this.
    Limit,
}

/// The state of the executor that sensors may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SensorInput {
    /// Number of actions whose inputs are being prepared.
    pub(crate) starting: u16,
}

/// A resource that may run short. A sensor that cannot read its source is green.
pub(crate) trait Sensor: Send {
    /// The name in the metrics.
    fn name(&self) -> &'static str;

    /// The consequence when it is red.
    fn kind(&self) -> Kind;

    /// Reads the current value.
    fn read(&mut self, input: SensorInput) -> Reading;
}

/// The sensors enabled by the settings. `proc` is the path of `/proc`, `data` the data directory, `own`
/// the executor's own directory.
pub(crate) fn all(settings: &ExecutorSettings, proc: &Path, data: &Path, own: &Path) -> Vec<Box<dyn Sensor>> {
    let mut sensors: Vec<Box<dyn Sensor>> = vec![Box::new(paused::Paused::new(own))];
    if settings.load_max > 0.0 && settings.congestion_window {
        sensors.push(Box::new(load::Load::new(proc, settings.load_max, settings.slots)));
    }
    if settings.memory_left_percent > 0 && settings.congestion_window {
        sensors.push(Box::new(memory::Memory::new(proc, settings.memory_left_percent)));
    }
    if settings.disk_left_percent > 0 {
        sensors.push(Box::new(disk::Disk::new(data, settings.disk_left_percent)));
    }
    if settings.starting_max > 0 {
        sensors.push(Box::new(starting::Starting::new(settings.starting_max)));
    }
    sensors
}
