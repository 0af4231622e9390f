//! Actions that say where they are, and wait until they may go on.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use farm::{Farm, Machine, SOON};
use model::{ExecutionPhase, ExecutionRecord};
use reapi::execution::{
    Action, ExecuteRequest, ExecuteResponse, ExecutionPolicy, Platform, platform::Property,
};
use remote::Remote;

use crate::{
    acting::{self, SHA256, processes_with},
    check::until,
};

/// A folder outside that actions leave marks in.
#[derive(Debug, Clone)]
pub(crate) struct Marks(PathBuf);

impl Marks {
    /// In the farm's folder.
    pub(crate) fn of(farm: &Farm) -> Self {
        let folder = farm.folder().join("marks");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        Self(folder)
    }

    /// Notes that it runs and where, goes on when `name` may, and writes its name.
    pub(crate) fn script(&self, name: &str) -> String {
        let folder = self.0.display();
        format!(
            "echo {name} >> {folder}/order; echo $PWD >> {folder}/{name}.runs; \
             until [ -e {folder}/{name}.go ]; do sleep 0.02; done; echo {name}"
        )
    }

    /// Likewise, but the first run never ends. It is the first before it says that it runs.
    pub(crate) fn hanging_once(&self, name: &str) -> String {
        let folder = self.0.display();
        format!(
            "mkdir {folder}/{name}.first 2> /dev/null; first=$?; echo $PWD >> {folder}/{name}.runs; \
             while [ $first = 0 ]; do sleep 0.05; done; echo {name}"
        )
    }

    /// A command that only the first run of `name` executes.
    pub(crate) fn first(&self, command: &str, name: &str) -> String {
        format!("if mkdir {}/{name}.first 2> /dev/null; then {command}; fi", self.0.display())
    }

    /// Lets `name` go on.
    pub(crate) fn go(&self, name: &str) {
        fs::write(self.0.join(format!("{name}.go")), "").unwrap();
    }

    /// Working directories of its runs so far, in their order.
    pub(crate) fn runs(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join(format!("{name}.runs"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Names in the order in which they began.
    pub(crate) fn order(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("order")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns when it has begun so many times.
    pub(crate) async fn begun(&self, name: &str, times: usize) {
        until(&format!("{name} runs"), SOON, || self.runs(name).len() >= times).await;
    }

    /// Returns when nothing of these actions runs any more.
    pub(crate) async fn all_dead(&self, limit: Duration) {
        let text = self.path().display().to_string();
        until("all processes are dead", limit, || processes_with(&text).is_empty()).await;
    }

    /// Processes of these actions that live on a machine.
    pub(crate) fn alive_on(&self, machine: &Machine) -> Vec<u32> {
        let there = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder.starts_with(machine.data()))
        };
        processes_with(&self.path().display().to_string()).into_iter().filter(there).collect()
    }

    /// The one of `machines` that a run of `name` is on.
    pub(crate) fn holder(&self, name: &str, run: usize, machines: &[Machine]) -> usize {
        let place = self.runs(name)[run].clone();
        machines.iter().position(|machine| machine.has(&place)).unwrap_or_else(|| panic!("{place}"))
    }

    /// Where it is. A script that runs is known by it.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// An action that asks for these platform properties.
pub(crate) fn asking(properties: &[(&str, &str)]) -> Action {
    let properties = properties
        .iter()
        .map(|(name, value)| Property { name: (*name).into(), value: (*value).into() })
        .collect();
    Action { platform: Some(Platform { properties }), ..Action::default() }
}

/// Uploads the action of this script, which asks for these platform properties.
pub(crate) async fn upload_asking(
    remote: &Remote,
    script: &str,
    properties: &[(&str, &str)],
) -> model::BlobDigest {
    acting::upload_as(remote, &acting::sh(script), asking(properties), &SHA256.empty()).await
}

/// An execution that was accepted.
pub(crate) struct Begun {
    /// The operation.
    pub(crate) name: String,
    stream: tonic::Streaming<reapi::longrunning::Operation>,
}

impl Begun {
    /// Begins it, and returns as soon as it is accepted.
    pub(crate) async fn with_priority(remote: &Remote, action: &model::BlobDigest, priority: i32) -> Self {
        let request = ExecuteRequest {
            instance_name: remote.instance().to_owned(),
            action_digest: Some(reapi::digest::to_proto(action)),
            execution_policy: Some(ExecutionPolicy { priority }),
            ..ExecuteRequest::default()
        };
        let mut stream = remote.execution().execute(request).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap();
        Self { name: first.name, stream }
    }

    /// Likewise, with no word on its priority.
    pub(crate) async fn new(remote: &Remote, action: &model::BlobDigest) -> Self {
        Self::with_priority(remote, action, 0).await
    }

    /// Its response.
    pub(crate) async fn ended(self) -> ExecuteResponse {
        acting::ended(self.stream).await
    }

    /// What its command wrote; it succeeded.
    pub(crate) async fn stdout(self, remote: &Remote) -> String {
        acting::stdout(remote, &self.ended().await).await
    }
}

/// What happened to an execution, a word for each record.
pub(crate) fn phases(records: &[ExecutionRecord]) -> Vec<&'static str> {
    let word = |record: &ExecutionRecord| match record.phase {
        ExecutionPhase::Accepted => "accepted",
        ExecutionPhase::Requeued { .. } => "requeued",
        ExecutionPhase::Hedged => "hedged",
        ExecutionPhase::CopyEnded { .. } => "copy ended",
        ExecutionPhase::Raised => "raised",
        ExecutionPhase::Finished(_) => "finished",
    };
    records.iter().map(word).collect()
}

/// The records of the only execution there was.
pub(crate) async fn only_history(farm: &Farm) -> Vec<ExecutionRecord> {
    let histories: BTreeMap<String, Vec<ExecutionRecord>> = acting::histories(farm).await;
    assert_eq!(histories.len(), 1, "{histories:#?}");
    histories.into_values().next().unwrap()
}

/// The records of the execution that this operation names.
pub(crate) async fn history_of(farm: &Farm, operation: &str) -> Vec<ExecutionRecord> {
    let histories = acting::histories(farm).await;
    let found = histories.into_iter().find(|(key, _)| operation.ends_with(key.as_str()));
    found.unwrap_or_else(|| panic!("{operation} is not in the log")).1
}
