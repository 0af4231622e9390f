//! Actions that record where they run, and wait until they may continue.

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

/// A folder outside the working directories in which actions leave marks.
#[derive(Debug, Clone)]
pub(crate) struct Marks(PathBuf);

impl Marks {
    /// Creates it in the farm's folder.
    pub(crate) fn of(farm: &Farm) -> Self {
        let folder = farm.folder().join("marks");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        Self(folder)
    }

    /// Returns a script that records its working directory, continues after `go(name)`, and writes its name.
    pub(crate) fn script(&self, name: &str) -> String {
        let folder = self.0.display();
        format!(
            "echo {name} >> {folder}/order; echo $PWD >> {folder}/{name}.runs; \
             until [ -e {folder}/{name}.go ]; do sleep 0.02; done; echo {name}"
        )
    }

    /// Like [`Self::script`], but the first run never ends. It counts as the first before it records its start.
    pub(crate) fn hanging_once(&self, name: &str) -> String {
        let folder = self.0.display();
        format!(
            "mkdir {folder}/{name}.first 2> /dev/null; first=$?; echo $PWD >> {folder}/{name}.runs; \
             while [ $first = 0 ]; do sleep 0.05; done; echo {name}"
        )
    }

    /// Returns a command that only the first run of `name` executes.
    pub(crate) fn first(&self, command: &str, name: &str) -> String {
        format!("if mkdir {}/{name}.first 2> /dev/null; then {command}; fi", self.0.display())
    }

    /// Lets the script `name` continue.
    pub(crate) fn go(&self, name: &str) {
        fs::write(self.0.join(format!("{name}.go")), "").unwrap();
    }

    /// Returns the working directories of its runs so far, in their order.
    pub(crate) fn runs(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.join(format!("{name}.runs"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the names in the order in which they started.
    pub(crate) fn order(&self) -> Vec<String> {
        let text = fs::read_to_string(self.0.join("order")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns when `name` has started `times` times. What starts it may be a Bazel, which starts slowly.
    pub(crate) async fn begun(&self, name: &str, times: usize) {
        until(&format!("{name} runs"), 3 * SOON, || self.runs(name).len() >= times).await;
    }

    /// Returns when no process of these actions is alive.
    pub(crate) async fn all_dead(&self, limit: Duration) {
        let text = self.path().display().to_string();
        until("all processes are dead", limit, || processes_with(&text).is_empty()).await;
    }

    /// Returns live processes of these actions on a machine.
    pub(crate) fn alive_on(&self, machine: &Machine) -> Vec<u32> {
        let there = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder.starts_with(machine.data()))
        };
        processes_with(&self.path().display().to_string()).into_iter().filter(there).collect()
    }

    /// Returns the index in `machines` of the machine that executes a run of `name`.
    pub(crate) fn holder(&self, name: &str, run: usize, machines: &[Machine]) -> usize {
        let place = self.runs(name)[run].clone();
        machines.iter().position(|machine| machine.has(&place)).unwrap_or_else(|| panic!("{place}"))
    }

    /// Path of the folder, by which processes of the scripts are found.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Creates an action that requires these platform properties.
pub(crate) fn asking(properties: &[(&str, &str)]) -> Action {
    let properties = properties
        .iter()
        .map(|(name, value)| Property { name: (*name).into(), value: (*value).into() })
        .collect();
    Action { platform: Some(Platform { properties }), ..Action::default() }
}

/// Uploads the action of this script, which requires these platform properties.
pub(crate) async fn upload_asking(
    remote: &Remote,
    script: &str,
    properties: &[(&str, &str)],
) -> model::BlobDigest {
    acting::upload_as(remote, &acting::sh(script), asking(properties), &SHA256.empty()).await
}

/// An execution that was accepted.
pub(crate) struct Begun {
    /// Name of the operation.
    pub(crate) name: String,
    first: reapi::longrunning::Operation,
    stream: tonic::Streaming<reapi::longrunning::Operation>,
}

impl Begun {
    /// Begins the execution, and returns as soon as it is accepted.
    pub(crate) async fn with_priority(remote: &Remote, action: &model::BlobDigest, priority: i32) -> Self {
        let request = ExecuteRequest {
            instance_name: remote.instance().to_owned(),
            action_digest: Some(reapi::digest::to_proto(action)),
            execution_policy: Some(ExecutionPolicy { priority }),
            ..ExecuteRequest::default()
        };
        let mut stream = remote.execution().execute(request).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap();
        Self { name: first.name.clone(), first, stream }
    }

    /// Begins the execution with the default priority.
    pub(crate) async fn new(remote: &Remote, action: &model::BlobDigest) -> Self {
        Self::with_priority(remote, action, 0).await
    }

    /// Waits for the end and returns the response.
    pub(crate) async fn ended(self) -> ExecuteResponse {
        // It had ended already if the client asked late.
        if self.first.done { acting::response(self.first) } else { acting::ended(self.stream).await }
    }

    /// Waits for success and returns the output of the command.
    pub(crate) async fn stdout(self, remote: &Remote) -> String {
        acting::stdout(remote, &self.ended().await).await
    }
}

/// Returns one word for each record of an execution.
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

/// Returns the records of the only execution.
pub(crate) async fn only_history(farm: &Farm) -> Vec<ExecutionRecord> {
    let histories: BTreeMap<String, Vec<ExecutionRecord>> = acting::histories(farm).await;
    assert_eq!(histories.len(), 1, "{histories:#?}");
    histories.into_values().next().unwrap()
}

/// Returns the records of the execution that this operation names.
pub(crate) async fn history_of(farm: &Farm, operation: &str) -> Vec<ExecutionRecord> {
    let histories = acting::histories(farm).await;
    let found = histories.into_iter().find(|(key, _)| operation.ends_with(key.as_str()));
    found.unwrap_or_else(|| panic!("{operation} is not in the log")).1
}
