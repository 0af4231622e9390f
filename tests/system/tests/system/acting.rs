//! Actions for tests, and the invariants of each.

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

/// Services that run actions.
pub(crate) const ACTING: [&str; 3] = ["gateway", "scheduler", "executor"];
/// Digest function of all blobs in these tests.
pub(crate) const SHA256: DigestFunction = DigestFunction::Sha256;

/// Configures a farm that runs actions and nothing else, without a sandbox: effects outside are visible. Leases are
/// long: a restarted executor releases those of its predecessor immediately.
pub(crate) fn builder() -> Builder {
    Farm::builder().only(&ACTING).env("FOREBAY_SANDBOX", "none").lease_ttl(10)
}

/// Creates a client of the farm's gateway.
pub(crate) async fn remote(farm: &Farm) -> Remote {
    Remote::connect(&farm.grpc_url(), "", SHA256).await.unwrap()
}

/// Creates a command that runs a shell script and may leave the output `kept`.
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

/// Uploads an action whose input root is in the store.
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

pub(crate) async fn put(remote: &Remote, content: impl Into<Vec<u8>>) -> BlobDigest {
    let content: Vec<u8> = content.into();
    let digest = SHA256.digest(&content);
    remote.upload(&[(digest, Source::Bytes(content.into()))].into()).await.unwrap();
    digest
}

/// Executes an action in a background task.
pub(crate) fn execute(remote: &Remote, action: BlobDigest) -> JoinHandle<Result<Executed, RemoteError>> {
    let remote = remote.clone();
    tokio::spawn(async move { remote.execute(&action, false, 0, |_, _| {}).await })
}

/// Executes an action to its end and returns the response.
pub(crate) async fn executed(remote: &Remote, action: BlobDigest) -> ExecuteResponse {
    let ended = tokio::time::timeout(2 * SOON, execute(remote, action)).await;
    ended.expect("the execution ends").unwrap().unwrap().response
}

/// Begins an execution; returns the operation's name and its stream.
pub(crate) async fn begin(remote: &Remote, action: &BlobDigest) -> (String, Streaming<Operation>) {
    let request =
        ExecuteRequest { action_digest: Some(reapi::digest::to_proto(action)), ..ExecuteRequest::default() };
    let mut stream = remote.execution().execute(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert!(!first.done, "{first:?}");
    (first.name, stream)
}

/// Reads a stream to its end and returns the response.
pub(crate) async fn ended(mut stream: Streaming<Operation>) -> ExecuteResponse {
    let last = async {
        loop {
            let operation =
                stream.message().await.unwrap().expect("the stream ends with a finished operation");
            if operation.done {
                return response(operation);
            }
        }
    };
    tokio::time::timeout(2 * SOON, last).await.expect("the execution ends")
}

pub(crate) fn response(operation: Operation) -> ExecuteResponse {
    use prost::Message as _;
    let Some(reapi::longrunning::operation::Result::Response(any)) = operation.result else {
        panic!("{} is done without a response", operation.name)
    };
    ExecuteResponse::decode(any.value.as_slice()).unwrap()
}

/// Asserts that the action succeeded, and returns its standard output.
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

/// Returns the records of every execution, in stream order.
pub(crate) async fn histories(farm: &Farm) -> BTreeMap<String, Vec<ExecutionRecord>> {
    let (_, last) = farm.bus().stream(stream::ACTIONS).positions().await.unwrap();
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

/// Returns the last record of the only execution. Asserts that it had no copies and no raised priority:
/// ACTION_ACCEPTED, ACTION_REQUEUED for each further attempt, one ACTION_FINISHED.
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

/// A folder outside the working directories that actions may write to.
#[derive(Debug, Clone)]
pub(crate) struct Outside(PathBuf);

impl Outside {
    /// Creates it in the farm's folder.
    pub(crate) fn of(farm: &Farm) -> Self {
        let folder = farm.folder().join("outside");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        Self(folder)
    }

    /// Returns a script that records its start, and continues after `go`; its outputs are `kept`,
    /// and `out` on stdout.
    pub(crate) fn script(&self) -> String {
        let folder = self.0.display();
        format!(
            "echo run >> {folder}/runs; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo kept > kept; echo out"
        )
    }

    /// Lets the script continue.
    pub(crate) fn go(&self) {
        fs::write(self.0.join("go"), "").unwrap();
    }

    /// Counts the runs of the script.
    pub(crate) fn runs(&self) -> usize {
        fs::read_to_string(self.0.join("runs")).unwrap_or_default().lines().count()
    }

    /// Returns when the script has started `times` times.
    pub(crate) async fn begun(&self, times: usize) {
        until("the action runs", SOON, || self.runs() >= times).await;
    }

    /// Path of the folder, by which processes of the script are found.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// The text with a number of this test run at its end, also as more decimals of a number. Other runs on the machine, such as
/// those of another checkout, have no process with it on its command line.
pub(crate) fn own(text: &str) -> String {
    format!("{text}{:07}", std::process::id())
}

/// Returns processes with this text on their command line, among all of the machine: it is [`own`], or a path of the test.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let ids = fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let with = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text) && farm::alive(*pid)
    };
    ids.filter(with).collect()
}
