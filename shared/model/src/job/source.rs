//! Reading a job or its digest so that what is wrong is named: of an untagged enum serde says that nothing fits.

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{Job, JobSource, StoredJob, TaskDefaults, TaskRequest};
use crate::Digest;

/// Either the fields of a job or a digest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Either {
    #[serde(default)]
    digest: Option<Digest>,
    #[serde(default)]
    defaults: Option<TaskDefaults>,
    #[serde(default)]
    tasks: Option<Vec<TaskRequest>>,
}

impl<'de> Deserialize<'de> for JobSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Either::deserialize(deserializer)? {
            Either { digest: None, defaults, tasks: Some(tasks) } => {
                Ok(Self::Inline(Job { defaults: defaults.unwrap_or_default(), tasks }))
            }
            Either { digest: Some(digest), defaults: None, tasks: None } => {
                Ok(Self::Stored(StoredJob { digest }))
            }
            Either { .. } => {
                Err(D::Error::custom("a job has tasks, or the digest of a stored job and nothing else"))
            }
        }
    }
}

impl Job {
    /// As the farm keeps it. Jobs that are equal are the same JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // Nothing in it can fail to be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl JobSource {
    /// The digest of its JSON.
    pub fn digest(&self) -> Digest {
        match self {
            Self::Inline(job) => Digest::of(&job.to_json()),
            Self::Stored(stored) => stored.digest.clone(),
        }
    }
}
