//! Options of a conformance run.

use std::{collections::BTreeSet, time::Duration};

/// Options of a conformance run.
#[derive(Debug, Clone)]
pub struct Options {
    /// URL of the server: `grpc://HOST:PORT`.
    pub endpoint: String,
    /// A second endpoint, of the same store or another, that does not serve execution.
    pub cache_endpoint: Option<String>,
    /// A second endpoint whose store has no space left.
    pub full_endpoint: Option<String>,
    /// Instance name that the checks use.
    pub instance: String,
    /// An instance whose name has several segments.
    pub nested_instance: String,
    /// An instance that does not exist.
    pub unknown_instance: String,
    /// Platform properties for every action.
    pub platform: Vec<(String, String)>,
    /// Numbers of the checks to run; empty for all.
    pub only: BTreeSet<u16>,
    /// Number of checks that run in parallel.
    pub jobs: usize,
    /// Time limit of a check.
    pub time_limit: Duration,
    /// Host name of this machine as seen by the server, for fetches of remote assets.
    pub origin_host: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoint: "grpc://127.0.0.1:8980".into(),
            cache_endpoint: None,
            full_endpoint: None,
            instance: String::new(),
            nested_instance: "main/b/c".into(),
            unknown_instance: "no-such-instance".into(),
            platform: Vec::new(),
            only: BTreeSet::new(),
            jobs: 16,
            time_limit: Duration::from_secs(60),
            origin_host: "127.0.0.1".into(),
        }
    }
}
