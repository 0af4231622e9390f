//! What the reaper, the API and `doctor` ask.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use model::{BuildId, BuildKey, Group, Millis, Sequence, WorkerCounts, Workspace};
use redis::{Cmd, FromRedisValue, cmd};

use crate::{
    Index, IndexError,
    script::{META, key},
};

/// How much there is of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Builds that wait or are offered.
    pub waiting: u64,
    /// Builds that run.
    pub running: u64,
}

/// Whether the index can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// It is complete up to the watermark.
    pub ready: bool,
    /// The position of the event stream that it stands at.
    pub watermark: Sequence,
    /// Changes whenever it was rebuilt.
    pub epoch: String,
}

impl Index {
    /// Builds that have waited too long at `now`, some of them.
    pub async fn expired(&self, now: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        self.until("expires", now, max).await
    }

    /// Builds that have run too long at `now`, some of them.
    pub async fn overrun(&self, now: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        self.until("deadlines", now, max).await
    }

    /// Builds that run since before `since`.
    pub async fn running_since(&self, since: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        self.until("running", since, max).await
    }

    /// All builds that wait, are offered or run. Several calls, so not one moment: what changes meanwhile may be there or not.
    pub async fn unfinished(&self) -> Result<Vec<BuildKey>, IndexError> {
        let what = "unfinished";
        let mut found = std::collections::BTreeSet::new();
        let mut cursor = 0_u64;
        loop {
            let mut page = cmd("HSCAN");
            page.arg(key("builds")).arg(cursor).arg("COUNT").arg(PAGE);
            let (next, flat): (u64, Vec<String>) = self.ask(what, &page).await?;
            found.extend(flat.chunks(2).filter_map(|pair| pair.first()?.parse::<BuildKey>().ok()));
            cursor = next;
            if cursor == 0 {
                return Ok(found.into_iter().collect());
            }
        }
    }

    /// How many builds wait and run.
    pub async fn counts(&self) -> Result<Counts, IndexError> {
        let waiting = self.ask("counts", cmd("ZCARD").arg(key("expires"))).await?;
        let running = self.ask("counts", cmd("ZCARD").arg(key("running"))).await?;
        Ok(Counts { waiting, running })
    }

    /// Whether the index can be used; `None` when there is none.
    pub async fn health(&self) -> Result<Option<Health>, IndexError> {
        let fields = ["ready", "watermark", "epoch"];
        let found: (Option<u8>, Option<u64>, Option<String>) =
            self.ask("health", cmd("HMGET").arg(META).arg(&fields)).await?;
        Ok(found.0.map(|ready| Health {
            ready: ready == 1,
            watermark: Sequence(found.1.unwrap_or_default()),
            epoch: found.2.unwrap_or_default(),
        }))
    }

    /// By what the queues are ordered, as it was said when the index was built.
    pub async fn order(&self) -> Result<String, IndexError> {
        let found: Option<String> = self.ask("order", cmd("HGET").arg(META).arg("order")).await?;
        Ok(found.unwrap_or_default())
    }

    /// Groups that had a build lately.
    pub async fn groups(&self) -> Result<Vec<Group>, IndexError> {
        let found: Vec<String> = self.ask("groups", cmd("SMEMBERS").arg(key("seen"))).await?;
        let mut groups: Vec<Group> = found.iter().filter_map(|text| text.parse().ok()).collect();
        groups.sort();
        Ok(groups)
    }

    /// The newest builds of `group`, newest first.
    pub async fn recent(&self, group: &Group, max: isize) -> Result<Vec<BuildId>, IndexError> {
        let name = key(&format!("recent:{group}"));
        let found: Vec<String> = self.ask("recent", cmd("LRANGE").arg(name).arg(0).arg(max - 1)).await?;
        let mut seen = std::collections::BTreeSet::new();
        let ids = found.iter().filter_map(|text| text.parse::<BuildId>().ok());
        Ok(ids.filter(|id| seen.insert(*id)).collect())
    }

    /// The waiting builds of `group`, in the order in which they will start.
    pub async fn waiting(&self, group: &Group, max: isize) -> Result<Vec<BuildId>, IndexError> {
        let name = key(&format!("queue:{group}"));
        let found: Vec<String> = self.ask("waiting", cmd("ZRANGE").arg(name).arg(0).arg(max - 1)).await?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// The last heartbeat of every worker that is not gone at `now`.
    pub async fn workers(&self, now: Millis) -> Result<Vec<Vec<u8>>, IndexError> {
        let what = "workers";
        let later = format!("({}", now.0);
        let live: Vec<String> =
            self.ask(what, cmd("ZRANGEBYSCORE").arg(key("workers")).arg(later).arg("+inf")).await?;
        if live.is_empty() {
            return Ok(Vec::new());
        }
        let found: Vec<Option<Vec<u8>>> =
            self.ask(what, cmd("HMGET").arg(key("workerinfo")).arg(live)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The builds that run, the newest ones first, at most `max`.
    pub async fn running(&self, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        let newest = cmd("ZREVRANGE").arg(key("running")).arg(0).arg(max - 1).to_owned();
        let found: Vec<String> = self.ask("running", &newest).await?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// Workspaces that a build is offered to.
    pub async fn taken(&self) -> Result<HashMap<Workspace, BuildKey>, IndexError> {
        let found: HashMap<String, String> = self.ask("taken", cmd("HGETALL").arg(key("taken"))).await?;
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
            self.ask("unfinished", cmd("HMGET").arg(key("builds")).arg(names)).await?;
        let known = builds.iter().zip(found).filter(|(_, entry)| entry.is_some());
        Ok(known.map(|(build, _)| build.clone()).collect())
    }

    /// How many workers live at `now`, and how many of them take no builds. Names only: heartbeats are long.
    pub async fn worker_counts(&self, now: Millis) -> Result<WorkerCounts, IndexError> {
        let what = "worker_counts";
        let later = format!("({}", now.0);
        let live: HashSet<String> =
            self.ask(what, cmd("ZRANGEBYSCORE").arg(key("workers")).arg(later).arg("+inf")).await?;
        if live.is_empty() {
            return Ok(WorkerCounts::default());
        }
        let draining: HashSet<String> = self.ask(what, cmd("SMEMBERS").arg(key("draining"))).await?;
        let full: HashSet<String> = self.ask(what, cmd("SMEMBERS").arg(key("full"))).await?;
        let closed = live.intersection(&draining).count();
        let full = live.intersection(&draining).filter(|worker| full.contains(*worker)).count();
        let count = |workers: usize| u64::try_from(workers).unwrap_or(u64::MAX);
        Ok(WorkerCounts {
            ready: count(live.len() - closed),
            draining: count(closed - full),
            full: count(full),
        })
    }

    /// Bytes that Redis uses for its data.
    pub async fn memory_bytes(&self) -> Result<u64, IndexError> {
        let what = "memory_bytes";
        let text: String = self.ask(what, cmd("INFO").arg("memory")).await?;
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
        used.ok_or(IndexError::Answer { what })
    }

    async fn until(&self, name: &'static str, at: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        let mut command = cmd("ZRANGEBYSCORE");
        command.arg(key(name)).arg("-inf").arg(at.0).arg("LIMIT").arg(0).arg(max);
        let found: Vec<String> = self.ask(name, &command).await?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// Asks again where the connection was found dead: a question changes nothing, and the next connection is
    /// there in milliseconds.
    pub(crate) async fn ask<T: FromRedisValue>(
        &self,
        what: &'static str,
        command: &Cmd,
    ) -> Result<T, IndexError> {
        let mut tries = 0;
        loop {
            match command.query_async(&mut self.connection.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if tries < ASK_AGAIN && (error.is_io_error() || error.is_connection_dropped()) => {
                    tries += 1;
                    tokio::time::sleep(ASK_PAUSE).await;
                }
                Err(source) => return Err(IndexError::Call { what, source }),
            }
        }
    }
}

/// Entries that are asked for at once.
const PAGE: usize = 1000;
const ASK_AGAIN: u32 = 3;
const ASK_PAUSE: Duration = Duration::from_millis(50);
