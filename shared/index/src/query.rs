//! What the reaper, the API and `doctor` ask.

use model::{BuildId, BuildKey, Group, Heartbeat, Millis, Sequence};
use redis::AsyncCommands as _;

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

    /// How many builds wait and run.
    pub async fn counts(&self) -> Result<Counts, IndexError> {
        let (waiting, running): (u64, u64) = redis::pipe()
            .zcard(key("expires"))
            .zcard(key("running"))
            .query_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what: "counts", source })?;
        Ok(Counts { waiting, running })
    }

    /// Whether the index can be used; `None` when there is none.
    pub async fn health(&self) -> Result<Option<Health>, IndexError> {
        let found: (Option<u8>, Option<u64>, Option<String>) = self
            .connection
            .clone()
            .hmget(META, &["ready", "watermark", "epoch"])
            .await
            .map_err(|source| IndexError::Call { what: "health", source })?;
        Ok(found.0.map(|ready| Health {
            ready: ready == 1,
            watermark: Sequence(found.1.unwrap_or_default()),
            epoch: found.2.unwrap_or_default(),
        }))
    }

    /// Groups that had a build lately.
    pub async fn groups(&self) -> Result<Vec<Group>, IndexError> {
        let what = "groups";
        let found: Vec<String> = self
            .connection
            .clone()
            .smembers(key("seen"))
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        let mut groups: Vec<Group> = found.iter().filter_map(|text| text.parse().ok()).collect();
        groups.sort();
        Ok(groups)
    }

    /// The newest builds of `group`, newest first.
    pub async fn recent(&self, group: &Group, max: isize) -> Result<Vec<BuildId>, IndexError> {
        let name = key(&format!("recent:{group}"));
        let found: Vec<String> = self
            .connection
            .clone()
            .lrange(name, 0, max - 1)
            .await
            .map_err(|source| IndexError::Call { what: "recent", source })?;
        let mut seen = std::collections::BTreeSet::new();
        let ids = found.iter().filter_map(|text| text.parse::<BuildId>().ok());
        Ok(ids.filter(|id| seen.insert(*id)).collect())
    }

    /// The waiting builds of `group`, in the order in which they will start.
    pub async fn waiting(&self, group: &Group, max: isize) -> Result<Vec<BuildId>, IndexError> {
        let name = key(&format!("queue:{group}"));
        let found: Vec<String> = self
            .connection
            .clone()
            .zrange(name, 0, max - 1)
            .await
            .map_err(|source| IndexError::Call { what: "waiting", source })?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }

    /// The last heartbeat of every worker that is not gone at `now`.
    pub async fn workers(&self, now: Millis) -> Result<Vec<Vec<u8>>, IndexError> {
        let what = "workers";
        let mut connection = self.connection.clone();
        let live: Vec<String> = connection
            .zrangebyscore(key("workers"), format!("({}", now.0), "+inf")
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        if live.is_empty() {
            return Ok(Vec::new());
        }
        let found: Vec<Option<Vec<u8>>> = redis::cmd("HMGET")
            .arg(key("workerinfo"))
            .arg(live)
            .query_async(&mut connection)
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Whether `heartbeat`'s worker is known, for tests and `doctor`.
    pub async fn knows(&self, heartbeat: &Heartbeat) -> Result<bool, IndexError> {
        let score: Option<f64> = self
            .connection
            .clone()
            .zscore(key("workers"), heartbeat.worker.as_str())
            .await
            .map_err(|source| IndexError::Call { what: "knows", source })?;
        Ok(score.is_some())
    }

    /// Bytes that Redis uses for its data.
    pub async fn memory_bytes(&self) -> Result<u64, IndexError> {
        let what = "memory_bytes";
        let text: String = redis::cmd("INFO")
            .arg("memory")
            .query_async(&mut self.connection.clone())
            .await
            .map_err(|source| IndexError::Call { what, source })?;
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
        used.ok_or(IndexError::Answer { what })
    }

    async fn until(&self, name: &'static str, at: Millis, max: isize) -> Result<Vec<BuildKey>, IndexError> {
        let found: Vec<String> = self
            .connection
            .clone()
            .zrangebyscore_limit(key(name), "-inf", at.0, 0, max)
            .await
            .map_err(|source| IndexError::Call { what: name, source })?;
        Ok(found.iter().filter_map(|text| text.parse().ok()).collect())
    }
}
