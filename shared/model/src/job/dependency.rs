//! Dependencies of a task, as its author writes them.

use std::fmt;

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use crate::TaskId;

/// A dependency of a task: `a`, `{any: [a, b]}` or `{failed: a}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged, deny_unknown_fields)]
pub enum Dependency {
    /// Id of a task that must succeed.
    Succeeded(TaskId),
    /// Tasks of which at least one must succeed.
    Any {
        /// Ids of the tasks.
        any: Vec<TaskId>,
    },
    /// A task that must fail.
    Failed {
        /// Id of the task.
        failed: TaskId,
    },
}

impl<'de> Deserialize<'de> for Dependency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DependencyVisitor)
    }
}

/// Reads a dependency with precise errors: for an untagged enum, serde would only report that nothing matches.
struct DependencyVisitor;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    any: Option<Vec<TaskId>>,
    failed: Option<TaskId>,
}

impl<'de> Visitor<'de> for DependencyVisitor {
    type Value = Dependency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a task, {any: [ids]} or {failed: id}")
    }

    fn visit_str<E: Error>(self, id: &str) -> Result<Dependency, E> {
        id.parse().map(Dependency::Succeeded).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Dependency, A::Error> {
        match Fields::deserialize(MapAccessDeserializer::new(map))? {
            Fields { any: Some(any), failed: None } => Ok(Dependency::Any { any }),
            Fields { any: None, failed: Some(failed) } => Ok(Dependency::Failed { failed }),
            Fields { any: Some(_), failed: Some(_) } | Fields { any: None, failed: None } => {
                Err(A::Error::custom("expected either `any` or `failed`"))
            }
        }
    }
}
