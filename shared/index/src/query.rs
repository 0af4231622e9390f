//! Queries of the reaper, the API and `doctor`.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use model::{BuildId, BuildKey, Group, Millis, Sequence, WorkerCounts, Workspace};
use redis::{Cmd, FromRedisValue, RedisError, cmd};

use crate::{
    Index, IndexError,
    connection::measured,
    link::has_no_connection,
    script::{META, key},
};

/// Numbers of unfinished builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Number of builds that wait or are offered.
    pub waiting: u64,
    /// Number of running builds.
    pub running: u64,
}

/// State of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether the index is complete up to the watermark.
    pub ready: bool,
    /// Position in the event stream up to which the index is current.
    pub watermark: Sequence,
    /// Identity of the index; changes at every rebuild.
    pub epoch: String,
}

impl Index {
    /// Up to `max` builds whose time in the queue has expired at `now`.
    pub async fn expired(&self, now: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        self.entries_until("expires", now, max).await
    }

    /// Up to `max` builds whose run time limit has expired at `now`.
    pub async fn overrun(&self, now: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        self.entries_until("deadlines", now, max).await
    }

    /// Up to `max` builds that have been running since before `since`.
    pub async fn running_since(&self, since: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        self.entries_until("running", since, max).await
    }

    /// All builds that wait, are offered or run. Takes several calls: a build that changes state between them may
    /// be included or missing.
    pub async fn unfinished(&self) -> Result<Vec<BuildKey>, IndexError> {
        let what = "unfinished";
        let mut found = std::collections::BTreeSet::new();
        let mut cursor = 0_u64;
        loop {
            let mut page = cmd("HSCAN");
            page.arg(key("builds")).arg(cursor).arg("COUNT").arg(PAGE);
            let (next, flat): (u64, Vec<String>) = self.query(what, &page).await?;
            found.extend(flat.chunks(2).filter_map(|pair| pair.first()?.parse::<BuildKey>().ok()));
            cursor = next;
            if cursor == 0 {
                return Ok(found.into_iter().collect());
            }
        }
    }

    /// Numbers of waiting and running builds.
    pub async fn counts(&self) -> Result<Counts, IndexError> {
        let waiting = self.query("counts", cmd("ZCARD").arg(key("expires"))).await?;
        let running = self.query("counts", cmd("ZCARD").arg(key("running"))).await?;
        Ok(Counts { waiting, running })
    }

    /// State of the index; `None` if there is no index.
    pub async fn health(&self) -> Result<Option<Health>, IndexError> {
        let fields = ["ready", "watermark", "epoch"];
        let found: (Option<u8>, Option<u64>, Option<String>) =
            self.query("health", cmd("HMGET").arg(META).arg(&fields)).await?;
        Ok(found.0.map(|ready| Health {
            ready: ready == 1,
            // The end of a rebuild sets these two fields.
            watermark: Sequence(found.1.unwrap_or_default()),
            epoch: found.2.unwrap_or_default(),
        }))
    }

    /// The order of the queues, as recorded when the index was built.
    pub async fn order(&self) -> Result<String, IndexError> {
        let found: Option<String> = self.query("order", cmd("HGET").arg(META).arg("order")).await?;
        Ok(found.unwrap_or_default())
    }

    /// Groups that recently had a build.
    pub async fn groups(&self) -> Result<Vec<Group>, IndexError> {
        let found: Vec<String> = self.query("groups", cmd("SMEMBERS").arg(key("seen"))).await?;
        let mut groups: Vec<Group> = found.iter().filter_map(|text| text.parse().ok()).collect();
        groups.sort();
        Ok(groups)
    }

    /// The newest builds of `group`, newest first.
    pub async fn recent(&self, group: &Group, max: isize) -> Result<Vec<BuildId>, IndexError> {
        let name = key(&format!("recent:{group}"));
        let found: Vec<String> = self.query("recent", cmd("LRANGE").arg(name).arg(0).arg(max - 1)).await?;
        let mut seen = std::collections::BTreeSet::new();
        let ids = found.iter().filter_map(|text| text.parse::<BuildId>().ok());
        Ok(ids.filter(|id| seen.insert(*id)).collect())
    }

    /// The waiting builds of `group`, in the order in which they will start.
    pub async fn waiting(&self, group: &Group, max: isize) -> Result<Vec<BuildId>, IndexError> {
        let name = key(&format!("queue:{group}"));
        let found: Vec<String> = self.query("waiting", cmd("ZRANGE").arg(name).arg(0).arg(max - 1)).await?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// The last heartbeat of every worker that is live at `now`.
    pub async fn workers(&self, now: Millis) -> Result<Vec<Vec<u8>>, IndexError> {
        let what = "workers";
        let later = format!("({}", now.0);
        let live: Vec<String> =
            self.query(what, cmd("ZRANGEBYSCORE").arg(key("workers")).arg(later).arg("+inf")).await?;
        if live.is_empty() {
            return Ok(Vec::new());
        }
        let found: Vec<Option<Vec<u8>>> =
            self.query(what, cmd("HMGET").arg(key("workerinfo")).arg(live)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Up to `max` running builds, newest first.
    pub async fn running(&self, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        let newest = cmd("ZREVRANGE").arg(key("running")).arg(0).arg(max - 1).to_owned();
        let found: Vec<String> = self.query("running", &newest).await?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// Workspaces that have been offered a build.
    pub async fn taken(&self) -> Result<HashMap<Workspace, BuildKey>, IndexError> {
        let found: HashMap<String, String> = self.query("taken", cmd("HGETALL").arg(key("taken"))).await?;
        let read =
            |(workspace, build): (&String, &String)| Some((workspace.parse().ok()?, build.parse().ok()?));
        Ok(found.iter().filter_map(read).collect())
    }

    /// Those of `builds` that have not ended.
    pub async fn unfinished_of(&self, builds: &[BuildKey]) -> Result<Vec<BuildKey>, IndexError> {
        if builds.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<String> = builds.iter().map(ToString::to_string).collect();
        let found: Vec<Option<Vec<u8>>> =
            self.query("unfinished", cmd("HMGET").arg(key("builds")).arg(names)).await?;
        let known = builds.iter().zip(found).filter(|(_, entry)| entry.is_some());
        Ok(known.map(|(build, _)| build.clone()).collect())
    }

    /// Number of live workers at `now`, and how many of them accept no builds. Reads names only,
    /// since heartbeats are long.
    pub async fn worker_counts(&self, now: Millis) -> Result<WorkerCounts, IndexError> {
        let what = "worker_counts";
        let later = format!("({}", now.0);
        let live: HashSet<String> =
            self.query(what, cmd("ZRANGEBYSCORE").arg(key("workers")).arg(later).arg("+inf")).await?;
        if live.is_empty() {
            return Ok(WorkerCounts::default());
        }
        let draining: HashSet<String> = self.query(what, cmd("SMEMBERS").arg(key("draining"))).await?;
        let full: HashSet<String> = self.query(what, cmd("SMEMBERS").arg(key("full"))).await?;
        let closed = live.intersection(&draining).count();
        let full = live.intersection(&draining).filter(|worker| full.contains(*worker)).count();
        let count = |workers: usize| u64::try_from(workers).unwrap_or(u64::MAX);
        Ok(WorkerCounts {
            ready: count(live.len() - closed),
            draining: count(closed - full),
            full: count(full),
        })
    }

    /// Memory that Redis uses for its data, in bytes.
    pub async fn memory_bytes(&self) -> Result<u64, IndexError> {
        let what = "memory_bytes";
        let text: String = self.query(what, cmd("INFO").arg("memory")).await?;
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
        used.ok_or(IndexError::Answer { what })
    }

    async fn entries_until(
        &self,
        name: &'static str,
        at: Millis,
        max: isize,
    ) -> Result<Vec<BuildKey>, IndexError> {
        let mut command = cmd("ZRANGEBYSCORE");
        command.arg(key(name)).arg("-inf").arg(at.0).arg("LIMIT").arg(0).arg(max);
        let found: Vec<String> = self.query(name, &command).await?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// Runs a query, and retries it on a broken connection: a query changes nothing, and the next connection
    /// is ready within milliseconds.
    pub(crate) async fn query<T: FromRedisValue>(
        &self,
        what: &'static str,
        command: &Cmd,
    ) -> Result<T, IndexError> {
        measured(what, self.answer(command)).await
    }

    async fn answer<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        let mut retries = 0;
        loop {
            match self.link.call(async |connection| command.query_async(connection).await).await {
                Err(error) if retries < QUERY_RETRIES_MAX && has_no_connection(&error) => {
                    retries += 1;
                    tokio::time::sleep(QUERY_RETRY_DELAY).await;
                }
                answer => return answer,
            }
        }
    }
}

/// Number of entries requested in one call.
const PAGE: usize = 1000;
const QUERY_RETRIES_MAX: u32 = 3;
const QUERY_RETRY_DELAY: Duration = Duration::from_millis(50);
