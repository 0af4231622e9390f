//! Pressure stall information (PSI) of the kernel: the share of time in which processes waited for a resource.

use std::{
    fs,
    path::{Path, PathBuf},
};

use policy::Signal;
use sandbox::{Version, control_groups};

use crate::{Kind, Lagging, Reading, Sensor, SensorInput};

/// The resource that processes wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Processors,
    Memory,
    Disks,
}

impl Of {
    fn name(self) -> &'static str {
        match self {
            Self::Processors => "cpu_pressure",
            Self::Memory => "memory_pressure",
            Self::Disks => "io_pressure",
        }
    }

    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Processors => "cpu",
            Self::Memory => "memory",
            Self::Disks => "io",
        }
    }

    /// The line that counts: time in which some process waited, or in which all did.
    fn line(self) -> &'static str {
        match self {
            Self::Processors | Self::Memory => "some ",
            Self::Disks => "full ",
        }
    }
}

pub(crate) struct Pressure {
    what: Of,
    file: PathBuf,
    most: f64,
    lagging: Lagging,
}

impl Pressure {
    /// Of the own control group, if the kernel measures it there, else of the machine.
    pub(crate) fn new(what: Of, proc: &Path, most: u32) -> Self {
        let machine = proc.join("pressure").join(what.file());
        let read = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
        // The second version is that of all controllers without a hierarchy of their own.
        let own = control_groups("pressure", &read("self/cgroup"), &read("self/mountinfo"))
            .filter(|(version, _)| *version == Version::Two)
            .and_then(|(_, groups)| groups.into_iter().next())
            .map(|group| group.join(format!("{}.pressure", what.file())))
            .filter(|file| file.exists());
        Self { what, file: own.unwrap_or(machine), most: f64::from(most), lagging: Lagging::default() }
    }

    /// Percentage of the last 10 seconds.
    fn now(&self) -> Option<f64> {
        last_ten_seconds(&self.file, self.what)
    }
}

/// Percentage of the last 10 seconds in a file of the kernel; `None` without it.
pub(crate) fn last_ten_seconds(file: &Path, what: Of) -> Option<f64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(what.line()))?;
    line.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10=")?.parse().ok())
}

impl Sensor for Pressure {
    fn name(&self) -> &'static str {
        self.what.name()
    }

    fn kind(&self) -> Kind {
        Kind::Congestion
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        let Some(now) = self.now() else { return Reading::green() };
        let signal = self.lagging.signal(now, self.most);
        if signal == Signal::Green {
            return Reading::green();
        }
        let (who, what) = match self.what {
            Of::Processors => ("some", "a processor"),
            Of::Memory => ("some", "memory"),
            Of::Disks => ("all", "disks"),
        };
        let why = format!(
            "{who} processes waited for {what} in {now:.0} % of the last 10 s, above the maximum of {:.0} % ({})",
            self.most,
            self.file.display()
        );
        Reading { signal, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_red_above_its_maximum_and_eases_while_it_falls() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("pressure")).unwrap();
        let mut sensor = Pressure::new(Of::Disks, proc.path(), 50);
        let mut read = |full: &str| {
            let text =
                format!("some avg10=99.00 avg60=1.00\nfull avg10={full} avg60=99.00 avg300=0.00 total=7\n");
            fs::write(proc.path().join("pressure/io"), text).unwrap();
            sensor.read(SensorInput::default()).signal
        };
        assert_eq!(read("50.00"), Signal::Green);
        assert_eq!(read("60.00"), Signal::Red);
        assert_eq!(read("55.00"), Signal::Easing);
        assert_eq!(read("nonsense"), Signal::Green);
        let mut missing = Pressure::new(Of::Memory, Path::new("/nowhere"), 1);
        assert_eq!(missing.read(SensorInput::default()), Reading::green());
    }

    #[test]
    fn the_own_control_group_counts_if_it_is_measured() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/jobs\n");
        let mount =
            format!("31 23 0:28 / {} rw - cgroup2 cgroup2 rw\n", root.path().join("groups").display());
        write("proc/self/mountinfo", &mount);
        write("groups/jobs/memory.pressure", "some avg10=40.00 avg60=0.00\n");
        let mut sensor = Pressure::new(Of::Memory, &root.path().join("proc"), 30);
        let why = sensor.read(SensorInput::default()).why;
        assert!(why.starts_with("some processes waited for memory in 40 % of the last 10 s"), "{why}");
    }
}
