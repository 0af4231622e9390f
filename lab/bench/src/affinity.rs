//! Benefit of routing actions to executors that ran similar ones: compiles a real project repeatedly after changes.
//!
//! Each C file is an action whose inputs are that file and all headers. Executors share only the farm's store. Each
//! round after the first changes every C file and no header.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Instant,
};

use command_line::failure::say;
use futures::{StreamExt as _, TryStreamExt as _};
use model::{BlobDigest, DigestFunction};
use reapi::execution::{Action, Command, command::EnvironmentVariable};
use remote::action_of;

use crate::{
    error::BenchError,
    farm::BenchFarm,
    figures::Figures,
    shell::{Ran, Shell},
    statistics::mean,
    workspaces,
};

const EXECUTORS: usize = 4;
const ROUNDS: usize = 6;
/// Concurrent actions: half of the slots, so that the scheduler has a choice.
const IN_FLIGHT: usize = 4;
const FUNCTION: DigestFunction = DigestFunction::Sha256;

/// Runs the scenario with the C project in `project`; `None` without a project.
pub(crate) async fn measure(project: Option<&Path>) -> Result<Option<Figures>, BenchError> {
    let Some(project) = project else {
        say("skipping affinity: set --project to the sources of a C project");
        return Ok(None);
    };
    let files = workspaces::sources(project)?;
    say("compiling a project on four executors, with and without affinity");
    let mut figures = Figures::default();
    figures.field("files", files.len());
    for (key, setting) in [("on", "true"), ("off", "false")] {
        figures.part(key, way(project, &files, (key, setting)).await?);
    }
    Ok(Some(figures))
}

/// Figures of one way of routing in the rounds after the first.
async fn way(
    project: &Path,
    files: &[PathBuf],
    (affinity, setting): (&str, &str),
) -> Result<Figures, BenchError> {
    let farm = BenchFarm::of_actions(&[("FOREBAY_ACTION_AFFINITY", setting)]).await?;
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
    let same = 100.0 * same as f64 / later.len().max(1) as f64;
    let fetch = mean(later.iter().map(|ran| ran.fetched * 1000.0));
    let action = mean(later.iter().map(|ran| ran.took.as_secs_f64() * 1000.0));
    let first = format!("affinity {affinity}, {} files: same executor", files.len());
    let mut figures = Figures::default();
    figures.figure("same_percent", &first, same, "%");
    figures.figure("fetch_ms", &format!("affinity {affinity}, inputs of an action"), fetch, "ms");
    figures.figure("action_ms", &format!("affinity {affinity}, an action"), action, "ms");
    figures.figure("round_seconds", &format!("affinity {affinity}, a round"), mean(seconds), "s");
    Ok(figures)
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
