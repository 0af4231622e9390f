//! Actions for tests, and what must hold of each.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bus::{ActionSubject, Follower, Start, stream};
use farm::{Builder, Farm, SOON};
use model::{BlobDigest, DigestFunction, ExecutionPhase, ExecutionRecord, Sequence};
use reapi::{
    execution::{Action, Command, ExecuteRequest, ExecuteResponse, command::EnvironmentVariable},
    longrunning::Operation,
};
use remote::{Executed, Remote, RemoteError, Source, action_of};
use tokio::task::JoinHandle;
use tonic::Streaming;

use crate::check::until;

/// What it takes to run actions.
pub(crate) const ACTING: [&str; 3] = ["gateway", "scheduler", "executor"];
/// How actions are hashed here.
pub(crate) const SHA256: DigestFunction = DigestFunction::Sha256;

/// A farm to be that runs actions and nothing else, without a sandbox: what they do outside can be seen. Leases live
/// for long: an executor that starts again releases that of the one before at once.
pub(crate) fn builder() -> Builder {
    Farm::builder().only(&ACTING).env("FOREBAY_SANDBOX", "none").lease_ttl(10)
}

/// A client of its gateway.
pub(crate) async fn remote(farm: &Farm) -> Remote {
    Remote::connect(&farm.grpc_url(), "", SHA256).await.unwrap()
}

/// A command that is a shell script and may leave the output `kept`.
pub(crate) fn sh(script: &str) -> Command {
    let path = EnvironmentVariable {
        name: "PATH".into(),
        value: "/usr/local/sbin:/usr/local/bin:/usr/bin:/bin".into(),
    };
    Command {
        arguments: vec!["/bin/sh".into(), "-c".into(), script.into()],
        environment_variables: vec![path],
        output_paths: vec!["kept".into()],
        ..Command::default()
    }
}

/// Uploads the action of this script, without inputs.
pub(crate) async fn upload(remote: &Remote, script: &str) -> BlobDigest {
    upload_as(remote, &sh(script), Action::default(), &SHA256.empty()).await
}

/// Uploads an action; its input root is in the store.
pub(crate) async fn upload_as(
    remote: &Remote,
    command: &Command,
    action: Action,
    root: &BlobDigest,
) -> BlobDigest {
    let (digest, blobs) = action_of(SHA256, command, action, root);
    remote.upload(&blobs).await.unwrap();
    digest
}

/// Uploads one blob.
pub(crate) async fn put(remote: &Remote, content: impl Into<Vec<u8>>) -> BlobDigest {
    let content: Vec<u8> = content.into();
    let digest = SHA256.digest(&content);
    remote.upload(&[(digest, Source::Bytes(content.into()))].into()).await.unwrap();
    digest
}

/// Executes and waits meanwhile.
pub(crate) fn execute(remote: &Remote, action: BlobDigest) -> JoinHandle<Result<Executed, RemoteError>> {
    let remote = remote.clone();
    tokio::spawn(async move { remote.execute(&action, false, 0, |_, _| {}).await })
}

/// Executes to the end; the response.
pub(crate) async fn executed(remote: &Remote, action: BlobDigest) -> ExecuteResponse {
    let ended = tokio::time::timeout(2 * SOON, execute(remote, action)).await;
    ended.expect("the execution ends").unwrap().unwrap().response
}

/// Begins an execution; the operation's name and its stream.
pub(crate) async fn begin(remote: &Remote, action: &BlobDigest) -> (String, Streaming<Operation>) {
    let request =
        ExecuteRequest { action_digest: Some(reapi::digest::to_proto(action)), ..ExecuteRequest::default() };
    let mut stream = remote.execution().execute(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert!(!first.done, "{first:?}");
    (first.name, stream)
}

/// The response at the end of a stream.
pub(crate) async fn ended(mut stream: Streaming<Operation>) -> ExecuteResponse {
    let last = async {
        loop {
            let operation = stream.message().await.unwrap().expect("the stream ends with what is done");
            if operation.done {
                return response(operation);
            }
        }
    };
    tokio::time::timeout(2 * SOON, last).await.expect("the execution ends")
}

fn response(operation: Operation) -> ExecuteResponse {
    use prost::Message as _;
    let Some(reapi::longrunning::operation::Result::Response(any)) = operation.result else {
        panic!("{} is done without a response", operation.name)
    };
    ExecuteResponse::decode(any.value.as_slice()).unwrap()
}

/// What the command wrote to stdout; it succeeded.
pub(crate) async fn stdout(remote: &Remote, response: &ExecuteResponse) -> String {
    assert_eq!(response.status.as_ref().map_or(0, |status| status.code), 0, "{response:#?}");
    let result = response.result.as_ref().unwrap();
    assert_eq!(result.exit_code, 0, "{}", String::from_utf8_lossy(&result.stderr_raw));
    let content = match &result.stdout_digest {
        Some(digest) if result.stdout_raw.is_empty() && digest.size_bytes > 0 => {
            remote.read(&reapi::digest::from_proto(digest, SHA256).unwrap()).await.unwrap()
        }
        Some(_) | None => result.stdout_raw.clone(),
    };
    String::from_utf8(content).unwrap()
}

/// The records of every execution, in order.
pub(crate) async fn histories(farm: &Farm) -> BTreeMap<String, Vec<ExecutionRecord>> {
    let (_, last) = farm.bus().stream_positions(stream::ACTIONS).await.unwrap();
    let mut follower =
        Follower::new(farm.bus(), stream::ACTIONS, ActionSubject::ALL, Start::After(Sequence(0)));
    let mut executions: BTreeMap<String, Vec<ExecutionRecord>> = BTreeMap::new();
    while follower.cursor() < last {
        for stored in follower.next(1000).await {
            let record = stored.execution().unwrap();
            executions.entry(record.execution.key().to_string()).or_default().push(record);
        }
    }
    executions
}

/// The end of the only execution, of which no copies were started and nobody's priority was raised: ACTION_ACCEPTED, perhaps
/// ACTION_REQUEUED of each next attempt, one ACTION_FINISHED.
pub(crate) async fn only_end(farm: &Farm) -> ExecutionRecord {
    let histories = histories(farm).await;
    assert_eq!(histories.len(), 1, "{histories:#?}");
    let records = histories.into_values().next().unwrap();
    let (last, before) = records.split_last().unwrap();
    assert!(last.outcome().is_some(), "{records:#?}");
    let mut attempt = 0;
    for record in before {
        attempt += 1;
        let fits = match record.phase {
            ExecutionPhase::Accepted => attempt == 1,
            ExecutionPhase::Requeued { .. } => attempt > 1,
            ExecutionPhase::Hedged
            | ExecutionPhase::CopyEnded { .. }
            | ExecutionPhase::Raised
            | ExecutionPhase::Finished(_) => false,
        };
        assert!(fits && record.attempt.0 == attempt, "{records:#?}");
    }
    assert_eq!(last.attempt.0, attempt, "{records:#?}");
    last.clone()
}

/// A place outside that actions may write to.
#[derive(Debug, Clone)]
pub(crate) struct Outside(PathBuf);

impl Outside {
    /// In the farm's folder.
    pub(crate) fn of(farm: &Farm) -> Self {
        let folder = farm.folder().join("outside");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        Self(folder)
    }

    /// Notes that it runs, and goes on when it may; its output is `kept`, and `out` on stdout.
    pub(crate) fn script(&self) -> String {
        let folder = self.0.display();
        format!(
            "echo run >> {folder}/runs; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo kept > kept; echo out"
        )
    }

    /// Lets the script go on.
    pub(crate) fn go(&self) {
        fs::write(self.0.join("go"), "").unwrap();
    }

    /// How often it ran.
    pub(crate) fn runs(&self) -> usize {
        fs::read_to_string(self.0.join("runs")).unwrap_or_default().lines().count()
    }

    /// Returns when it has begun so many times.
    pub(crate) async fn begun(&self, times: usize) {
        until("the action runs", SOON, || self.runs() >= times).await;
    }

    /// Where it is. A script that runs is known by it.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Processes with this text on their command line.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let ids = fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let with = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text) && farm::alive(*pid)
    };
    ids.filter(with).collect()
}
