//! Checks that executors are live and accept actions.

use std::time::Duration;

use client::Client;
use model::{ExecutorHeartbeat, ExecutorStatus};
use telemetry::error_chain;

use super::Finding;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

/// Checks the executors with a valid lease.
pub(super) async fn run(client: &Client) -> Finding {
    match tokio::time::timeout(ANSWER_TIMEOUT, client.bus().leases().executors()).await {
        Ok(Ok(executors)) => judge(&executors),
        Ok(Err(error)) => Finding::warn("executors", error_chain(&error), "see the log of nats-server"),
        Err(_) => Finding::warn("executors", "no answer in time", "see the log of nats-server"),
    }
}

fn judge(executors: &[ExecutorHeartbeat]) -> Finding {
    let ready = executors.iter().filter(|it| it.status == ExecutorStatus::Ready).count();
    let found = format!("{} live, {ready} ready", executors.len());
    // An executor that is merely full opens again without help.
    let red: Vec<String> = executors
        .iter()
        .filter(|it| it.status == ExecutorStatus::Closed)
        .flat_map(|it| it.window.red.iter().map(move |why| format!("{}: {why}", it.host)))
        .collect();
    if executors.is_empty() {
        let advice = "actions wait until one starts: forebay serve executor";
        return Finding::warn("executors", found, advice);
    }
    if let Some(first) = red.first() {
        let advice = "remove that cause, or change the named setting; see forebay executors";
        let more = if red.len() > 1 { format!("; {} more reasons", red.len() - 1) } else { String::new() };
        let found = format!("{found}; accepts no actions: {first}{more}");
        let judged = if ready == 0 { Finding::fail } else { Finding::warn };
        return judged("executors", found, advice.to_owned());
    }
    if executors.iter().all(|it| it.status == ExecutorStatus::Draining) {
        return Finding::warn("executors", found, "start another, or forebay drain --undo EXECUTOR");
    }
    Finding::ok("executors", found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    fn executor(status: &str, red: &[&str]) -> ExecutorHeartbeat {
        serde_json::from_value(serde_json::json!({
            "executor": "e", "pool": "default", "host": "h", "pid": 1, "home": "f", "status": status, "started_at_ms": 0, "slots": 1, "ttl_ms": 1,
            "window": {"size": 5, "used": 5, "red": red}, "running": [],
        }))
        .unwrap()
    }

    #[test]
    fn a_farm_whose_executors_are_all_closed_is_told_why() {
        let full = executor("closed", &["the disk has 1 % left"]);
        let found = judge(&[full.clone(), executor("draining", &[])]);
        assert_eq!(found.status, Status::Fail);
        assert!(found.found.contains("h: the disk has 1 % left"), "{}", found.found);
        assert_eq!(judge(&[full, executor("ready", &[])]).status, Status::Warn);
        assert_eq!(judge(&[executor("closed", &[])]).status, Status::Ok, "it is only full");
        assert_eq!(judge(&[]).status, Status::Warn);
    }
}
