//! The load average of the last minute, per processor or slot.

use std::{
    fs,
    path::{Path, PathBuf},
};

use policy::Signal;

use crate::{
    Kind, Lagging, Reading, Sensor, SensorInput,
    pressure::{Of, last_ten_seconds},
};

/// Percentage of the last 10 seconds in which some process must have waited for a processor for the load to count. The load contains
/// processes that wait for something else, for example for a process that they started by vfork(2).
const WAITED: f64 = 10.0;

pub(crate) struct Load {
    file: PathBuf,
    pressure: PathBuf,
    most: f64,
    lagging: Lagging,
}

impl Load {
    /// `each` is the maximum load per processor or slot, whichever are more.
    pub(crate) fn new(proc: &Path, each: f64, slots: u16) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let many = u16::try_from(processors).unwrap_or(u16::MAX).max(slots);
        let pressure = proc.join("pressure").join(Of::Processors.file());
        Self {
            file: proc.join("loadavg"),
            pressure,
            most: each * f64::from(many),
            lagging: Lagging::default(),
        }
    }

    fn now(&self) -> Option<f64> {
        let text = fs::read_to_string(&self.file).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }
}

impl Sensor for Load {
    fn name(&self) -> &'static str {
        "load"
    }

    fn kind(&self) -> Kind {
        Kind::Congestion
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        let Some(load) = self.now() else { return Reading::green() };
        let has_waited =
            last_ten_seconds(&self.pressure, Of::Processors).is_none_or(|waited| waited >= WAITED);
        let signal = self.lagging.signal(if has_waited { load } else { 0.0 }, self.most);
        if signal == Signal::Green {
            return Reading::green();
        }
        Reading {
            signal,
            why: format!(
                "the load is {load:.1}, above the maximum of {:.1} for this machine (load_max)",
                self.most
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_do_not_wait_for_a_processor_do_not_count() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("pressure")).unwrap();
        fs::write(proc.path().join("loadavg"), "150.00 9.00 1.00 1/999 12345\n").unwrap();
        let mut sensor = Load::new(proc.path(), 0.1, 1000);
        let mut read = |waited: &str| {
            let text = format!("some avg10={waited} avg60=99.00 avg300=0.00 total=7\n");
            fs::write(proc.path().join("pressure/cpu"), text).unwrap();
            sensor.read(SensorInput::default()).signal
        };
        assert_eq!([read("0.50"), read("60.00")], [Signal::Green, Signal::Red]);
    }

    #[test]
    fn it_is_red_while_it_grows_above_the_most_and_eases_while_it_falls() {
        let proc = tempfile::tempdir().unwrap();
        // More slots than any test machine has processors.
        let mut sensor = Load::new(proc.path(), 0.5, 1000);
        let mut read = |loads: &str| {
            fs::write(proc.path().join("loadavg"), loads).unwrap();
            sensor.read(SensorInput::default()).signal
        };
        assert_eq!(read("499.00 700.1 1.00 1/999 12345\n"), Signal::Green);
        assert_eq!(read("501.00 1.00 1.00 1/999 12345\n"), Signal::Red);
        assert_eq!(read("501.00 1.00 1.00 1/999 12345\n"), Signal::Red);
        assert_eq!(read("500.50 1.00 1.00 1/999 12345\n"), Signal::Easing);
        assert_eq!(read("500.80 1.00 1.00 1/999 12345\n"), Signal::Red);
        assert_eq!(read("2.00 1.00 1.00 1/999 12345\n"), Signal::Green);
        assert_eq!(read("nonsense"), Signal::Green);
    }
}
