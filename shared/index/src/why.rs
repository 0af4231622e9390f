//! What explains why a build waits, and what the governor must know of the groups.

use model::{BuildKey, Group, Millis, Occupancy};
use redis::{FromRedisValue, Value, cmd};

use crate::{
    Index, IndexError, Traits, WaitingBuild,
    dispatch::{read_amounts, read_builds},
    script::{META, key},
};

/// Where a build stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Whether there is an index.
    pub ready: bool,
    /// Builds of its group that stand before it; `None`: it does not wait in the queue.
    pub place: Option<u64>,
    /// Builds in its group's queue.
    pub queued: u64,
    /// Those before it, from the head, a bounded part; and itself, at the end.
    pub ahead: Vec<WaitingBuild>,
    /// The estimates of its group's builds that are offered or run.
    pub in_progress: Occupancy,
    /// These builds, some of them.
    pub running: Vec<WaitingBuild>,
    /// Idle workspaces of the farm.
    pub idle: u64,
    /// When runs of its group ended, newest first.
    pub ends: Vec<Millis>,
    /// Workspaces of the farm that have a build.
    pub busy: u64,
    /// What these have, of any group; a bounded part.
    pub busy_with: Vec<BusyWith>,
    /// Groups that have builds waiting.
    pub waiting_groups: u64,
    /// Some of these, by chance.
    pub some_waiting: Vec<Group>,
}

/// What a workspace is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyWith {
    /// Whether the build is of the group that was asked about.
    pub own: bool,
    /// Since when it runs; `None`: it is offered.
    pub since: Option<Millis>,
    /// Milliseconds that its run is expected to take, where anything is known of that.
    pub expected_ms: Option<u64>,
}

/// How much of a standing is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandingLimits {
    /// Builds before the one that is asked about.
    pub ahead: usize,
    /// Builds of its group in progress.
    pub running: usize,
    /// Builds of all groups in progress.
    pub busy: usize,
    /// Names of waiting groups.
    pub groups: usize,
}

/// What a group asks of the governor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// The group.
    pub group: Group,
    /// The estimates of its builds that are offered or run.
    pub in_progress: Occupancy,
    /// The first builds of its queue.
    pub waiting: Vec<WaitingBuild>,
    /// Builds in its queue.
    pub queued: u64,
    /// The estimates of all its runs that ended since the index was built.
    pub ended: Occupancy,
}

impl Index {
    /// Where a build stands, with at most so much of everything.
    pub async fn standing(&self, of: &BuildKey, most: StandingLimits) -> Result<Standing, IndexError> {
        let what = "why";
        let mut invocation = self.scripts.why.prepare_invoke();
        invocation.key(META).arg(of.group.as_str()).arg(of.id.to_string());
        invocation.arg(most.ahead).arg(most.running).arg(most.busy).arg(most.groups);
        let raw: Vec<Value> = invocation
            .invoke_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        read_standing(&raw).ok_or(IndexError::Answer { what })
    }

    /// What all groups ask that have builds waiting or in progress: of each queue at most `depth` builds. Several calls, so
    /// not one moment; enough for whoever looks again soon.
    pub async fn demands(&self, depth: usize) -> Result<Vec<Demand>, IndexError> {
        let what = "demands";
        let groups = self.groups().await?;
        let mut demands = Vec::with_capacity(groups.len());
        for part in groups.chunks(100) {
            let mut invocation = self.scripts.demands.prepare_invoke();
            invocation.key(META).arg(depth);
            for group in part {
                invocation.arg(group.as_str());
            }
            let raw: Vec<Value> = invocation
                .invoke_async(&mut self.connection.clone())
                .await
                .map_err(|source| IndexError::Call { what, source })?;
            for (group, parts) in part.iter().zip(raw.chunks(4)) {
                demands.push(read_demand(group, parts).ok_or(IndexError::Answer { what })?);
            }
        }
        demands.retain(|demand| demand.queued > 0 || !demand.in_progress.is_empty());
        Ok(demands)
    }

    /// Whether any build waits or is in progress.
    pub async fn is_idle(&self) -> Result<bool, IndexError> {
        let unfinished: u64 = self.ask("is_idle", cmd("HLEN").arg(key("builds"))).await?;
        Ok(unfinished == 0)
    }
}

fn read_demand(group: &Group, parts: &[Value]) -> Option<Demand> {
    let [in_progress, queued, page, ended] = parts else { return None };
    let texts = |value: &Value| Vec::<String>::from_redis_value_ref(value).ok();
    Some(Demand {
        group: group.clone(),
        in_progress: read_amounts(&texts(in_progress)?)?,
        waiting: read_builds(&texts(page)?)?,
        queued: u64::from_redis_value_ref(queued).ok()?,
        ended: read_amounts(&texts(ended)?)?,
    })
}

fn read_standing(raw: &[Value]) -> Option<Standing> {
    let [ready, place, queued, ahead, in_progress, running, idle, ends, rest @ ..] = raw else { return None };
    let [busy, runs, offered, waiting_groups, some_waiting] = rest else { return None };
    let texts = |value: &Value| Vec::<String>::from_redis_value_ref(value).ok();
    let number = |value: &Value| u64::from_redis_value_ref(value).ok();
    let mut busy_with = read_busy(&texts(runs)?, true)?;
    busy_with.extend(read_busy(&texts(offered)?, false)?);
    Some(Standing {
        ready: number(ready)? == 1,
        place: u64::try_from(i64::from_redis_value_ref(place).ok()?).ok(),
        queued: number(queued)?,
        ahead: read_builds(&texts(ahead)?)?,
        in_progress: read_amounts(&texts(in_progress)?)?,
        running: read_builds(&texts(running)?)?,
        idle: number(idle)?,
        ends: texts(ends)?.iter().filter_map(|text| text.parse().ok().map(Millis)).collect(),
        busy: number(busy)?,
        busy_with,
        waiting_groups: number(waiting_groups)?,
        some_waiting: texts(some_waiting)?.iter().filter_map(|name| name.parse().ok()).collect(),
    })
}

/// Whether of the group, and entries, in turn.
fn read_busy(flat: &[String], running: bool) -> Option<Vec<BusyWith>> {
    let read = |pair: &[String]| {
        let [own, entry] = pair else { return None };
        let mut fields = entry.split(' ');
        let _position_and_score = (fields.next()?, fields.next()?);
        // Of one that is offered it says when it would have waited too long.
        let since = Millis(fields.next()?.parse().ok()?);
        let expected_ms = Traits::from_fields(fields)?.expected_ms;
        Some(BusyWith { own: own == "1", since: running.then_some(since), expected_ms })
    };
    flat.chunks(2).map(read).collect()
}
