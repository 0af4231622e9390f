//! Continues a download whose connection to a gateway was lost: at the same gateway or another one of the farm.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bus::Bus;
use command_line::{failure::say, globals::Globals, wait::WaitLimit};
use futures::{FutureExt as _, future::BoxFuture};
use model::DigestFunction;
use remote::{Remote, Resume};
use service::host_name;
use settings::Settings;
use tokio::time::Instant;

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(250);
/// Time limit for a gateway to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// How a command continues its downloads.
#[derive(Debug)]
pub(crate) struct Reconnect {
    limit: WaitLimit,
    /// URL of the only gateway to use, if the user chose one.
    chosen: Option<String>,
    bus: Bus,
    globals: Globals,
    settings: Settings,
    /// Whether the user was informed of the wait.
    said: AtomicBool,
}

impl Reconnect {
    pub(crate) fn new(
        limit: WaitLimit,
        chosen: Option<String>,
        bus: Bus,
        globals: Globals,
        settings: Settings,
    ) -> Self {
        Self { limit, chosen, bus, globals, settings, said: AtomicBool::new(false) }
    }

    /// Attempts once to connect to each gateway. A failure is tried again until the wait ends; then the error that ended
    /// the download is reported.
    async fn connect_once(&self) -> Option<Remote> {
        if let Some(url) = &self.chosen {
            return answering(url).await;
        }
        let known = self.globals.gateway_url(&self.bus, &self.settings).await.ok().flatten();
        if let Some(url) = &known
            && let Some(remote) = answering(url).await
        {
            return Some(remote);
        }
        let others = self.bus.gateways().all(&host_name()).await.unwrap_or_default();
        for other in others.iter().filter(|other| known.as_ref() != Some(&other.grpc)) {
            if let Some(remote) = answering(&other.grpc).await {
                return Some(remote);
            }
        }
        None
    }

    fn say_once(&self) {
        if self.said.swap(true, Ordering::Relaxed) {
            return;
        }
        let lost = "the connection to the gateway was lost";
        match self.limit {
            WaitLimit::NONE => {}
            WaitLimit::AtMost(limit) => {
                let limit = humantime::format_duration(limit);
                say(&format!("{lost}; waiting up to {limit} (--wait TIME, --no-wait)"));
            }
            WaitLimit::Forever => say(&format!("{lost}; waiting (--wait TIME sets a limit)")),
        }
    }
}

impl Resume for Reconnect {
    fn reconnect(&self, lost_at: Instant) -> BoxFuture<'_, Option<Remote>> {
        let until = end_of_wait(self.limit, lost_at);
        async move {
            self.say_once();
            loop {
                if until.is_some_and(|until| Instant::now() >= until) {
                    return None;
                }
                tokio::time::sleep(RETRY).await;
                let attempt = self.connect_once();
                let connected = match until {
                    Some(until) => tokio::time::timeout_at(until, attempt).await.ok().flatten(),
                    None => attempt.await,
                };
                if connected.is_some() {
                    return connected;
                }
            }
        }
        .boxed()
    }
}

/// The end of a wait that began at `lost_at`; `None` if it has no limit.
fn end_of_wait(limit: WaitLimit, lost_at: Instant) -> Option<Instant> {
    match limit {
        WaitLimit::Forever => None,
        WaitLimit::AtMost(limit) => lost_at.checked_add(limit),
    }
}

/// Connects to the gateway at `url`, if it answers.
async fn answering(url: &str) -> Option<Remote> {
    let connect = async {
        let remote = Remote::connect(url, "", DigestFunction::Sha256).await.ok()?;
        match remote.capabilities().await {
            Err(error) if error.is_unreachable() => None,
            // An error status is an answer.
            Ok(_) | Err(_) => Some(remote),
        }
    };
    tokio::time::timeout(ANSWER, connect).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_begins_when_the_connection_is_lost() {
        let lost_at = Instant::now();
        let limit = Duration::from_secs(30);
        assert_eq!(end_of_wait(WaitLimit::AtMost(limit), lost_at), Some(lost_at + limit));
        assert_eq!(end_of_wait(WaitLimit::NONE, lost_at), Some(lost_at));
        assert_eq!(end_of_wait(WaitLimit::Forever, lost_at), None);
    }
}
