//! Addresses at which a farm can be reached.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Millis;

/// Paths of files of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperatorFiles {
    /// The key for nats-server and Redis.
    pub seed: String,
    /// Authorities of the certificates of all servers, in PEM.
    pub authorities: String,
    /// The certificate for Redis, in PEM.
    pub certificate: String,
    /// The private key of the certificate, in PEM.
    pub key: String,
    /// The API key for gateways.
    pub token: String,
}

/// Content of `endpoints.json`: written by `forebay up` once every service answers, removed when it stops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoints {
    /// Address of nats-server: `nats://HOST:PORT`.
    pub nats: String,
    /// Address of Redis: `redis://HOST:PORT`.
    pub redis: String,
    /// Address of the HTTP API: `http://HOST:PORT`; absent if no gateway runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Address of the Remote Execution API: `grpc://HOST:PORT`; absent if no gateway serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<String>,
    /// Address of the cache-only `cas` service: `grpc://HOST:PORT`; absent if it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cas: Option<String>,
    /// How a command on this machine proves that it is an operator; absent unless the farm was started with `--secure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<OperatorFiles>,
    /// URL of the store of all blobs.
    pub store: String,
    /// Path of the data folder.
    pub data: String,
    /// Process id of `forebay up`.
    pub pid: u32,
    /// Time when `forebay up` was started.
    pub started_at_ms: Millis,
    /// Metrics address of each service by name: `http://HOST:PORT/metrics`.
    #[serde(default)]
    pub metrics: BTreeMap<String, String>,
    /// Process id of each child process by name.
    #[serde(default)]
    pub processes: BTreeMap<String, u32>,
}
