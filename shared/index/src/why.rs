//! Queries that explain why a build waits, and the demand of groups for the governor.

use model::{BuildKey, Group, InProgress, Millis, Occupancy};
use redis::{FromRedisValue, Value, cmd};

use crate::{
    Index, IndexError, Traits, WaitingBuild,
    dispatch::{read_amounts, read_builds},
    script::{META, key},
};

/// The place of a build in its queue, and the load of the farm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// Whether the index exists and is complete.
    pub ready: bool,
    /// Number of builds of its group ahead of it; `None` if it is not in the queue.
    pub place: Option<u64>,
    /// Number of builds in its group's queue.
    pub queued: u64,
    /// The builds ahead of it, from the head, bounded; the build itself is last.
    pub ahead: Vec<WaitingBuild>,
    /// Sum of the estimates of its group's builds that are offered or running.
    pub in_progress: Occupancy,
    /// A bounded number of these builds.
    pub running: Vec<InProgress>,
    /// Number of idle workspaces in the farm.
    pub idle: u64,
    /// Times at which runs of its group ended, newest first.
    pub ends: Vec<Millis>,
    /// Number of workspaces in the farm that have a build.
    pub busy: u64,
    /// The builds in these workspaces, of any group, bounded.
    pub busy_with: Vec<BusyWith>,
    /// Number of groups with waiting builds.
    pub waiting_groups: u64,
    /// A random sample of these groups.
    pub some_waiting: Vec<Group>,
}

/// The build that a workspace is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyWith {
    /// Whether the build is of the group in question.
    pub own: bool,
    /// When the build started; `None` if it is only offered.
    pub since: Option<Millis>,
    /// Expected run time in milliseconds, if there is an estimate.
    pub expected_ms: Option<u64>,
}

/// Limits on the size of a [`Standing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandingLimits {
    /// Maximum number of builds ahead of the one in question.
    pub ahead: usize,
    /// Maximum number of builds of its group in progress.
    pub running: usize,
    /// Maximum number of builds of all groups in progress.
    pub busy: usize,
    /// Maximum number of waiting groups.
    pub groups: usize,
}

/// Demand of a group for quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    pub group: Group,
    /// Sum of the estimates of its builds that are offered or running.
    pub in_progress: Occupancy,
    /// The first builds of its queue.
    pub waiting: Vec<WaitingBuild>,
    /// Number of builds in its queue.
    pub queued: u64,
    /// Sum of the estimates of all its runs that ended since the index was built.
    pub ended: Occupancy,
}

/// Builds of all groups that run actions on executors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutorDemand {
    /// Sum of the estimates of those that are offered or running.
    pub in_progress: Occupancy,
    /// Sum of the estimates of all their runs that ended since the index was built.
    pub ended: Occupancy,
}

impl Index {
    /// The sums over all builds that run actions on executors.
    pub async fn executor_demand(&self) -> Result<ExecutorDemand, IndexError> {
        let what = "executor_demand";
        let in_progress: Vec<String> = self.query(what, cmd("HGETALL").arg(key("onexecutors"))).await?;
        let ended: Vec<String> = self.query(what, cmd("HGETALL").arg(key("endedonexecutors"))).await?;
        let read = |flat: &[String]| read_amounts(flat).ok_or(IndexError::Answer { what });
        Ok(ExecutorDemand { in_progress: read(&in_progress)?, ended: read(&ended)? })
    }

    /// The place of a build, with the amounts limited by `most`.
    pub async fn standing(&self, of: &BuildKey, most: StandingLimits) -> Result<Standing, IndexError> {
        let what = "why";
        let mut invocation = self.scripts.why.prepare_invoke();
        invocation.key(META).arg(of.group.as_str()).arg(of.id.to_string());
        invocation.arg(most.ahead).arg(most.running).arg(most.busy).arg(most.groups);
        let raw: Vec<Value> = self.invoke(what, &invocation).await?;
        read_standing(&raw).ok_or(IndexError::Answer { what })
    }

    /// Demands of all groups that have builds waiting or in progress, with at most `depth` builds of each queue. Takes
    /// several calls, so the result is not one consistent snapshot; sufficient for callers that repeat the query soon.
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
            let raw: Vec<Value> = self.invoke(what, &invocation).await?;
            for (group, parts) in part.iter().zip(raw.chunks(4)) {
                demands.push(read_demand(group, parts).ok_or(IndexError::Answer { what })?);
            }
        }
        demands.retain(|demand| demand.queued > 0 || !demand.in_progress.is_empty());
        Ok(demands)
    }

    /// Whether no build waits or is in progress.
    pub async fn is_idle(&self) -> Result<bool, IndexError> {
        let unfinished: u64 = self.query("is_idle", cmd("HLEN").arg(key("builds"))).await?;
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
        running: read_in_progress(&texts(running)?)?,
        idle: number(idle)?,
        ends: texts(ends)?.iter().filter_map(|text| text.parse().ok().map(Millis)).collect(),
        busy: number(busy)?,
        busy_with,
        waiting_groups: number(waiting_groups)?,
        some_waiting: texts(some_waiting)?.iter().filter_map(|name| name.parse().ok()).collect(),
    })
}

/// Parses alternating ids and entries of builds that are offered or running, whose entries need not have a score.
fn read_in_progress(flat: &[String]) -> Option<Vec<InProgress>> {
    let read = |pair: &[String]| {
        let [id, entry] = pair else { return None };
        let occupancy = Traits::from_fields(entry.split(' ').skip(3))?.occupancy;
        Some(InProgress { id: id.parse().ok()?, occupancy })
    };
    flat.chunks(2).map(read).collect()
}

/// Parses alternating flags (1 if of the group in question) and entries.
fn read_busy(flat: &[String], running: bool) -> Option<Vec<BusyWith>> {
    let read = |pair: &[String]| {
        let [own, entry] = pair else { return None };
        let mut fields = entry.split(' ');
        let _position_and_score = (fields.next()?, fields.next()?);
        // For an offered build, the entry holds the time at which it expires in the queue.
        let since = Millis(fields.next()?.parse().ok()?);
        let expected_ms = Traits::from_fields(fields)?.expected_ms;
        Some(BusyWith { own: own == "1", since: running.then_some(since), expected_ms })
    };
    flat.chunks(2).map(read).collect()
}
