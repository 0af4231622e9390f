//! The baseline: two threads that repeatedly spawn `/bin/true` and wait for it, directly or under bubblewrap.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::error::BenchError;

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

/// Rate of spawns per second over `window`.
pub(crate) async fn spawns(window: Duration) -> Result<f64, BenchError> {
    rate(PLAIN, window).await
}

/// Rate of spawns per second under bubblewrap over `window`.
pub(crate) async fn confined_spawns(window: Duration) -> Result<f64, BenchError> {
    rate(CONFINED, window).await
}

async fn rate(argv: &'static [&'static str], window: Duration) -> Result<f64, BenchError> {
    let loops: Vec<_> =
        (0..THREADS).map(|_| tokio::task::spawn_blocking(move || spin(argv, window))).collect();
    let mut total = 0;
    for one in loops {
        let count = one.await.map_err(|error| BenchError::new("cannot measure the baseline", &error))?;
        total +=
            count.map_err(|error| BenchError::new(format!("cannot start {}", argv.join(" ")), &error))?;
    }
    Ok(f64::from(total) / window.as_secs_f64())
}

fn spin(argv: &[&str], window: Duration) -> std::io::Result<u32> {
    let (program, arguments) = argv.split_first().ok_or_else(|| std::io::Error::other("no program"))?;
    let end = Instant::now() + window;
    let mut count = 0;
    while Instant::now() < end {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status()?;
        count += 1;
    }
    Ok(count)
}
