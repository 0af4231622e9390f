//! `forebay policy`: the decisions of the live services, with JSON lines as input and output.

use std::{
    io::{BufRead as _, Write as _},
    process::ExitCode,
};

use clap::{Args, Subcommand};
use command_line::{
    failure::{FAILED, Failure, USAGE},
    stdout,
};
use model::{Esu, Occupancy, ToolCall, WorkspaceKind};
use policy::workspace::{IdleWorkspaces, keys};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

const DEQUEUE_HELP: &str = "\
Example:
  echo '{\"builds\":[{\"id\":\"a\",\"occupancy\":{\"x86\":10}}],\"target\":{\"x86\":100},\"in_progress\":{\"x86\":50}}' |
      forebay policy dequeue
  {\"dequeue\":[\"a\"]}

This is Algorithm 1 of Wang et al., ISSTA 2020, and nothing else. The live scheduler also limits an estimate
to the maximum that a group can ever have, and a group with nothing in progress may start its first build regardless of
the target.

builds: the head of a group's queue, in order, with the expected ESU of each build by executor type.
target, in_progress: ESU by executor type; a missing type is 0.
An invalid line results in {\"error\":\"...\"} and exit code 2.";

const WORKSPACE_HELP: &str = "\
Example:
  echo '{\"workspaces\":[{\"id\":\"w1\",\"busy\":false,\"last_build\":{\"branch\":\"main\",\"flags\":[\"-x\"],
        \"targets\":[\"a/b:t\"],\"tool_version\":\"7\",\"command\":\"build\"}}],
        \"build\":{\"branch\":\"dev\",\"flags\":[\"-x\"],\"targets\":[\"a/b:u\"],\"tool_version\":\"7\"}}' | tr -d '\\n' |
      forebay policy workspace
  {\"kind\":\"prefix\",\"workspace\":\"w1\"}

kind: exact (same branch, flags, targets and tool version), prefix (every target shares a target or package with the
last build of one workspace), or new. Among several workspaces, the one that shares most is chosen, then the last one in the
list, which counts as the most recent.";

/// Options of `forebay policy`.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    decision: Decision,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Decision {
    /// Decide which builds at the head of a queue may start (Algorithm 1)
    #[command(after_help = DEQUEUE_HELP)]
    Dequeue,
    /// Choose the workspace of a build
    #[command(after_help = WORKSPACE_HELP)]
    Workspace,
}

#[derive(Debug, Deserialize)]
struct DequeueLine {
    builds: Vec<QueuedBuild>,
    #[serde(default)]
    target: Occupancy,
    #[serde(default)]
    in_progress: Occupancy,
}

#[derive(Debug, Deserialize)]
struct QueuedBuild {
    id: String,
    #[serde(default)]
    occupancy: Occupancy,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
struct Dequeued {
    dequeue: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct WorkspaceLine {
    workspaces: Vec<GivenWorkspace>,
    build: GivenBuild,
}

#[derive(Debug, Deserialize)]
struct GivenWorkspace {
    id: String,
    #[serde(default)]
    busy: bool,
    #[serde(default)]
    last_build: Option<GivenBuild>,
}

/// The fields of a build that affect the choice of a workspace; others are ignored.
#[derive(Debug, Deserialize)]
struct GivenBuild {
    #[serde(default)]
    branch: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    tool_version: Option<String>,
    #[serde(default)]
    command: Option<String>,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
struct Chosen {
    kind: WorkspaceKind,
    workspace: Option<String>,
}

impl GivenBuild {
    fn call(self) -> ToolCall {
        ToolCall {
            command: self.command.unwrap_or_default(),
            flags: self.flags,
            targets: self.targets,
            tool_version: self.tool_version.unwrap_or_default(),
            branch: self.branch.unwrap_or_default(),
            ..ToolCall::default()
        }
    }
}

/// Answers each line of stdin with a line on stdout.
pub(crate) fn run(args: &PolicyArgs) -> Result<ExitCode, Failure> {
    match args.decision {
        Decision::Dequeue => each_line(|line| dequeue(&line)),
        Decision::Workspace => each_line(|line| Ok(workspace(line))),
    }
}

fn each_line<Q: DeserializeOwned, A: Serialize>(
    decide: impl Fn(Q) -> Result<A, String>,
) -> Result<ExitCode, Failure> {
    #[derive(Serialize)]
    struct Refused {
        error: String,
    }
    let mut code = ExitCode::SUCCESS;
    for line in std::io::stdin().lock().split(b'\n') {
        let line = line.map_err(|error| Failure::new(FAILED, "cannot read stdin", &error))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(&line).map_err(|error| error.to_string()).and_then(&decide) {
            Ok(answer) => stdout::json(&answer)?,
            Err(error) => {
                code = ExitCode::from(USAGE);
                stdout::json(&Refused { error })?;
            }
        }
    }
    // The reader may have closed stdout.
    let _ = std::io::stdout().flush();
    Ok(code)
}

fn dequeue(line: &DequeueLine) -> Result<Dequeued, String> {
    for build in &line.builds {
        if let Some((kind, amount)) = build.occupancy.iter().find(|(_, amount)| *amount < Esu::ZERO) {
            return Err(format!(
                "invalid occupancy {amount} ESU of {kind} in build {:?}: must be at least 0",
                build.id
            ));
        }
    }
    let queue = line.builds.iter().map(|build| &build.occupancy);
    let places = policy::dequeue(queue, &line.target, &line.in_progress);
    let id = |place: usize| line.builds.get(place).map(|build| build.id.clone());
    Ok(Dequeued { dequeue: places.into_iter().filter_map(id).collect() })
}

fn workspace(line: WorkspaceLine) -> Chosen {
    let mut idle = IdleWorkspaces::default();
    for given in line.workspaces.into_iter().filter(|given| !given.busy) {
        idle.insert(given.id, given.last_build.map(|build| keys(&[], &build.call()).workspace));
    }
    match idle.choose(&keys(&[], &line.build.call())) {
        Some((kind, id)) => Chosen { kind, workspace: Some(id) },
        None => Chosen { kind: WorkspaceKind::New, workspace: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str) -> Chosen {
        workspace(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn lines_are_answered_by_the_live_functions() {
        let line = r#"{"builds":[{"id":"a","occupancy":{"x86":60}},{"id":"b","occupancy":{"x86":0.5}},{"id":"c"}],
            "target":{"x86":100},"in_progress":{"x86":50}}"#;
        assert_eq!(dequeue(&serde_json::from_str(line).unwrap()).unwrap().dequeue, ["c"]);
        let found = chosen(
            r#"{"workspaces":[{"id":"w","busy":true,"last_build":{"targets":["a:b"]}},{"id":"v","last_build":null}],
                "build":{"targets":["a:b"],"tool_version":null}}"#,
        );
        assert_eq!(found, Chosen { kind: WorkspaceKind::New, workspace: None });
    }

    #[test]
    fn nonsense_is_refused() {
        let line = r#"{"builds":[{"id":"a","occupancy":{"x86":-1}}]}"#;
        assert!(dequeue(&serde_json::from_str(line).unwrap()).unwrap_err().contains("at least 0"));
        assert!(serde_json::from_str::<DequeueLine>(r#"{"builds":[],"target":{"x86":1e99}}"#).is_err());
    }
}
