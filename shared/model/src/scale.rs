//! Autoscaling: the target number of processes of a pool.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Millis, ParseIdError, PoolName, Sequence};

/// A set of interchangeable processes whose number can follow the load. Written `workers` or `executors.POOL`;
/// `executors` means the pool `default`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaledPool {
    /// All workers of the farm.
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

/// A text that is not a valid pool name for autoscaling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseScaledPoolError {
    #[error("cannot scale {0:?}: expected `workers`, `executors` or `executors.POOL`")]
    Unknown(String),
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
            "description": "Processes whose number follows the load: all workers, or the executors of one pool."
        })
    }
}

/// Target number of processes of a pool, with the reason. JSON, one key per pool in the bucket `FOREBAY_SCALE` and
/// repeated as a plain message on `forebay.scale.<pool>`. Written by autoscalers with compare-and-set, so that exactly
/// one of several autoscalers makes each decision; read by the programs that start and stop processes, and by
/// autoscalers as their state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScalePlan {
    /// Pool that the decision is for.
    pub pool: ScaledPool,
    /// Number of the decision, counted from 1.
    pub tick: u64,
    /// Time of the decision.
    pub at_ms: Millis,
    /// Number of processes that should accept work. Drain the surplus, and stop those processes once they are idle.
    pub desired: u64,
    /// Number of processes needed for the load, regardless of limits in the settings.
    pub needed: u64,
    /// Reason for `desired`: `enough`, `backlog`, `load`, `minimum`, `maximum`, `budget`, `surplus`,
    /// `too_soon`, `cooldown` or `busy`.
    pub reason: String,
    /// The reason as a sentence, for people.
    pub why: String,
    /// Observation of the pool on which the decision is based.
    pub seen: ScaleObservation,
    /// Position in the event stream up to which arrivals are counted; later ones are counted by the next decision.
    pub upto: Sequence,
    /// State of the planner, private to it; its format may change with any version.
    #[serde(default)]
    pub memory: serde_json::Value,
}

/// Observation of a pool by an autoscaler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ScaleObservation {
    /// Number of builds or executions that wait and that one more process could start.
    pub waiting: u64,
    /// Number of builds or executions held back because their group's quota is used up.
    pub held_back: u64,
    /// Number of builds or executions that are running.
    pub running: u64,
    /// Expected run time in milliseconds of everything in `waiting`, added up.
    pub queued_ms: u64,
    /// Wait so far in milliseconds of the oldest entry in `waiting`.
    pub oldest_wait_ms: u64,
    /// Number of builds or executions that joined the queue since the previous decision.
    pub arrived: u64,
    /// Average run time in milliseconds of recently finished builds or executions; 0 if none finished.
    pub service_ms: u64,
    /// Number of builds or executions that one process runs at a time.
    pub slots: u64,
    /// Number of processes that accept work.
    pub alive: u64,
    /// Number of processes that accept work and are running something.
    pub busy: u64,
    /// Number of processes that were requested and do not accept work yet.
    pub starting: u64,
    /// Number of processes that accept no more work or were asked to drain.
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
