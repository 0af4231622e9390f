//! Clients that behave like Bazel: they retry unavailable calls, resume a broken stream with `WaitExecution`, and
//! execute again if the operation is unknown.

use std::{collections::HashMap, path::Path, time::Duration};

use futures::StreamExt as _;
use model::{BlobDigest, DigestFunction};
use reapi::execution::{Action, Command};
use remote::{Remote, RemoteError, Source, action_of};
use tonic::Code;

use super::ActionPlan;
use crate::Random;

/// A client's view of its action.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Output that the command should write.
    pub wanted: String,
    /// Digest of the requested action.
    pub action: BlobDigest,
    /// Operations that the client received; the last one ended.
    pub operations: Vec<String>,
    /// Output of the command, or the reason why there is no result.
    pub got: Result<String, String>,
}

impl Answer {
    /// Keys of the executions that the client received. A cached result has an operation but no execution.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let executions = self.operations.iter().filter(|operation| !operation.contains("operations/done/"));
        executions
            .map(|operation| operation.split_once("operations/").map_or(operation.as_str(), |(_, key)| key))
    }
}

/// Codes on which Bazel retries, and `NOT_FOUND`, after which it executes again.
const AGAIN: [Code; 8] = [
    Code::Cancelled,
    Code::Unknown,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::ResourceExhausted,
    Code::Aborted,
    Code::Internal,
    Code::Unavailable,
];
const RETRY: Duration = Duration::from_millis(300);

/// Request of one client.
struct Job {
    wanted: String,
    sleep_ms: u64,
    priority: i32,
    chance: u64,
}

/// Creates actions that one or several clients request at about the same time, with different priorities. Some run
/// long enough for copies to start.
fn jobs(plan: &ActionPlan, random: &mut Random) -> Vec<Job> {
    let mut jobs = Vec::new();
    for number in 0..plan.actions {
        let wanted = format!("action {number} of {}", plan.seed);
        let sleep_ms = if random.once_in(6) { random.between(400, 1200) } else { random.between(0, 120) };
        for _ in 0..random.between(1, plan.askers) {
            let priority = i32::try_from(random.between(0, 5)).unwrap_or_default();
            jobs.push(Job { wanted: wanted.clone(), sleep_ms, priority, chance: random.number() });
        }
    }
    jobs
}

pub(super) async fn run(
    plan: &ActionPlan,
    random: &mut Random,
    urls: Vec<String>,
    runs: &Path,
) -> Vec<Answer> {
    let urls = &urls;
    let limit = plan.settle_limit + Duration::from_secs(60);
    futures::stream::iter(jobs(plan, random))
        .map(|job| async move {
            let (action, blobs) = action(&job, runs);
            let got = Err("not asked".to_owned());
            let mut answer = Answer { wanted: job.wanted.clone(), action, operations: Vec::new(), got };
            let requested = request_until_answered(urls, &job, &blobs, &mut answer);
            if tokio::time::timeout(limit, requested).await.is_err() {
                answer.got = Err(format!("no result after {limit:?}; last: {:?}", answer.got));
            }
            answer
        })
        .buffer_unordered(plan.in_flight)
        .collect()
        .await
}

fn action(job: &Job, runs: &Path) -> (BlobDigest, HashMap<BlobDigest, Source>) {
    let (wanted, seconds) = (&job.wanted, job.sleep_ms as f64 / 1000.0);
    let script =
        format!("echo '{wanted}' >> '{}'; sleep {seconds}; echo '{wanted}'; echo kept > out", runs.display());
    let command = Command {
        arguments: vec!["/bin/sh".to_owned(), "-c".to_owned(), script],
        output_paths: vec!["out".to_owned()],
        ..Command::default()
    };
    let root = DigestFunction::Sha256.empty();
    action_of(DigestFunction::Sha256, &command, Action::default(), &root)
}

async fn request_until_answered(
    urls: &[String],
    job: &Job,
    blobs: &HashMap<BlobDigest, Source>,
    answer: &mut Answer,
) {
    let mut gateway = usize::try_from(job.chance % 1000).unwrap_or(0);
    loop {
        // Use any gateway each time, as a load balancer would.
        gateway += 1;
        let Some(url) = urls.get(gateway % urls.len()) else {
            unreachable!("the remainder is an index");
        };
        match request_once(url, job.priority, blobs, answer).await {
            Ok(stdout) => {
                answer.got = Ok(stdout);
                return;
            }
            Err(RequestError::Final(why)) => {
                answer.got = Err(why);
                return;
            }
            Err(RequestError::Again(why)) => {
                answer.got = Err(why);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

enum RequestError {
    /// The request may be retried.
    Again(String),
    /// A client would give up.
    Final(String),
}

impl From<RemoteError> for RequestError {
    fn from(error: RemoteError) -> Self {
        let why = error.to_string();
        match &error {
            RemoteError::Refused { status, .. } if !AGAIN.contains(&status.code()) => Self::Final(why),
            RemoteError::Refused { .. } | RemoteError::Unreachable { .. } | RemoteError::Lost { .. } => {
                Self::Again(why)
            }
            RemoteError::Missing { .. } | RemoteError::File { .. } | RemoteError::Answer { .. } => {
                Self::Final(why)
            }
        }
    }
}

async fn request_once(
    url: &str,
    priority: i32,
    blobs: &HashMap<BlobDigest, Source>,
    answer: &mut Answer,
) -> Result<String, RequestError> {
    let remote = Remote::connect(url, "", DigestFunction::Sha256).await?;
    remote.upload(blobs).await?;
    let operations = &mut answer.operations;
    let executed = remote
        .execute(&answer.action, false, priority, |name, _| {
            if operations.last().is_none_or(|last| last != name) {
                operations.push(name.to_owned());
            }
        })
        .await?;
    let status = executed.response.status.unwrap_or_default();
    if status.code != 0 {
        let refused = tonic::Status::new(Code::from(status.code), status.message);
        let what = "the execution".to_owned();
        return Err(RemoteError::Refused { what, status: Box::new(refused) }.into());
    }
    let result = executed.response.result.ok_or_else(|| RequestError::Final("no result".to_owned()))?;
    if result.exit_code != 0 || result.output_files.len() != 1 {
        let files = result.output_files.len();
        return Err(RequestError::Final(format!("exit code {}, {files} outputs", result.exit_code)));
    }
    let stdout = match result.stdout_digest {
        Some(digest) if result.stdout_raw.is_empty() => {
            let digest = reapi::digest::from_proto(&digest, DigestFunction::Sha256)
                .map_err(|error| RequestError::Final(error.to_string()))?;
            remote.read(&digest).await?
        }
        _ => result.stdout_raw,
    };
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}
