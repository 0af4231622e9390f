//! Where a farm can be reached.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Millis;

/// `endpoints.json`: written by `forebay up` when everything answers, removed when it stops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoints {
    /// `nats://HOST:PORT`.
    pub nats: String,
    /// `redis://HOST:PORT`.
    pub redis: String,
    /// `http://HOST:PORT`, when the gateway runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// `grpc://HOST:PORT`, when the gateway serves the Remote Execution API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<String>,
    /// `grpc://HOST:PORT` of the content-addressable store alone, when the `cas` service runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cas: Option<String>,
    /// Where output files and logs of builds are kept, a URL.
    pub store: String,
    /// The data folder.
    pub data: String,
    /// The process of `forebay up`.
    pub pid: u32,
    /// Since when.
    pub started_at_ms: Millis,
    /// `http://HOST:PORT/metrics` of each service, by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, String>,
    /// Process ids of each child, by name.
    #[serde(default)]
    pub processes: BTreeMap<String, u32>,
}
