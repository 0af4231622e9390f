//! Deserialises a job or its digest with precise errors: for an untagged enum, serde would only
//! report that nothing matches.

use invariant::Present as _;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{Job, JobSource, StoredJob, TaskDefaults, TaskRequest};
use crate::{Digest, ServiceRequest};

/// Fields of a job, or a digest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Either {
    #[serde(default)]
    digest: Option<Digest>,
    #[serde(default)]
    size_bytes: Option<u64>,
    #[serde(default)]
    defaults: Option<TaskDefaults>,
    #[serde(default)]
    services: Option<Vec<ServiceRequest>>,
    #[serde(default)]
    tasks: Option<Vec<TaskRequest>>,
}

impl<'de> Deserialize<'de> for JobSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Either::deserialize(deserializer)? {
            Either { digest: None, size_bytes: None, defaults, services, tasks: Some(tasks) } => {
                let (defaults, services) = (defaults.unwrap_or_default(), services.unwrap_or_default());
                Ok(Self::Inline(Job { defaults, services, tasks }))
            }
            Either { digest: Some(digest), size_bytes, defaults: None, services: None, tasks: None } => {
                Ok(Self::Stored(StoredJob { digest, size_bytes }))
            }
            Either { .. } => {
                Err(D::Error::custom("invalid job: expected tasks, or only the digest of a stored job"))
            }
        }
    }
}

impl Job {
    /// JSON in which the farm stores the job. Equal jobs have the same JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).present("a job as JSON")
    }
}

impl JobSource {
    /// The digest of the job's JSON.
    pub fn digest(&self) -> Digest {
        match self {
            Self::Inline(job) => Digest::of(&job.to_json()),
            Self::Stored(stored) => stored.digest.clone(),
        }
    }
}
