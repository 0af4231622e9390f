//! Checks of the governor and the occupancy model.

use std::time::Duration;

use client::Client;
use model::{Millis, ModelNotice, QuotaReply};
use settings::Settings;
use telemetry::error_chain;

use super::Finding;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);

/// Checks the governor and the occupancy model.
pub(super) async fn run(client: &Client, settings: &Settings) -> Vec<Finding> {
    vec![governor(client, settings).await, model(client).await]
}

async fn governor(client: &Client, settings: &Settings) -> Finding {
    let reply = match tokio::time::timeout(ANSWER_TIMEOUT, client.quota()).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => return Finding::warn("quota", error_chain(&error), "see the enqueuer's log"),
        Err(_) => return Finding::warn("quota", "no answer in time", "see the enqueuer's log"),
    };
    judge(&reply, client.bus().now(), settings.governor().tick)
}

fn judge(reply: &QuotaReply, now: Millis, tick: Duration) -> Finding {
    let quotas = reply.groups.iter().filter(|group| group.quota.is_some()).count();
    let has_quotas = quotas > 0 || reply.default.is_some();
    // A decision about executors limits builds without any quota.
    if !has_quotas && reply.executors.is_empty() {
        return Finding::ok("quota", "no quota is set: no group is limited");
    }
    let found = if has_quotas {
        format!("groups with a quota: {quotas}; decisions: {}", reply.tick)
    } else {
        format!("no quota is set: only executors limit builds; decisions: {}", reply.tick)
    };
    let waits = reply.groups.iter().any(|group| group.queued > 0);
    if waits && now.since(reply.decided_at_ms) > 3 * tick {
        let advice = "builds are waiting but no governor is running: forebay serve governor";
        return Finding::fail("quota", found, advice);
    }
    Finding::ok("quota", found)
}

async fn model(client: &Client) -> Finding {
    match client.bus().buckets().get::<ModelNotice>(&()).await.map(|(_, notice)| notice) {
        Ok(None) => {
            Finding::ok("estimates", "no occupancy model yet: builds count as 1 ESU per executor type")
        }
        Ok(Some(model)) => {
            let age = humantime::format_duration(Duration::from_secs(
                client.bus().now().since(model.trained_at_ms).as_secs(),
            ));
            let found = format!("occupancy model {} from {} builds, {age} old", model.version, model.builds);
            Finding::ok("estimates", found)
        }
        Err(error) => Finding::warn("estimates", error_chain(&error), "the model is republished daily"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn builds_that_wait_for_a_governor_are_told() {
        let reply = |queued| -> QuotaReply {
            serde_json::from_value(serde_json::json!({
                "tick": 3, "decided_at_ms": 1000,
                "groups": [{"group": "g", "quota": {"esu": {"x86": 1}}, "in_progress": {}, "queued": queued}],
            }))
            .unwrap()
        };
        let tick = Duration::from_secs(5);
        assert_eq!(judge(&reply(1), Millis(10_000), tick).status, Status::Ok);
        assert_eq!(judge(&reply(1), Millis(60_000), tick).status, Status::Fail);
        assert_eq!(judge(&reply(0), Millis(60_000), tick).status, Status::Ok);
    }
}
