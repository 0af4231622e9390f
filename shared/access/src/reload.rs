//! Has running nats-servers read their configuration again.

use std::time::Duration;

use bus::{BusError, Probe};
use credentials::Server;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::Instant;

/// A configuration that was not reloaded.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("{0} is not the id of a process")]
    Pid(u32),
    #[error("process {pid} cannot be signalled: is it the nats-server?")]
    Signal {
        pid: u32,
        #[source]
        source: nix::errno::Errno,
    },
    #[error("nats-server did not load its configuration within {} s: its log says why", LIMIT.as_secs())]
    NotLoaded(#[source] Option<BusError>),
}

/// Maximum time of one reload.
const LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);

/// Has each of the processes read its configuration twice, and waits for both times. `server` is one of them, with the credentials of
/// a user of the system account of that configuration, who need not exist before.
///
/// Once is not enough: an account that is new in a configuration does not get its imports before the second time
/// (seen with nats-server 2.15).
pub async fn reload(pids: &[u32], server: &Server) -> Result<(), ReloadError> {
    for _ in 0..2 {
        let before = loaded(server).await.ok();
        for pid in pids {
            signal(*pid)?;
        }
        let deadline = Instant::now() + LIMIT;
        loop {
            // A server refuses connections while it reads its configuration.
            tokio::time::sleep(PAUSE).await;
            let now = loaded(server).await;
            let done = match (&before, &now) {
                (_, Err(_)) => false,
                (None, Ok(_)) => true,
                (Some(before), Ok(now)) => {
                    now.iter().filter(|time| !before.contains(time)).count() >= pids.len()
                }
            };
            if done {
                break;
            }
            if Instant::now() >= deadline {
                return Err(ReloadError::NotLoaded(now.err()));
            }
        }
    }
    Ok(())
}

async fn loaded(server: &Server) -> Result<Vec<(String, String)>, BusError> {
    Probe::connect(server).await?.loaded().await
}

fn signal(pid: u32) -> Result<(), ReloadError> {
    // Zero and negative numbers mean groups of processes.
    let id = i32::try_from(pid).ok().filter(|id| *id > 0).ok_or(ReloadError::Pid(pid))?;
    kill(Pid::from_raw(id), Signal::SIGHUP).map_err(|source| ReloadError::Signal { pid, source })
}
