//! Builds that are a job: whole graphs on a real farm.

mod conditions;
mod exercise;
mod faults;
mod file_steps;
mod hwgroups;
mod judging;
mod large;
mod measured;
mod progress;
mod project;
mod steps;
mod times;

use std::{collections::BTreeMap, path::Path, time::Duration};

use farm::{Builder, Farm};
use model::{
    BuildId, BuildKey, BuildRecord, BuildRequest, Context, Job, JobResult, JobSource, Outcome, TaskReport,
    TaskStatus,
};
use serde_json::{Value, json};

use crate::check;

/// Time limit for compilers on a machine under load.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// Configures a farm that runs jobs, on two executors. Without a sandbox: effects of tasks outside are visible.
pub(crate) fn builder() -> Builder {
    Farm::builder().with_actions().with("executor").workspaces(1).env("FOREBAY_SANDBOX", "none")
}

/// Starts the configured farm.
pub(crate) async fn start(builder: Builder) -> Farm {
    builder.start().await
}

/// Creates a job of these tasks.
pub(crate) fn job(tasks: &Value) -> Job {
    serde_json::from_value(json!({ "tasks": tasks })).unwrap()
}

/// Creates a task that runs a script.
pub(crate) fn sh(id: &str, script: &str) -> Value {
    json!({"id": id, "command": ["/bin/sh", "-c", script]})
}

/// Creates a build that runs this job.
pub(crate) fn request(job: Job) -> BuildRequest {
    BuildRequest {
        id: Some(BuildId::generate()),
        job: Some(JobSource::Inline(job)),
        ..BuildRequest::default()
    }
}

/// Creates a build that runs this job in a copy of a folder.
pub(crate) fn request_in(job: Job, folder: &Path) -> BuildRequest {
    let path = folder.to_str().unwrap().to_owned();
    BuildRequest { context: Context::Directory { path, ignore_files: false }, ..request(job) }
}

/// A finished build that ran a job.
pub(crate) struct Ended {
    pub(crate) record: BuildRecord,
    pub(crate) reports: Vec<TaskReport>,
}

/// Runs a build to its end.
pub(crate) async fn run(farm: &Farm, request: BuildRequest) -> Ended {
    let key = farm.submit("g", request).await;
    ended(farm, &key).await
}

/// Waits for the end of a build.
pub(crate) async fn ended(farm: &Farm, key: &BuildKey) -> Ended {
    let record = check::ended_within(farm, key, LONG).await;
    let reports = reports(farm, &record).await;
    Ended { record, reports }
}

/// Returns the stored reports of all tasks.
async fn reports(farm: &Farm, record: &BuildRecord) -> Vec<TaskReport> {
    let Some(file) = record.result().and_then(|result| result.job.as_ref()?.report.clone()) else {
        return Vec::new();
    };
    let text = content(farm, &file.digest).await;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the stored text with this digest.
pub(crate) async fn content(farm: &Farm, digest: &model::Digest) -> String {
    String::from_utf8(bytes(farm, digest).await).unwrap()
}

/// Opens the store of the farm.
pub(crate) fn store(farm: &Farm) -> cas::Cas {
    cas::Cas::open(cas::CasConfig::new(farm.data().join("cas"))).unwrap()
}

/// Stores content and returns its digest.
pub(crate) async fn stored(farm: &Farm, content: impl Into<bytes::Bytes>) -> model::Digest {
    let blob = store(farm).put_bytes(model::DigestFunction::Sha256, content.into()).await.unwrap();
    model::Digest::from_sha256(blob.hash)
}

/// Returns the stored bytes with this digest.
pub(crate) async fn bytes(farm: &Farm, digest: &model::Digest) -> Vec<u8> {
    let store = store(farm);
    let blob = store.resolve(digest, None).await.unwrap();
    store.read_whole(&blob, u64::MAX).await.unwrap().into()
}

impl Ended {
    pub(crate) fn outcome(&self) -> Outcome {
        self.record.result().unwrap().outcome
    }

    pub(crate) fn job(&self) -> &JobResult {
        let job = self.record.result().unwrap().job.as_deref();
        job.unwrap_or_else(|| panic!("{:#?}", self.record))
    }

    /// Returns the report of a task.
    pub(crate) fn task(&self, id: &str) -> &TaskReport {
        let found = self.reports.iter().find(|report| report.id.as_str() == id);
        found.unwrap_or_else(|| panic!("{id}: {:#?}", self.reports))
    }

    /// Returns the status of a task.
    pub(crate) fn status(&self, id: &str) -> TaskStatus {
        self.task(id).status
    }

    /// Returns the reason why a task did not succeed.
    pub(crate) fn reason(&self, id: &str) -> &str {
        self.task(id).reason.as_deref().unwrap_or_default()
    }

    /// Returns the ids of tasks whose report satisfies the condition.
    pub(crate) fn ids(&self, wanted: impl Fn(&TaskReport) -> bool) -> Vec<&str> {
        self.reports.iter().filter(|report| wanted(report)).map(|report| report.id.as_str()).collect()
    }

    /// Returns the outputs of the build, by path.
    pub(crate) async fn outputs(&self, farm: &Farm) -> BTreeMap<String, Vec<u8>> {
        let mut outputs = BTreeMap::new();
        for file in &self.record.result().unwrap().outputs {
            outputs.insert(file.path.clone(), bytes(farm, &file.digest).await);
        }
        outputs
    }
}

/// Returns all console output of the build.
pub(crate) async fn console(farm: &Farm, key: &BuildKey) -> String {
    let wanted = bus::EventSubject { key: key.clone(), kind: bus::EventKind::Console }.to_string();
    let stored = farm.stored(key).await;
    let chunks = stored.iter().filter(|stored| stored.subject == wanted);
    chunks.map(|stored| String::from_utf8_lossy(&stored.payload).into_owned()).collect()
}
