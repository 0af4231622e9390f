//! Sensors that decide whether a machine may start more actions or builds.

mod alone;
mod command;
mod control_group;
mod disk;
mod file;
mod load;
mod memory;
mod oom_kills;
mod paused;
mod pressure;
mod starting;
mod throttling;
mod value;

use std::{
    fs::File,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use nix::fcntl::OFlag;
use policy::{Signal, Window, WindowRules};
use settings::SensorSettings;

pub use alone::{Alone, MachineLock, Together};
pub use control_group::limiting_processors;
pub use memory::{MemoryState, machine_memory, memory_states, scarcest};
pub use oom_kills::OomKills;

/// The reading of a sensor; `why` is the reason if it is not green.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    pub signal: Signal,
    pub why: String,
}

impl Reading {
    fn green() -> Self {
        Self { signal: Signal::Green, why: String::new() }
    }

    fn red(why: String) -> Self {
        Self { signal: Signal::Red, why }
    }
}

/// Opens a file for reading; fails for a pipe or a device, which could block or have no end.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// A value that lags behind what the machine does, because it is a mean over some time.
#[derive(Debug, Default)]
struct Lagging {
    before: f64,
}

impl Lagging {
    /// The signal of a value: red above `most`, and easing while it falls there, because the last reduction was enough.
    fn signal(&mut self, now: f64, most: f64) -> Signal {
        let before = std::mem::replace(&mut self.before, now);
        if now <= most {
            Signal::Green
        } else if now < before {
            Signal::Easing
        } else {
            Signal::Red
        }
    }
}

/// The consequence of a red sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Too much runs: the congestion window is reduced.
    Congestion,
    /// Nothing starts until it is green.
    Stop,
    /// No more is requested until it is green; the code that requests work enforces this.
    Limit,
}

/// The state of a service that its sensors may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SensorInput {
    /// Number of actions whose inputs are being prepared.
    pub starting: u16,
}

/// A resource that may run short. A sensor that cannot read its source is green.
pub trait Sensor: Send {
    /// The name in the metrics.
    fn name(&self) -> &'static str;

    /// The consequence when it is red.
    fn kind(&self) -> Kind;

    /// Reads the current value.
    fn read(&mut self, input: SensorInput) -> Reading;
}

/// What all sensors of a machine read at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readings {
    /// Signals to the congestion window.
    pub signals: Vec<Signal>,
    /// Why sensors are not green, a sentence for each.
    pub red: Vec<String>,
    /// Whether nothing may start.
    pub stop: bool,
    /// Whether each sensor is red, by name.
    pub by_name: Vec<(&'static str, bool)>,
}

/// The sensors of a service.
pub struct Sensors {
    all: Vec<Box<dyn Sensor>>,
    tick: Duration,
    read_at: Option<Instant>,
}

impl Sensors {
    /// The sensors enabled by the settings, for a service with `slots` slots or workspaces. `proc` is the path of `/proc`,
    /// `own` the folder in which an operator creates the file `paused`. Must be called inside a runtime.
    pub fn new(settings: &SensorSettings, proc: &Path, own: &Path, slots: u16) -> Self {
        let mut all: Vec<Box<dyn Sensor>> = vec![Box::new(paused::Paused::new(own))];
        if settings.congestion_window {
            add_congestion(&mut all, settings, proc, slots);
        }
        Self { all, tick: settings.tick, read_at: None }
    }

    /// With a sensor of the free space and inodes of the disk of `folder`.
    #[must_use]
    pub fn with_disk(mut self, folder: &Path, left_percent: u8) -> Self {
        if left_percent > 0 {
            self.all.push(Box::new(disk::Disk::new(folder, left_percent)));
        }
        self
    }

    /// With a sensor of work that must be alone on the machine.
    #[must_use]
    pub fn with_lock(mut self, lock: &MachineLock) -> Self {
        self.all.push(lock.sensor());
        self
    }

    /// With a sensor of the number of actions that fetch their inputs, if that is limited.
    #[must_use]
    pub fn with_starting(mut self, most: u16) -> Self {
        if most > 0 {
            self.all.push(Box::new(starting::Starting::new(most)));
        }
        self
    }

    /// Reads all sensors; `None` if they were read less than half a tick ago.
    pub fn read(&mut self, input: SensorInput) -> Option<Readings> {
        if self.read_at.is_some_and(|at| at.elapsed() < self.tick / 2) {
            return None;
        }
        self.read_at = Some(Instant::now());
        let mut readings = Readings::default();
        for sensor in &mut self.all {
            let reading = sensor.read(input);
            let is_red = reading.signal != Signal::Green;
            match sensor.kind() {
                Kind::Congestion => readings.signals.push(reading.signal),
                Kind::Stop => readings.stop |= is_red,
                Kind::Limit => {}
            }
            if is_red {
                readings.red.push(reading.why);
            }
            readings.by_name.push((sensor.name(), is_red));
        }
        Some(readings)
    }
}

fn add_congestion(all: &mut Vec<Box<dyn Sensor>>, settings: &SensorSettings, proc: &Path, slots: u16) {
    let groups = control_group::limiting_processors(proc);
    // The load of a machine says nothing about the part of its processors that this control group may use.
    if settings.load_max > 0.0 && groups.is_empty() {
        all.push(Box::new(load::Load::new(proc, settings.load_max, slots)));
    }
    if settings.throttled_percent_max > 0 && !groups.is_empty() {
        all.push(Box::new(throttling::Throttling::new(groups, settings.throttled_percent_max)));
    }
    if settings.memory_left_percent > 0 {
        all.push(Box::new(memory::Memory::new(proc, settings.memory_left_percent)));
    }
    for (what, most) in [
        (pressure::Of::Processors, settings.cpu_pressure_percent_max),
        (pressure::Of::Memory, settings.memory_pressure_percent_max),
        (pressure::Of::Disks, settings.io_pressure_percent_max),
    ] {
        if most > 0 {
            all.push(Box::new(pressure::Pressure::new(what, proc, most)));
        }
    }
    if let Some(file) = &settings.file {
        all.push(Box::new(file::FileSensor::new(file, settings.max)));
    }
    if !settings.command.is_empty() {
        let command = command::CommandSensor::start(&settings.command, settings.every, settings.max);
        all.push(Box::new(command));
    }
}

/// The congestion window according to the settings, for `slots` slots or workspaces; `None` if it is off. It grows after
/// sensors were green for `growth`, at each tick if that is shorter.
pub fn window(settings: &SensorSettings, slots: u16, growth: Duration) -> Option<Window> {
    let ticks = growth.as_millis() / settings.tick.as_millis().max(1);
    let rules = WindowRules {
        start: settings.window.start_points,
        max: settings.window.points_max,
        growth_percent: settings.window.growth_percent,
        cut_percent: settings.window.cut_percent,
        threshold_percent: settings.window.threshold_percent,
        green_ticks: u32::try_from(ticks).unwrap_or(u32::MAX).max(1),
    };
    settings.congestion_window.then(|| Window::new(rules, slots))
}

#[cfg(test)]
mod tests {
    use settings::Settings;

    use super::*;

    #[tokio::test]
    async fn a_file_of_an_operator_stops_and_a_value_from_outside_reduces() {
        let own = tempfile::tempdir().unwrap();
        let value = own.path().join("value");
        std::fs::write(&value, "3 the licence server is slow\n").unwrap();
        let mut settings = Settings::default().executor().sensors;
        (settings.file, settings.max) = (Some(value.clone()), 2.0);
        (settings.load_max, settings.memory_left_percent, settings.io_pressure_percent_max) = (0.0, 0, 0);
        (settings.memory_pressure_percent_max, settings.tick) = (0, Duration::ZERO);
        let mut sensors = Sensors::new(&settings, Path::new("/nowhere"), own.path(), 4);
        let readings = sensors.read(SensorInput::default()).unwrap();
        assert_eq!((readings.stop, readings.signals.as_slice()), (false, [Signal::Red].as_slice()));
        assert!(readings.red[0].ends_with("is 3, above the maximum of 2: the licence server is slow"));
        std::fs::write(&value, "1").unwrap();
        std::fs::write(own.path().join("paused"), "").unwrap();
        let readings = sensors.read(SensorInput::default()).unwrap();
        assert_eq!(
            (readings.stop, readings.by_name.as_slice()),
            (true, [("paused", true), ("file", false)].as_slice())
        );
    }

    #[test]
    fn a_window_grows_after_as_many_ticks_as_the_time_has() {
        let settings = Settings { window_start_points: 20, ..Settings::default() }.worker().sensors;
        let mut window = window(&settings, 8, settings.tick * 3).unwrap();
        let mut size = || {
            window.tick(20, [Signal::Green]);
            window.size()
        };
        assert_eq!([size(), size(), size()], [20, 20, 40]);
    }
}
