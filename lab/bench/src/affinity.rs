//! Benefit of routing actions to executors that ran similar ones: compiles a real project repeatedly after changes.
//!
//! Each C file is an action whose inputs are that file and all headers. Executors share only the farm's store. Each
//! round after the first changes every C file and no header.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Instant,
};

use futures::{StreamExt as _, TryStreamExt as _};
use model::{BlobDigest, DigestFunction};
use reapi::execution::{Action, Command, command::EnvironmentVariable};
use remote::action_of;
use serde::Serialize;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    progress::say,
    report::line,
    shell::{Ran, Shell, mean},
    workspaces,
};

const EXECUTORS: usize = 4;
const ROUNDS: usize = 6;
/// Concurrent actions: half of the slots, so that the scheduler has a choice.
const IN_FLIGHT: usize = 4;
const FUNCTION: DigestFunction = DigestFunction::Sha256;

/// Figures of the scenario.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Affinity {
    files: usize,
    on: Way,
    off: Way,
}

/// Figures of one way of routing in the rounds after the first.
#[derive(Debug, Clone, Serialize)]
struct Way {
    /// Percent of actions that ran on the same executor as in the previous round.
    same_percent: f64,
    /// Mean milliseconds to prepare the inputs of an action.
    fetch_ms: f64,
    /// Mean milliseconds of an action as measured by its client.
    action_ms: f64,
    /// Mean duration of a round in seconds.
    round_seconds: f64,
}

/// Runs the scenario with the C project in `project`.
pub(crate) async fn measure(project: &Path) -> Result<Affinity, BenchError> {
    let files = workspaces::sources(project)?;
    say("compiling a project on four executors, with and without affinity");
    let on = way(project, &files, "true").await?;
    let off = way(project, &files, "false").await?;
    Ok(Affinity { files: files.len(), on, off })
}

async fn way(project: &Path, files: &[PathBuf], affinity: &str) -> Result<Way, BenchError> {
    let farm = BenchFarm::of_actions(&[("FOREBAY_ACTION_AFFINITY", affinity)]).await?;
    let mut executors = Vec::new();
    for number in 0..EXECUTORS {
        let slots = [("FOREBAY_EXECUTOR_SLOTS", "2")];
        executors.push(farm.executor(&format!("executor-{number}"), &slots).await?);
    }
    let copy = farm.open_folder("copies")?.join("project");
    workspaces::run(std::process::Command::new("cp").arg("-a").arg(project).arg(&copy))?;
    let shell = Shell::new(&farm, 2).await?;
    let mut before: BTreeMap<&Path, String> = BTreeMap::new();
    let (mut later, mut same, mut seconds) = (Vec::new(), 0, Vec::new());
    for round in 0..ROUNDS {
        let actions = prepare(&shell, &copy, files, round).await?;
        let begun = Instant::now();
        let ran: Vec<(&Path, Ran)> = futures::stream::iter(actions)
            .map(async |(file, action)| Ok::<_, BenchError>((file, shell.execute(&action).await?)))
            .buffer_unordered(IN_FLIGHT)
            .try_collect()
            .await?;
        if round > 0 {
            seconds.push(begun.elapsed().as_secs_f64());
        }
        for (file, ran) in ran {
            let last = before.insert(file, ran.executor.clone());
            if round > 0 {
                same += usize::from(last.as_ref() == Some(&ran.executor));
                later.push(ran);
            }
        }
    }
    farm.stop().await;
    Ok(Way {
        same_percent: 100.0 * same as f64 / later.len().max(1) as f64,
        fetch_ms: mean(later.iter().map(|ran| ran.fetched * 1000.0)),
        action_ms: mean(later.iter().map(|ran| ran.took.as_secs_f64() * 1000.0)),
        round_seconds: mean(seconds),
    })
}

/// Changes every file, and uploads the actions that compile them.
async fn prepare<'a>(
    shell: &Shell,
    folder: &Path,
    files: &'a [PathBuf],
    round: usize,
) -> Result<Vec<(&'a Path, BlobDigest)>, BenchError> {
    let mut actions = Vec::with_capacity(files.len());
    for file in files {
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        std::fs::write(&path, format!("{text}\n/* round {round} */\n"))
            .map_err(|error| BenchError::new("changing the project", &error))?;
        let globs = ["**/*.h".to_owned(), file.display().to_string()];
        let (root, mut blobs) = transfer::scan(folder, &globs, FUNCTION).await?;
        let (action, parts) = action_of(FUNCTION, &compile(file), Action::default(), &root);
        blobs.extend(parts);
        shell.remote()?.upload(&blobs).await?;
        actions.push((file.as_path(), action));
    }
    Ok(actions)
}

fn compile(file: &Path) -> Command {
    let (source, object) = (file.display().to_string(), file.with_extension("o").display().to_string());
    let path =
        EnvironmentVariable { name: "PATH".to_owned(), value: "/usr/local/bin:/usr/bin:/bin".to_owned() };
    let arguments = ["gcc", "-O2", "-I.", "-c", &source, "-o", &object].map(str::to_owned).to_vec();
    Command { arguments, environment_variables: vec![path], output_paths: vec![object], ..Command::default() }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, way) in [("on", &self.on), ("off", &self.off)] {
            let files = self.files;
            let first = format!("affinity {name}, {files} files: same executor");
            line(f, &first, Some(way.same_percent), "%")?;
            line(f, &format!("affinity {name}, inputs of an action"), Some(way.fetch_ms), "ms")?;
            line(f, &format!("affinity {name}, an action"), Some(way.action_ms), "ms")?;
            line(f, &format!("affinity {name}, a round"), Some(way.round_seconds), "s")?;
        }
        Ok(())
    }
}
