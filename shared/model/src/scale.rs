//! How many processes a pool should have.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Millis, ParseIdError, PoolName, Sequence};

/// Processes of a kind, of which each can do what the others can, so that their number can follow the work. As text
/// `workers` or `executors.POOL`; `executors` is read as those of the pool `default`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaledPool {
    /// All workers of the farm: any of them can run any build.
    Workers,
    /// The executors of one pool.
    Executors(PoolName),
}

const WORKERS: &str = "workers";
const EXECUTORS: &str = "executors";

impl fmt::Display for ScaledPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workers => f.write_str(WORKERS),
            Self::Executors(pool) => write!(f, "{EXECUTORS}.{pool}"),
        }
    }
}

/// A text that names nothing that can be scaled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseScaledPoolError {
    /// Neither workers nor executors.
    #[error("{0:?} is nothing that can be scaled: `workers`, `executors` or `executors.POOL` is expected")]
    Unknown(String),
    /// Executors of what cannot be a pool.
    #[error(transparent)]
    Pool(#[from] ParseIdError),
}

impl FromStr for ScaledPool {
    type Err = ParseScaledPoolError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('.') {
            None if text == WORKERS => Ok(Self::Workers),
            None if text == EXECUTORS => Ok(Self::Executors("default".parse()?)),
            Some((EXECUTORS, pool)) => Ok(Self::Executors(pool.parse()?)),
            Some(_) | None => Err(ParseScaledPoolError::Unknown(text.to_owned())),
        }
    }
}

impl Serialize for ScaledPool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ScaledPool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for ScaledPool {
    fn schema_name() -> Cow<'static, str> {
        "ScaledPool".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^(workers|executors(\.[A-Za-z0-9_-]+)?)$",
            "description": "Processes of a kind whose number follows the work: all workers, or the executors of one pool."
        })
    }
}

/// How many processes a pool should have, and why. JSON, one key a pool in the bucket `FOREBAY_SCALE` and repeated as a
/// plain message on `forebay.scale.<pool>`; written by autoscalers by compare-and-set, so that of any number of them one
/// makes each decision; read by whoever starts and stops processes, and by the autoscalers as what they go on from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScalePlan {
    /// Which pool.
    pub pool: ScaledPool,
    /// Counts the decisions.
    pub tick: u64,
    /// When it was decided.
    pub at_ms: Millis,
    /// Processes that should take work. Those above it are to be drained, and stopped once they run nothing.
    pub desired: u64,
    /// Processes that are needed, whatever the settings allow.
    pub needed: u64,
    /// Why so many: `enough`, `backlog`, `load`, `minimum`, `maximum`, `budget`, `surplus`, `too_soon`, `cooldown` or `busy`.
    pub reason: String,
    /// The same as a sentence, for people.
    pub why: String,
    /// Of what it was decided.
    pub seen: ScaleObservation,
    /// Up to where the log was read: what joined the queue behind it is counted by the next decision.
    pub upto: Sequence,
    /// What the planner remembers. It is nobody else's, and its form may change with any version.
    #[serde(default)]
    pub memory: serde_json::Value,
}

/// What an autoscaler saw of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ScaleObservation {
    /// Builds or executions that wait and that one more process could start.
    pub waiting: u64,
    /// Those that wait for something else: their group's quota is used up.
    pub held_back: u64,
    /// Those that run.
    pub running: u64,
    /// Milliseconds that what waits is expected to take, added up.
    pub queued_ms: u64,
    /// Milliseconds that the one which waits longest has waited.
    pub oldest_wait_ms: u64,
    /// How many joined the queue since the decision before.
    pub arrived: u64,
    /// Milliseconds that one takes, on the average of what ended lately; 0 where nothing did.
    pub service_ms: u64,
    /// How many one process runs at a time.
    pub slots: u64,
    /// Processes that take work.
    pub alive: u64,
    /// Of these, those that run something.
    pub busy: u64,
    /// Processes that were asked for and do not take work yet.
    pub starting: u64,
    /// Processes that take no more work, or were asked to.
    pub draining: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_read_as_they_are_written() {
        for text in ["workers", "executors.default", "executors.gpu"] {
            let pool: ScaledPool = text.parse().unwrap();
            assert_eq!(pool.to_string(), text);
            let json = serde_json::to_string(&pool).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<ScaledPool>(&json).unwrap(), pool);
        }
        let short: ScaledPool = "executors".parse().unwrap();
        assert_eq!(short.to_string(), "executors.default");
    }

    #[test]
    fn what_cannot_be_scaled_is_refused_with_what_can() {
        for text in ["", "worker", "workers.x", "gateway", "executors.", "executors.a b", "executors.a.b"] {
            assert!(text.parse::<ScaledPool>().is_err(), "{text}");
        }
        let error = "gateways".parse::<ScaledPool>().unwrap_err().to_string();
        assert!(error.contains("`workers`, `executors` or `executors.POOL`"), "{error}");
    }
}
