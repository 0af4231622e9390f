//! What an executor looks at to know whether it may admit more.

mod disk;
mod load;
mod memory;
mod paused;
mod starting;

use std::path::Path;

use policy::actions::Signal;
use settings::Settings;

pub(crate) use memory::machine_memory;

/// What a sensor says, and why where it is not green.
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

/// What follows when a sensor is red.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Too much runs: the congestion window is cut.
    Congestion,
    /// Nothing begins until it is green.
    Stop,
    /// No more is asked for until it is green, which is seen to where that is asked.
    Limit,
}

/// The state of an executor that sensors may look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inside {
    /// Actions whose inputs are made ready.
    pub(crate) starting: u16,
}

/// One thing that may run short. What it cannot read is none of its business: green.
pub(crate) trait Sensor: Send {
    /// Its name in the metrics.
    fn name(&self) -> &'static str;

    /// What follows when it is red.
    fn kind(&self) -> Kind;

    /// Looks.
    fn read(&mut self, inside: Inside) -> Reading;
}

/// Those that the settings ask for. `proc` is where the kernel tells of itself (`/proc`), `data` the data folder, `own` the
/// executor's own folder.
pub(crate) fn all(
    settings: &Settings,
    slots: u16,
    proc: &Path,
    data: &Path,
    own: &Path,
) -> Vec<Box<dyn Sensor>> {
    let mut sensors: Vec<Box<dyn Sensor>> = vec![Box::new(paused::Paused::new(own))];
    if settings.load_max > 0.0 && settings.congestion_window {
        sensors.push(Box::new(load::Load::new(proc, settings.load_max, slots)));
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
