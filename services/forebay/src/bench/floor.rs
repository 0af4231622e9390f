//! The floor: a bare loop of two threads that spawns and waits for `/bin/true`.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::failure::Failure;

const THREADS: usize = 2;

/// Spawns a second over `window`.
pub(crate) async fn spawns(window: Duration) -> Result<f64, Failure> {
    let loops: Vec<_> = (0..THREADS).map(|_| tokio::task::spawn_blocking(move || spin(window))).collect();
    let mut total = 0;
    for one in loops {
        let count = one.await.map_err(|error| Failure::new(1, "the floor was not measured", &error))?;
        total += count.map_err(|error| Failure::new(1, "/bin/true does not start", &error))?;
    }
    Ok(f64::from(total) / window.as_secs_f64())
}

fn spin(window: Duration) -> std::io::Result<u32> {
    let end = Instant::now() + window;
    let mut count = 0;
    while Instant::now() < end {
        let mut command = Command::new("/bin/true");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status()?;
        count += 1;
    }
    Ok(count)
}
