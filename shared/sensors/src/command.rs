//! A program that prints a number. It runs in the background, because it may be slow.

use std::{io, process::Stdio, sync::Arc, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    task::JoinHandle,
};
use tracing::warn;

use crate::{Kind, Reading, Sensor, SensorInput, value};

/// Number of bytes of its output that are read.
const BYTES: u64 = 4096;

pub(crate) struct CommandSensor {
    last: Arc<Mutex<Reading>>,
    runs: JoinHandle<()>,
}

impl CommandSensor {
    /// Runs the command at intervals of `every` until the sensor is dropped.
    pub(crate) fn start(command: &[String], every: Duration, most: f64) -> Self {
        let last = Arc::new(Mutex::new(Reading::green()));
        let runs = tokio::spawn(run(command.to_vec(), every, most, Arc::clone(&last)));
        Self { last, runs }
    }
}

impl Drop for CommandSensor {
    fn drop(&mut self) {
        self.runs.abort();
    }
}

impl Sensor for CommandSensor {
    fn name(&self) -> &'static str {
        "command"
    }

    fn kind(&self) -> Kind {
        Kind::Congestion
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        self.last.lock().clone()
    }
}

async fn run(command: Vec<String>, every: Duration, most: f64, last: Arc<Mutex<Reading>>) {
    let source = command.join(" ");
    let mut fails = false;
    loop {
        let late = |_| Err(io::ErrorKind::TimedOut.into());
        let reading = match tokio::time::timeout(every, output(&command)).await.unwrap_or_else(late) {
            Ok(text) => {
                fails = false;
                value::judge(&source, &text, most)
            }
            Err(error) => {
                if !std::mem::replace(&mut fails, true) {
                    warn!(command = source, %error, "the command of the sensor fails: it counts as green");
                }
                Reading::green()
            }
        };
        *last.lock() = reading;
        tokio::time::sleep(every).await;
    }
}

/// The processes that a command starts, which end with its turn.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // Usually it has no process any more.
        let _ = self.0.map(|group| killpg(group, Signal::SIGKILL));
    }
}

/// The beginning of what the command prints.
async fn output(command: &[String]) -> io::Result<String> {
    let [program, args @ ..] = command else { return Ok(String::new()) };
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let _group = ProcessGroup::of(&child);
    let mut text = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(BYTES).read_to_end(&mut text).await?;
    }
    if !child.wait().await?.success() {
        return Err(io::Error::other("it did not succeed"));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use policy::Signal as Reported;

    use super::*;

    fn shell(script: &str) -> CommandSensor {
        let command = ["sh", "-c", script].map(str::to_owned);
        CommandSensor::start(&command, Duration::from_millis(200), 1.0)
    }

    async fn until(sensor: &mut CommandSensor, signal: Reported) -> Reading {
        loop {
            let reading = sensor.read(SensorInput::default());
            if reading.signal == signal {
                return reading;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn it_follows_what_the_program_prints() {
        let folder = tempfile::tempdir().unwrap();
        let value = folder.path().join("value");
        std::fs::write(&value, "2 hot").unwrap();
        let mut sensor = shell(&format!("cat {}", value.display()));
        let red = until(&mut sensor, Reported::Red).await;
        assert!(red.why.ends_with("is 2, above the maximum of 1: hot"), "{}", red.why);
        std::fs::write(&value, "1").unwrap();
        until(&mut sensor, Reported::Green).await;
    }

    #[tokio::test]
    async fn a_program_that_fails_hangs_or_floods_is_green() {
        for script in ["echo 9; exit 3", "echo 9; sleep 100", "yes", "exec /nowhere/at/all"] {
            let sensor = shell(script);
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(*sensor.last.lock(), Reading::green(), "{script}");
        }
    }
}
