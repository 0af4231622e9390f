//! `forebay bench workspaces`: measures the benefit of warm workspaces for a real project.
//!
//! The project becomes a repository with several branches. A stream of builds, each of a new commit on one of the
//! branches with one of several sets of targets, runs twice on the same farm, in turn: once in empty workspaces, and
//! once in warm ones if available. Both runs use the same stream.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use clap::Args;
use command_line::failure::say;
use model::{
    BuildId, BuildKey, BuildRecord, BuildRequest, Context, Outcome, State, ToolCall, WorkspaceKind,
    WorkspaceUse,
};
use policy::Random;
use serde::Serialize;

use crate::{
    error::BenchError, farm::BenchFarm, figures::Figures, memory::Memory, report::BenchReport,
    statistics::mean,
};

const BRANCHES: usize = 4;
/// Number of consecutive builds of each way, in turn.
const TURN: usize = 10;
const LIMIT: Duration = Duration::from_secs(600);

/// Options of `forebay bench workspaces`.
#[derive(Debug, Args)]
pub(crate) struct WorkspacesArgs {
    /// Folder with the sources of a C project that `make` builds
    #[arg(long, value_name = "DIR")]
    project: PathBuf,
    /// Command to run, without targets
    #[arg(long, value_name = "COMMAND", default_value = "make")]
    make: String,
    /// Set of targets, separated by commas (repeatable) [default: all]
    #[arg(long, value_name = "TARGETS")]
    targets: Vec<String>,
    /// Number of builds in the stream
    #[arg(long, value_name = "N", default_value_t = 60)]
    builds: usize,
    /// Number of workspaces of the worker
    #[arg(long, value_name = "N", default_value_t = 6)]
    workspaces: u16,
    /// Write builds and their usage as JSON lines, for `examples/fit` of the occupancy model
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// A planned build of the stream.
struct Planned {
    revision: String,
    branch: String,
    targets: Vec<String>,
}

/// Runs `forebay bench workspaces`.
pub(crate) async fn measure(args: &WorkspacesArgs) -> Result<BenchReport, BenchError> {
    let folder =
        tempfile::tempdir().map_err(|error| BenchError::new("cannot create a temporary folder", &error))?;
    let repository = folder.path().join("project");
    let stream = plan(args, &repository)?;
    let folders = serde_json::json!([folder.path()]).to_string();
    let settings = [("FOREBAY_CONTEXT_PATHS", folders.as_str())];
    let farm = BenchFarm::start_with(args.workspaces, &[], &settings).await?;
    let (mut fresh, mut warm) = (Vec::new(), Vec::new());
    for (turn, part) in stream.chunks(TURN).enumerate() {
        say(&format!("builds {} to {} of {}", turn * TURN + 1, turn * TURN + part.len(), stream.len()));
        for planned in part {
            fresh.push(build(&farm, args, &repository, planned, WorkspaceUse::Fresh).await?);
        }
        for planned in part {
            warm.push(build(&farm, args, &repository, planned, WorkspaceUse::Warm).await?);
        }
    }
    farm.stop().await;
    if let Some(file) = &args.record {
        record(file, fresh.iter().chain(&warm))?;
    }
    Ok(report(&fresh, &warm))
}

fn report(fresh: &[BuildRecord], warm: &[BuildRecord]) -> BenchReport {
    let (fresh_seconds, warm_seconds) = (mean_seconds(fresh.iter()), mean_seconds(warm.iter()));
    let mut figures = Figures::default();
    figures.field("builds", warm.len());
    figures.figure("fresh_seconds", "a build in an empty workspace", fresh_seconds, "s");
    figures.figure("warm_seconds", "a build with warm workspaces", warm_seconds, "s");
    figures.figure("saved_percent", "saved", 100.0 * (1.0 - warm_seconds / fresh_seconds), "%");
    let of = |kind: WorkspaceKind| {
        warm.iter().filter(move |record| {
            record.invocation().and_then(|run| run.workspace_kind).unwrap_or(WorkspaceKind::New) == kind
        })
    };
    let mut by_kind = Figures::default();
    for (kind, key, name) in [
        (WorkspaceKind::Exact, "exact_percent", "matched by branch, flags and targets"),
        (WorkspaceKind::Prefix, "prefix_percent", "matched by target prefixes"),
        (WorkspaceKind::New, "new_percent", "new workspaces"),
    ] {
        let count = of(kind).count();
        figures.figure(key, name, 100.0 * count as f64 / warm.len().max(1) as f64, "%");
        if count > 0 {
            let name = format!("a build in a workspace of kind {}", kind.as_str());
            by_kind.figure(kind.as_str(), &name, mean_seconds(of(kind)), "s");
        }
    }
    figures.part("seconds_by_kind", by_kind);
    BenchReport::new(&format!(", {} builds each way", warm.len()), figures, Memory::default())
}

/// Mean seconds from the claim to the end, including the preparation of the workspace.
fn mean_seconds<'a>(records: impl Iterator<Item = &'a BuildRecord>) -> f64 {
    mean(
        records
            .filter_map(|record| Some(record.at_ms.since(record.invocation()?.started_at_ms).as_secs_f64())),
    )
}

async fn build(
    farm: &BenchFarm,
    args: &WorkspacesArgs,
    repository: &Path,
    planned: &Planned,
    workspace: WorkspaceUse,
) -> Result<BuildRecord, BenchError> {
    let mut command: Vec<String> = args.make.split_whitespace().map(str::to_owned).collect();
    // All words of the command are flags, so that a file after `-f` does not count as a target.
    let (program, flags) =
        command.split_first().map_or(("", [].as_slice()), |(p, flags)| (p.as_str(), flags));
    let tool = ToolCall {
        command: program.to_owned(),
        flags: flags.to_vec(),
        targets: planned.targets.clone(),
        branch: planned.branch.clone(),
        ..ToolCall::default()
    };
    command.extend(planned.targets.iter().cloned());
    let id = BuildId::generate();
    let request = BuildRequest {
        id: Some(id),
        command,
        context: Context::Git {
            url: repository.display().to_string(),
            revision: planned.revision.clone(),
            patch: None,
        },
        tool: Some(tool),
        workspace: Some(workspace),
        ..BuildRequest::default()
    };
    let failed = |error: &dyn std::error::Error| BenchError::new("a build of the benchmark", error);
    farm.client.create(&farm.group, &request, None).await.map_err(|error| failed(&error))?;
    let key = BuildKey { group: farm.group.clone(), id };
    let ended = tokio::time::timeout(LIMIT, async {
        loop {
            let view = farm.client.get(&key).await.map_err(|error| failed(&error))?;
            if view.state == State::Finished {
                return Ok::<_, BenchError>(view.record);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let record = ended.await.map_err(|error| failed(&error))??;
    match record.result() {
        Some(result) if result.outcome == Outcome::Succeeded => Ok(record),
        result => Err(BenchError::plain(format!("a build of the benchmark did not succeed: {result:?}"))),
    }
}

/// Creates the repository, its branches and the stream of commits, each of which changes one source file.
fn plan(args: &WorkspacesArgs, repository: &Path) -> Result<Vec<Planned>, BenchError> {
    let sources = sources(&args.project)?;
    run(Command::new("cp").arg("-a").arg(&args.project).arg(repository))?;
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(repository).args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
        run(command.args(arguments))
    };
    git(&["init", "-q", "-b", "branch-0"])?;
    git(&["add", "-A"])?;
    git(&["commit", "-q", "-m", "project"])?;
    for branch in 1..BRANCHES {
        git(&["branch", &format!("branch-{branch}")])?;
    }
    let mut random = Random::new(1);
    let mut random_index = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap_or_default();
    let mut stream = Vec::with_capacity(args.builds);
    for number in 0..args.builds {
        let branch = format!("branch-{}", random_index(BRANCHES));
        git(&["checkout", "-q", &branch])?;
        let changed = sources.get(random_index(sources.len())).cloned().unwrap_or_default();
        let path = repository.join(&changed);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, format!("{text}\n/* change {number} */\n"))
            .map_err(|error| BenchError::new("changing the project", &error))?;
        git(&["commit", "-q", "-a", "-m", "change"])?;
        let targets = args.targets.get(random_index(args.targets.len().max(1)));
        stream.push(Planned {
            revision: git(&["rev-parse", "HEAD"])?,
            branch,
            targets: targets.map_or("all", String::as_str).split(',').map(str::to_owned).collect(),
        });
    }
    Ok(stream)
}

/// The project's C files, relative to its folder.
pub(crate) fn sources(project: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let named =
        |error: &dyn std::error::Error| BenchError::usage(format!("--project {}", project.display()), error);
    let (mut folders, mut found) = (vec![project.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|error| named(&error))? {
            let path = entry.map_err(|error| named(&error))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "c") {
                found.extend(path.strip_prefix(project).map(Path::to_owned));
            }
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(BenchError::Usage(format!(
            "--project {}: the folder contains no C files",
            project.display()
        )));
    }
    Ok(found)
}

pub(crate) fn run(command: &mut Command) -> Result<String, BenchError> {
    let what = format!("{command:?}");
    let output = command.output().map_err(|error| BenchError::new(what.clone(), &error))?;
    if !output.status.success() {
        return Err(BenchError::plain(format!("{what}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn record<'a>(file: &Path, records: impl Iterator<Item = &'a BuildRecord>) -> Result<(), BenchError> {
    #[derive(Serialize)]
    struct Recorded<'a> {
        command: &'a str,
        flags: &'a [String],
        targets: &'a [String],
        group: &'a str,
        priority: &'a str,
        usage: &'a model::Occupancy,
    }
    let mut text = String::new();
    for record in records {
        let (build, call) = (&record.build, record.build.tool_call());
        let Some(result) = record.result() else { continue };
        let recorded = Recorded {
            command: &call.command,
            flags: &call.flags,
            targets: &call.targets,
            group: build.group.as_str(),
            priority: build.priority.as_str(),
            usage: &result.usage,
        };
        match serde_json::to_string(&recorded) {
            Ok(line) => text.push_str(&line),
            Err(error) => unreachable!("a build cannot be serialized: {error}"),
        }
        text.push('\n');
    }
    std::fs::write(file, text).map_err(|error| BenchError::new(format!("{}", file.display()), &error))
}
