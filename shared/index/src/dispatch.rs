//! What the dispatcher reads, commits and settles.

use model::{
    BuildId, BuildKey, Esu, Group, Heartbeat, Millis, Occupancy, Sequence, WorkerStatus, Workspace,
    WorkspaceKind, WorkspaceState,
};
use redis::{FromRedisValue, Value};

use crate::{Index, IndexError, Traits, script::META};

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
    /// Of the names of all waiting groups, where these are many and were asked for.
    pub groups_version: Option<u64>,
    /// The names of all waiting groups, when they are many and changed since the caller last knew them.
    pub names: Vec<Group>,
    /// The waiting groups that were read, each with its first builds.
    pub groups: Vec<WaitingGroup>,
}

/// Which heads to read.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Idle workspaces at most.
    pub idle_max: usize,
    /// Builds of each head at least; as many as there are idle workspaces when those are more.
    pub depth_min: usize,
    /// Up to so many waiting groups all are read.
    pub groups_max: usize,
    /// Of the names that the caller knows.
    pub groups_version: u64,
    /// Of more waiting groups, those that the caller chose.
    pub groups: &'a [Group],
}

/// A group's first waiting builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingGroup {
    /// The group.
    pub group: Group,
    /// Of its budget: a pick holds only while nobody else spends of it.
    pub version: u64,
    /// The estimates of its builds that are offered or run.
    pub in_progress: Occupancy,
    /// In the order in which they must start.
    pub builds: Vec<WaitingBuild>,
}

/// A waiting build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingBuild {
    /// Its id.
    pub id: BuildId,
    /// Position of its BUILD_ENQUEUED.
    pub sequence: Sequence,
    /// What else matters of it.
    pub traits: Traits,
}

/// A build picked for a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    /// The build.
    pub key: BuildKey,
    /// Of its group's budget, as it was read.
    pub version: u64,
    /// Position of its BUILD_ENQUEUED.
    pub sequence: Sequence,
    /// The workspace.
    pub workspace: Workspace,
    /// How that was chosen, for a build that asks for a warm one.
    pub kind: Option<WorkspaceKind>,
    /// As what it counts from now on, where that is not what it was estimated at.
    pub counts_as: Option<Traits>,
}

/// What became of a pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The build is offered.
    Yes,
    /// The build does not wait any more, or its group's budget was spent of by another.
    No,
    /// The workspace is not idle.
    NotIdle,
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

impl Index {
    /// Reads idle workspaces and heads of groups.
    pub async fn heads(&self, now: Millis, wanted: Wanted<'_>) -> Result<Heads, IndexError> {
        let what = "read_heads";
        let mut invocation = self.scripts.read_heads.prepare_invoke();
        invocation.key(META).arg(now.0).arg(wanted.idle_max).arg(wanted.depth_min).arg(wanted.groups_max);
        invocation.arg(wanted.groups_version);
        for group in wanted.groups {
            invocation.arg(group.as_str());
        }
        let raw: Vec<Value> = invocation
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        read_heads(&raw).ok_or(IndexError::Answer { what })
    }

    /// Reads `count` builds of a group's queue behind the first `offset`.
    pub async fn page(
        &self,
        group: &Group,
        offset: usize,
        count: usize,
    ) -> Result<Vec<WaitingBuild>, IndexError> {
        let what = "read_page";
        let mut invocation = self.scripts.read_page.prepare_invoke();
        let flat: Vec<String> = invocation
            .key(META)
            .arg(group.as_str())
            .arg(offset)
            .arg(count)
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        read_builds(&flat).ok_or(IndexError::Answer { what })
    }

    /// Commits `picks`, offered until `deadline`; says when, in microseconds since the Unix epoch, and for each
    /// whether it still held.
    pub async fn commit(&self, picks: &[Pick], deadline: Millis) -> Result<(u64, Vec<Held>), IndexError> {
        let mut invocation = self.scripts.commit_picks.prepare_invoke();
        invocation.key(META).arg(deadline.0).arg(picks.len());
        for pick in picks {
            invocation.arg(pick.key.group.as_str()).arg(pick.version).arg(pick.key.id.to_string());
            invocation.arg(pick.sequence.0).arg(pick.workspace.to_string());
            invocation.arg(pick.counts_as.as_ref().map(Traits::to_text).unwrap_or_default());
        }
        let done: Vec<u64> = invocation
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what: "commit_picks", source })?;
        let (at, held) = done.split_first().ok_or(IndexError::Answer { what: "commit_picks" })?;
        let held = held.iter().map(|flag| match flag {
            1 => Held::Yes,
            2 => Held::NotIdle,
            _ => Held::No,
        });
        Ok((*at, held.collect()))
    }

    /// Settles offers that were not taken. Returns how many builds wait again.
    pub async fn settle(&self, settlements: &[Settlement]) -> Result<u64, IndexError> {
        let what = "settle_offers";
        let mut invocation = self.scripts.settle_offers.prepare_invoke();
        invocation.key(META).arg(settlements.len());
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

    /// Builds whose offers ran out before `at`, at most `most`, each with the position that was offered.
    pub async fn run_out(&self, at: Millis, most: usize) -> Result<Vec<(BuildKey, Sequence)>, IndexError> {
        let what = "run_out";
        let script = &self.scripts.run_out;
        let flat: Vec<String> = script
            .key(META)
            .arg(at.0)
            .arg(most)
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        let read = |pair: &[String]| {
            let [key, entry] = pair else { return None };
            let sequence = entry.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default();
            Some((key.parse().ok()?, Sequence(sequence)))
        };
        flat.chunks(2).map(read).collect::<Option<_>>().ok_or(IndexError::Answer { what })
    }

    /// Returns builds whose offers ran out before `at` and that were `not_started` to their queues; those that were
    /// `started` stay as they are until their event tells, and are looked at again `later`. Returns how many builds wait
    /// again, and how many workers let an offer run out: they are offered nothing until they are heard of again.
    pub async fn take_back(
        &self,
        at: Millis,
        later: Millis,
        started: &[BuildKey],
        not_started: &[BuildKey],
    ) -> Result<(u64, u64), IndexError> {
        let what = "take_back";
        let mut invocation = self.scripts.take_back.prepare_invoke();
        invocation.key(META).arg(at.0).arg(later.0).arg(started.len());
        for key in started.iter().chain(not_started) {
            invocation.arg(key.to_string());
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
            // What these run goes on, and frees no workspace for another build.
            WorkerStatus::Draining => "draining",
            WorkerStatus::Full => "full",
            WorkerStatus::Gone => "gone",
        };
        let mut invocation = self.scripts.announce_worker.prepare_invoke();
        invocation.key(META).arg(heartbeat.worker.as_str()).arg(now.0.saturating_add(heartbeat.ttl_ms));
        invocation.arg(status).arg(encoded);
        for workspace in &heartbeat.workspaces {
            match workspace {
                WorkspaceState::Idle { .. } => invocation.arg("idle"),
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

fn read_heads(raw: &[Value]) -> Option<Heads> {
    let [ready, watermark, waiting, offered, running, next_offer, idle, version, names, groups] = raw else {
        return None;
    };
    let texts = |value: &Value| Vec::<String>::from_redis_value_ref(value).ok();
    let number = |value: &Value| u64::from_redis_value_ref(value).ok();
    let Value::Array(groups) = groups else { return None };
    Some(Heads {
        ready: number(ready)? == 1,
        watermark: Sequence(number(watermark)?),
        waiting_groups: number(waiting)?,
        offered: number(offered)?,
        running: number(running)?,
        next_offer: millis(f64::from_redis_value_ref(next_offer).ok()?),
        idle: texts(idle)?.iter().map(|text| text.parse().ok()).collect::<Option<_>>()?,
        groups_version: Some(number(version)?).filter(|version| *version > 0),
        names: texts(names)?.iter().filter_map(|name| name.parse().ok()).collect(),
        groups: groups.chunks(4).map(read_group).collect::<Option<_>>()?,
    })
}

fn read_group(parts: &[Value]) -> Option<WaitingGroup> {
    let [group, version, in_progress, builds] = parts else { return None };
    let amounts = Vec::<String>::from_redis_value_ref(in_progress).ok()?;
    Some(WaitingGroup {
        group: String::from_redis_value_ref(group).ok()?.parse().ok()?,
        version: u64::from_redis_value_ref(version).ok()?,
        in_progress: read_amounts(&amounts)?,
        builds: read_builds(&Vec::<String>::from_redis_value_ref(builds).ok()?)?,
    })
}

/// Types and millionths of ESU in turn.
pub(crate) fn read_amounts(flat: &[String]) -> Option<Occupancy> {
    let read = |pair: &[String]| {
        let [kind, micros] = pair else { return None };
        // Never below nothing: a count that went wrong must not grant more than the target.
        Some((kind.parse().ok()?, Esu::from_micros(micros.parse().ok()?).or_zero()))
    };
    flat.chunks(2).map(read).collect()
}

/// Ids and entries in turn.
pub(crate) fn read_builds(flat: &[String]) -> Option<Vec<WaitingBuild>> {
    let read = |pair: &[String]| {
        let [id, entry] = pair else { return None };
        let mut fields = entry.split(' ');
        let sequence = Sequence(fields.next()?.parse().ok()?);
        let _score_and_time = (fields.next()?, fields.next()?);
        let traits = Traits::from_fields(fields)?;
        Some(WaitingBuild { id: id.parse().ok()?, sequence, traits })
    };
    flat.chunks(2).map(read).collect()
}
