//! Clients that behave as Bazel does: what is unavailable is tried again, a broken stream is taken up by `WaitExecution`,
//! an operation that nobody knows is executed anew.

use std::{collections::HashMap, time::Duration};

use futures::StreamExt as _;
use model::DigestFunction;
use reapi::execution::{Action, Command};
use remote::{Remote, RemoteError, action_of};
use tonic::Code;

use super::ActionPlan;
use crate::Random;

/// What a client saw of its action.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What the command should write.
    pub wanted: String,
    /// The operations that it was given; the last one ended.
    pub operations: Vec<String>,
    /// What it wrote, or why there is no result.
    pub got: Result<String, String>,
}

/// What Bazel tries again, and `NOT_FOUND`, after which it executes anew.
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

pub(super) async fn run(plan: &ActionPlan, random: &mut Random, urls: Vec<String>) -> Vec<Answer> {
    let jobs: Vec<(usize, u64, u64)> =
        (0..plan.actions).map(|number| (number, random.between(0, 120), random.number())).collect();
    let (seed, urls) = (plan.seed, &urls);
    let limit = plan.settle_limit + Duration::from_secs(60);
    futures::stream::iter(jobs)
        .map(|(number, sleep_ms, chance)| async move {
            let wanted = format!("action {number} of {seed}");
            let mut answer = Answer { wanted, operations: Vec::new(), got: Err("not asked".to_owned()) };
            let asked = one(urls, chance, sleep_ms, &mut answer);
            if tokio::time::timeout(limit, asked).await.is_err() {
                answer.got = Err(format!("no result after {limit:?}; last: {:?}", answer.got));
            }
            answer
        })
        .buffer_unordered(plan.in_flight)
        .collect()
        .await
}

async fn one(urls: &[String], chance: u64, sleep_ms: u64, answer: &mut Answer) {
    let script = format!("sleep {}; echo '{}'; echo kept > out", sleep_ms as f64 / 1000.0, answer.wanted);
    let command = Command {
        arguments: vec!["/bin/sh".to_owned(), "-c".to_owned(), script],
        output_paths: vec!["out".to_owned()],
        ..Command::default()
    };
    let root = DigestFunction::Sha256.empty();
    let (action, blobs) = action_of(DigestFunction::Sha256, &command, Action::default(), &root);
    let mut turn = usize::try_from(chance % 1000).unwrap_or(0);
    loop {
        // As a balancer would: any gateway, each time.
        turn += 1;
        let Some(url) = urls.get(turn % urls.len()) else { return };
        match try_one(url, &action, &blobs, answer).await {
            Ok(stdout) => {
                answer.got = Ok(stdout);
                return;
            }
            Err(Trouble::Final(why)) => {
                answer.got = Err(why);
                return;
            }
            Err(Trouble::Again(why)) => {
                answer.got = Err(why);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

enum Trouble {
    /// Worth another try.
    Again(String),
    /// A client would give up.
    Final(String),
}

impl From<RemoteError> for Trouble {
    fn from(error: RemoteError) -> Self {
        let why = error.to_string();
        match &error {
            RemoteError::Refused { status, .. } if !AGAIN.contains(&status.code()) => Self::Final(why),
            RemoteError::Refused { .. } | RemoteError::Unreachable { .. } => Self::Again(why),
            RemoteError::Missing { .. } | RemoteError::File { .. } | RemoteError::Answer { .. } => {
                Self::Final(why)
            }
        }
    }
}

async fn try_one(
    url: &str,
    action: &model::BlobDigest,
    blobs: &HashMap<model::BlobDigest, remote::Source>,
    answer: &mut Answer,
) -> Result<String, Trouble> {
    let remote = Remote::connect(url, "", DigestFunction::Sha256).await?;
    remote.upload(blobs).await?;
    let operations = &mut answer.operations;
    let executed = remote
        .execute(action, false, 0, |name, _| {
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
    let result = executed.response.result.ok_or_else(|| Trouble::Final("no result".to_owned()))?;
    if result.exit_code != 0 || result.output_files.len() != 1 {
        let files = result.output_files.len();
        return Err(Trouble::Final(format!("exit code {}, {files} outputs", result.exit_code)));
    }
    let stdout = match result.stdout_digest {
        Some(digest) if result.stdout_raw.is_empty() => {
            let digest = reapi::digest::from_proto(&digest, DigestFunction::Sha256)
                .map_err(|error| Trouble::Final(error.to_string()))?;
            remote.read(&digest).await?
        }
        _ => result.stdout_raw,
    };
    Ok(String::from_utf8_lossy(&stdout).trim().to_owned())
}
