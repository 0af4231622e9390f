//! The baseline: two threads that repeatedly spawn `/bin/true` and wait for it, directly or under bubblewrap.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    error::BenchError,
    processor::{self, Machine},
};

const THREADS: usize = 2;

const PLAIN: &[&str] = &["/bin/true"];
/// The same sandbox as for an action.
const CONFINED: &[&str] = &[
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "/bin/true",
];

/// What the loop spawns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spawn {
    /// `/bin/true` directly.
    Plain,
    /// `/bin/true` under bubblewrap.
    Confined,
}

/// Bare spawns of one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    /// Bare spawns of a process per second.
    pub(crate) rate: f64,
    /// Processor time in microseconds of one spawn, with that of the loop.
    pub(crate) processor_us: f64,
    /// Share of the processors that others used.
    pub(crate) others: f64,
}

impl Floor {
    /// The mean of two windows.
    pub(crate) fn between(self, other: Self) -> Self {
        Self {
            rate: f64::midpoint(self.rate, other.rate),
            processor_us: f64::midpoint(self.processor_us, other.processor_us),
            others: f64::midpoint(self.others, other.others),
        }
    }
}

/// Measures bare spawns over `window`, during which this process must do nothing else.
pub(crate) async fn measure(spawn: Spawn, window: Duration) -> Result<Floor, BenchError> {
    let argv = match spawn {
        Spawn::Plain => PLAIN,
        Spawn::Confined => CONFINED,
    };
    let used = || Ok::<_, BenchError>(processor::of_this_process()? + processor::of_ended_children()?);
    let (before, machine) = (used()?, Machine::now()?);
    let loops: Vec<_> =
        (0..THREADS).map(|_| tokio::task::spawn_blocking(move || spin(argv, window))).collect();
    let mut total = 0;
    for one in loops {
        let count = one.await.map_err(|error| BenchError::new("cannot measure the baseline", &error))?;
        total +=
            count.map_err(|error| BenchError::new(format!("cannot start {}", argv.join(" ")), &error))?;
    }
    let (count, used) = (f64::from(total), used()? - before);
    let (took, others) = machine.used_by_others(used)?;
    Ok(Floor { rate: count / took.as_secs_f64(), processor_us: used / count, others })
}

fn spin(argv: &[&str], window: Duration) -> std::io::Result<u32> {
    let (program, arguments) = argv.split_first().ok_or_else(|| std::io::Error::other("no program"))?;
    let end = Instant::now() + window;
    let mut count = 0;
    loop {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status()?;
        count += 1;
        if Instant::now() >= end {
            return Ok(count);
        }
    }
}
