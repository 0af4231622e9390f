//! The dispatcher's calls: reading heads, committing picks and settling offers.

use model::{
    BuildId, BuildKey, Esu, Group, Heartbeat, Millis, Occupancy, Priority, Sequence, WorkerStatus, Workspace,
    WorkspaceKind, WorkspaceState,
};
use redis::{FromRedisValue, Value};

use crate::{Index, IndexError, Traits, event::priority_of, script::META};

/// State of the index that a dispatch decision needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heads {
    /// Whether the index exists and is complete.
    pub ready: bool,
    /// Position in the event stream up to which the index is current.
    pub watermark: Sequence,
    /// Number of groups with waiting builds.
    pub waiting_groups: u64,
    /// Number of builds that are offered and not yet started.
    pub offered: u64,
    /// Number of running builds.
    pub running: u64,
    /// When the next offer expires.
    pub next_offer: Option<Millis>,
    /// A bounded random sample of idle workspaces.
    pub idle: Vec<Workspace>,
    /// Number of all idle workspaces of the farm; 0 if nothing waits.
    pub all_idle: usize,
    /// Version of the names of all waiting groups; set only if they exceed `groups_max`.
    pub groups_version: Option<u64>,
    /// Names of all waiting groups, if they exceed `groups_max` and changed since the version that the caller knows.
    pub names: Vec<Group>,
    /// The waiting groups that were read, each with its first builds.
    pub groups: Vec<WaitingGroup>,
    /// Sum of the estimates of builds of all groups that run actions and are offered or running.
    pub on_executors: Occupancy,
    /// Version of `on_executors`: picks that depend on it are valid only while no other dispatcher adds to it.
    pub on_executors_version: u64,
}

/// Limits and selection of the heads to read.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Maximum number of idle workspaces.
    pub idle_max: usize,
    /// Minimum number of builds of each head; with more idle workspaces, their number.
    pub depth_min: usize,
    /// Number of waiting groups up to which all groups are read.
    pub groups_max: usize,
    /// Version of the group names that the caller knows.
    pub groups_version: u64,
    /// Groups to read when there are more than `groups_max`.
    pub groups: &'a [Group],
}

/// The first waiting builds of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingGroup {
    pub group: Group,
    /// Version of the group's budget: a pick is valid only while no other dispatcher spends from it.
    pub version: u64,
    /// Sum of the estimates of the group's builds that are offered or running.
    pub in_progress: Occupancy,
    /// Builds in the order in which they must start.
    pub builds: Vec<WaitingBuild>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingBuild {
    pub id: BuildId,
    /// Position of its BUILD_ENQUEUED.
    pub sequence: Sequence,
    /// Its priority, the first part of its order.
    pub priority: Priority,
    /// Further properties that dispatch needs.
    pub traits: Traits,
}

/// A build picked for a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pick {
    pub key: BuildKey,
    /// Version of the group's budget when it was read.
    pub version: u64,
    /// Position of its BUILD_ENQUEUED.
    pub sequence: Sequence,
    pub workspace: Workspace,
    /// How the workspace was chosen, for a build that requests a warm one.
    pub kind: Option<WorkspaceKind>,
    /// Traits that the build counts with from now on, if they differ from its estimate.
    pub counts_as: Option<Traits>,
}

/// What a commit leaves for others; emergencies pass both limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitLimits {
    /// Number of idle workspaces that are left for emergencies.
    pub kept: usize,
    /// Version of [`Heads::on_executors`] that the picks with actions depend on; `None` if executors limit no build.
    pub executors: Option<u64>,
}

/// Outcome of committing a pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The build is now offered.
    Yes,
    /// The build no longer waits, another dispatcher has spent from its group's budget or from the room of the
    /// executors, or the idle workspaces that are left are kept for emergencies.
    No,
    /// The workspace is not idle.
    NotIdle,
}

/// Reason why an offer was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The workspace is not free.
    Busy,
    /// The worker is not reachable.
    Gone,
    /// The worker could not claim the build; it is offered again at this time.
    Failed(Millis),
    /// The build no longer waits.
    Stale,
}

/// An offer and its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    pub key: BuildKey,
    /// Position of the BUILD_ENQUEUED that was offered.
    pub sequence: Sequence,
    /// The workspace that the build was offered to.
    pub workspace: Workspace,
    pub verdict: Verdict,
}

impl Index {
    /// Reads idle workspaces and the heads of waiting groups.
    pub async fn heads(&self, now: Millis, wanted: Wanted<'_>) -> Result<Heads, IndexError> {
        let what = "read_heads";
        let mut invocation = self.scripts.read_heads.prepare_invoke();
        invocation.key(META).arg(now.0).arg(wanted.idle_max).arg(wanted.depth_min).arg(wanted.groups_max);
        invocation.arg(wanted.groups_version);
        for group in wanted.groups {
            invocation.arg(group.as_str());
        }
        let raw: Vec<Value> = self.invoke(what, &invocation).await?;
        read_heads(&raw).ok_or(IndexError::Answer { what })
    }

    /// Reads `count` builds of a group's queue after the first `offset`.
    pub async fn page(
        &self,
        group: &Group,
        offset: usize,
        count: usize,
    ) -> Result<Vec<WaitingBuild>, IndexError> {
        let what = "read_page";
        let mut invocation = self.scripts.read_page.prepare_invoke();
        invocation.key(META).arg(group.as_str()).arg(offset).arg(count);
        let flat: Vec<String> = self.invoke(what, &invocation).await?;
        read_builds(&flat).ok_or(IndexError::Answer { what })
    }

    /// Commits `picks` as offers that expire at `deadline`. Returns the time of the commit, in microseconds since the Unix
    /// epoch, and the outcome of each pick.
    pub async fn commit(
        &self,
        picks: &[Pick],
        limits: CommitLimits,
        deadline: Millis,
    ) -> Result<(u64, Vec<Held>), IndexError> {
        let mut invocation = self.scripts.commit_picks.prepare_invoke();
        let executors = limits.executors.map(|version| version.to_string()).unwrap_or_default();
        invocation.key(META).arg(deadline.0).arg(executors).arg(limits.kept).arg(picks.len());
        for pick in picks {
            invocation.arg(pick.key.group.as_str()).arg(pick.version).arg(pick.key.id.to_string());
            invocation.arg(pick.sequence.0).arg(pick.workspace.to_string());
            invocation.arg(pick.counts_as.as_ref().map(Traits::to_text).unwrap_or_default());
        }
        let what = "commit_picks";
        let done: Vec<u64> = self.invoke(what, &invocation).await?;
        let (at, held) = done.split_first().ok_or(IndexError::Answer { what })?;
        let held = held.iter().map(|flag| match flag {
            1 => Held::Yes,
            2 => Held::NotIdle,
            _ => Held::No,
        });
        Ok((*at, held.collect()))
    }

    /// Settles offers that were not accepted. Returns the number of requeued builds.
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
        self.invoke(what, &invocation).await
    }

    /// Up to `most` builds whose offers expired before `at`, each with the position that was offered.
    pub async fn run_out(&self, at: Millis, most: usize) -> Result<Vec<(BuildKey, Sequence)>, IndexError> {
        let what = "run_out";
        let mut invocation = self.scripts.run_out.prepare_invoke();
        invocation.key(META).arg(at.0).arg(most);
        let flat: Vec<String> = self.invoke(what, &invocation).await?;
        let read = |pair: &[String]| {
            let [key, entry] = pair else { return None };
            // The entry is empty if the index no longer has the build.
            let sequence = entry.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default();
            Some((key.parse().ok()?, Sequence(sequence)))
        };
        flat.chunks(2).map(read).collect::<Option<_>>().ok_or(IndexError::Answer { what })
    }

    /// Requeues the `not_started` builds whose offers expired before `at`; the `started` ones stay as they are until
    /// their event arrives, and are checked again at `later`. Returns the number of requeued builds, and the number of
    /// workers that let an offer expire: they are offered nothing until their next heartbeat.
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
        self.invoke(what, &invocation).await
    }

    /// Applies a worker's heartbeat. Returns whether the index is ready and the number of workspaces that became idle.
    pub async fn announce(
        &self,
        heartbeat: &Heartbeat,
        encoded: &[u8],
        now: Millis,
    ) -> Result<(bool, u64), IndexError> {
        let status = match heartbeat.status {
            WorkerStatus::Ready => "ready",
            // Their running builds continue, but no workspace becomes free for another build.
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
                WorkspaceState::Closed { .. } => invocation.arg("closed"),
                WorkspaceState::Broken => invocation.arg("broken"),
                WorkspaceState::Busy { group, id } => {
                    invocation.arg(BuildKey { group: group.clone(), id: *id }.to_string())
                }
            };
        }
        let (ready, fresh): (u8, u64) = self.invoke("announce_worker", &invocation).await?;
        Ok((ready == 1, fresh))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds, checked positive")]
fn millis(score: f64) -> Option<Millis> {
    (score > 0.0).then_some(Millis(score as u64))
}

fn read_heads(raw: &[Value]) -> Option<Heads> {
    let [ready, watermark, waiting, offered, running, next_offer, idle, all_idle, rest @ ..] = raw else {
        return None;
    };
    let [version, names, groups, on_executors, last] = rest else { return None };
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
        all_idle: usize::from_redis_value_ref(all_idle).ok()?,
        groups_version: Some(number(version)?).filter(|version| *version > 0),
        names: texts(names)?.iter().filter_map(|name| name.parse().ok()).collect(),
        groups: groups.chunks(4).map(read_group).collect::<Option<_>>()?,
        on_executors: read_amounts(&texts(on_executors)?)?,
        on_executors_version: number(last)?,
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

/// Parses alternating executor types and millionths of ESU.
pub(crate) fn read_amounts(flat: &[String]) -> Option<Occupancy> {
    let read = |pair: &[String]| {
        let [kind, micros] = pair else { return None };
        // Never negative: an incorrect count must not grant more than the target.
        Some((kind.parse().ok()?, Esu::from_micros(micros.parse().ok()?).or_zero()))
    };
    flat.chunks(2).map(read).collect()
}

/// Parses alternating build ids and entries.
pub(crate) fn read_builds(flat: &[String]) -> Option<Vec<WaitingBuild>> {
    let read = |pair: &[String]| {
        let [id, entry] = pair else { return None };
        let mut fields = entry.split(' ');
        let sequence = Sequence(fields.next()?.parse().ok()?);
        let priority = priority_of(fields.next()?.parse().ok()?)?;
        let _time = fields.next()?;
        let traits = Traits::from_fields(fields)?;
        Some(WaitingBuild { id: id.parse().ok()?, sequence, priority, traits })
    };
    flat.chunks(2).map(read).collect()
}
