//! What the dispatcher reads, commits and settles.

use model::{BuildId, BuildKey, Group, Heartbeat, Millis, Sequence, WorkerStatus, Workspace, WorkspaceState};
use redis::{FromRedisValue, Value};

use crate::{Index, IndexError, script::META};

/// What a dispatch decision needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heads {
    /// Whether there is an index.
    pub ready: bool,
    /// The position of the event stream that it stands at.
    pub watermark: Sequence,
    /// Groups with waiting builds.
    pub waiting_groups: u64,
    /// Builds that are offered and not yet started.
    pub offered: u64,
    /// Builds that run.
    pub running: u64,
    /// When the next offer runs out.
    pub next_offer: Option<Millis>,
    /// Idle workspaces, a bounded sample.
    pub idle: Vec<Workspace>,
    /// The groups whose turn it is, each with its first builds; a bounded head of all.
    pub groups: Vec<WaitingGroup>,
}

/// A group's first waiting builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingGroup {
    /// The group.
    pub group: Group,
    /// In the order in which they must start.
    pub builds: Vec<WaitingBuild>,
}

/// A waiting build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingBuild {
    /// Its id.
    pub id: BuildId,
    /// Position of its BUILD_ENQUEUED.
    pub sequence: Sequence,
}

/// A build picked for a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// The build.
    pub key: BuildKey,
    /// Position of its BUILD_ENQUEUED.
    pub sequence: Sequence,
    /// The workspace.
    pub workspace: Workspace,
}

/// How an offer ended that was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The workspace is not free.
    Busy,
    /// The worker is not there.
    Gone,
    /// It could not be claimed now; again at this time.
    Failed(Millis),
    /// The build does not wait any more.
    Stale,
}

/// An offer and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The build.
    pub key: BuildKey,
    /// The position that was offered.
    pub sequence: Sequence,
    /// The workspace it was offered to.
    pub workspace: Workspace,
    /// How it ended.
    pub verdict: Verdict,
}

type RawHeads = (u8, u64, u64, u64, u64, f64, Vec<String>, Vec<Value>);

impl Index {
    /// Reads at most `idle_max` idle workspaces and as many heads as they could take.
    pub async fn heads(&self, now: Millis, idle_max: usize) -> Result<Heads, IndexError> {
        let what = "read_heads";
        let raw: RawHeads = self
            .scripts
            .read_heads
            .key(META)
            .arg(now.0)
            .arg(idle_max)
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        let (ready, watermark, waiting_groups, offered, running, next_offer, idle, groups) = raw;
        let idle = idle.iter().map(|text| text.parse()).collect::<Result<_, _>>();
        Ok(Heads {
            ready: ready == 1,
            watermark: Sequence(watermark),
            waiting_groups,
            offered,
            running,
            next_offer: millis(next_offer),
            idle: idle.map_err(|_| IndexError::Answer { what })?,
            groups: groups
                .chunks(2)
                .map(read_group)
                .collect::<Option<_>>()
                .ok_or(IndexError::Answer { what })?,
        })
    }

    /// Commits `picks`, offered until `deadline`; says when, in microseconds since the Unix epoch, and for each
    /// whether it still held.
    pub async fn commit(&self, picks: &[Pick], deadline: Millis) -> Result<(u64, Vec<bool>), IndexError> {
        let mut invocation = self.scripts.commit_picks.prepare_invoke();
        invocation.key(META).arg(deadline.0).arg(picks.len());
        for pick in picks {
            invocation.arg(pick.key.group.as_str()).arg(pick.key.id.to_string());
            invocation.arg(pick.sequence.0).arg(pick.workspace.to_string());
        }
        let done: Vec<u64> = invocation
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what: "commit_picks", source })?;
        let (at, held) = done.split_first().ok_or(IndexError::Answer { what: "commit_picks" })?;
        Ok((*at, held.iter().map(|flag| *flag == 1).collect()))
    }

    /// Settles offers, and returns those that ran out to their queues. Returns how many builds wait again, and how
    /// many workers let an offer run out: they are offered nothing until they are heard of again.
    pub async fn settle(&self, now: Millis, settlements: &[Settlement]) -> Result<(u64, u64), IndexError> {
        let what = "settle_offers";
        let mut invocation = self.scripts.settle_offers.prepare_invoke();
        invocation.key(META).arg(now.0).arg(settlements.len());
        for settlement in settlements {
            let (verdict, retry) = match settlement.verdict {
                Verdict::Busy => ("busy", Millis(0)),
                Verdict::Gone => ("gone", Millis(0)),
                Verdict::Failed(retry) => ("failed", retry),
                Verdict::Stale => ("stale", Millis(0)),
            };
            invocation.arg(settlement.key.to_string()).arg(settlement.sequence.0);
            invocation.arg(settlement.workspace.to_string()).arg(verdict).arg(retry.0);
        }
        invocation
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what, source })
    }

    /// Takes a worker's heartbeat. Returns whether the index is ready and how many workspaces became idle.
    pub async fn announce(
        &self,
        heartbeat: &Heartbeat,
        encoded: &[u8],
        now: Millis,
    ) -> Result<(bool, u64), IndexError> {
        let status = match heartbeat.status {
            WorkerStatus::Ready => "ready",
            WorkerStatus::Draining => "draining",
            WorkerStatus::Gone => "gone",
        };
        let mut invocation = self.scripts.announce_worker.prepare_invoke();
        invocation.key(META).arg(heartbeat.worker.as_str()).arg(now.0.saturating_add(heartbeat.ttl_ms));
        invocation.arg(status).arg(encoded);
        for workspace in &heartbeat.workspaces {
            match workspace {
                WorkspaceState::Idle => invocation.arg("idle"),
                WorkspaceState::Broken => invocation.arg("broken"),
                WorkspaceState::Busy { group, id } => {
                    invocation.arg(BuildKey { group: group.clone(), id: *id }.to_string())
                }
            };
        }
        let (ready, fresh): (u8, u64) = invocation
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what: "announce_worker", source })?;
        Ok((ready == 1, fresh))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds, checked positive")]
fn millis(score: f64) -> Option<Millis> {
    (score > 0.0).then_some(Millis(score as u64))
}

fn read_group(pair: &[Value]) -> Option<WaitingGroup> {
    let [group, builds] = pair else { return None };
    let group = String::from_redis_value_ref(group).ok()?.parse().ok()?;
    let flat = Vec::<String>::from_redis_value_ref(builds).ok()?;
    let read = |pair: &[String]| {
        let [id, sequence] = pair else { return None };
        Some(WaitingBuild { id: id.parse().ok()?, sequence: Sequence(sequence.parse().ok()?) })
    };
    Some(WaitingGroup { group, builds: flat.chunks(2).map(read).collect::<Option<_>>()? })
}
