//! The job of `forebay submit --job`: reads it, checks it, and stores it if it is large.

use std::{collections::HashMap, path::PathBuf};

use clap::Args;
use command_line::{
    failure::{Failure, USAGE},
    globals::Globals,
};
use model::{Digest, DigestFunction, Graph, Group, Job, JobLimits, JobSource, StoredJob};
use remote::Source;
use settings::Settings;

use crate::{farm::Farm, file_argument, remote::GatewayArgs};

/// Maximum length in bytes of a job, as JSON, within a request. A longer one goes through the store.
const INLINE_BYTES_MAX: usize = 128 << 10;

/// Options of `forebay submit` for jobs.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Run the graph of tasks in this YAML or JSON file instead of a command; - for stdin
    #[arg(long = "job", value_name = "FILE", conflicts_with_all = ["command", "env"])]
    pub(crate) file: Option<PathBuf>,
}

impl JobArgs {
    /// Reads and checks the job, if one is given. A job that no farm would accept is an error.
    pub(crate) fn read(&self) -> Result<Option<Job>, Failure> {
        let Some(path) = &self.file else { return Ok(None) };
        let what = format!("--job {}", path.display());
        let content = file_argument::text(path).map_err(|error| Failure::new(USAGE, &what, &error))?;
        let wrong = |why: String| Failure::usage(format!("{what}: {why}"));
        let job = Job::from_text(&content).map_err(|invalid| wrong(invalid.to_string()))?;
        // The limits depend on the farm, which checks them itself.
        Graph::new(&job, &JobLimits::NONE).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(job))
    }
}

/// The job as part of a request: inline, or the digest of the stored job if it is too long.
pub(crate) async fn source(
    gateway: &GatewayArgs,
    farm: &Farm,
    globals: &Globals,
    settings: &Settings,
    (job, group): (Job, &Group),
) -> Result<JobSource, Failure> {
    let json = job.to_json();
    if json.len() <= INLINE_BYTES_MAX {
        return Ok(JobSource::Inline(job));
    }
    let blob = DigestFunction::Sha256.digest(&json);
    let store = gateway.connect(farm, globals, settings).await?.in_group(group);
    store.upload(&HashMap::from([(blob, Source::Bytes(json.into()))])).await?;
    Ok(JobSource::Stored(StoredJob { digest: Digest::from_sha256(blob.hash), size_bytes: Some(blob.size) }))
}
