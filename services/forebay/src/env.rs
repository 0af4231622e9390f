//! `forebay env`: environments, the images that the farm makes and keeps by name.

mod layout;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use bus::EnvironmentChanged;
use clap::{Args, Subcommand};
use comfy_table::Table;
use command_line::{
    failure::{FAILED, Failure, USAGE, say},
    globals::Globals,
    stdout,
};
use model::{
    AuditKind, Environment, EnvironmentChange, EnvironmentDefinition, EnvironmentName, EnvironmentState,
    EnvironmentVersion, ImageReference, Millis,
};
use policy::environments::REFUSED;
use serde_json::json;
use settings::Settings;

use crate::{bytes_text::age, farm::Farm, file_argument, remote::RemoteArgs, style};

const EXAMPLES: &str = "\
Examples:
  forebay env add gcc-11 --file gcc-11.yaml
      proposes a version of the environment gcc-11; gcc-11.yaml says how its image is made, for example
          debian: bookworm
          packages: [gcc-11, libc6-dev]
          run: [\"ln -s gcc-11 /usr/bin/gcc\"]
  forebay env approve gcc-11 --follow
      approves it; a worker with build_environments = true makes the image
  forebay exec --platform env=gcc-11 -- gcc --version
      runs an action in the newest version; env=gcc-11@1 always means version 1
  forebay env add courses/java --image docker://registry.example.com/java:17 --approve
      an image that exists, for the group courses only
  podman pull localhost:8080/gcc-11:latest
      gateways serve what the farm made as a registry, at their HTTP address";

/// Time after which the state is read again, for a change that was missed.
const REPAIR: Duration = Duration::from_secs(10);

/// Options of `forebay env`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EnvArgs {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Debug, Subcommand)]
enum EnvCommand {
    /// Propose a version of an environment
    Add(Box<AddArgs>),
    /// List the environments, or the versions of one with their definitions
    List {
        /// Environment whose versions to list
        name: Option<EnvironmentName>,
    },
    /// Approve a version, so that its image is made
    Approve {
        #[command(flatten)]
        version: VersionArgs,
        /// Name of the reviewer, which is shown with the version
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Wait until the version is ready or has failed
        #[arg(long)]
        follow: bool,
    },
    /// Remove a version, or all; its number is not used again
    Rm {
        #[command(flatten)]
        version: VersionArgs,
    },
}

#[derive(Debug, Args)]
struct AddArgs {
    /// NAME for all groups, or GROUP/NAME for one
    name: EnvironmentName,
    /// File with the definition, in YAML or JSON
    #[arg(long, value_name = "FILE", required_unless_present_any = ["image", "layout"])]
    file: Option<PathBuf>,
    /// Image of a registry to use as it is
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["file", "layout"])]
    image: Option<ImageReference>,
    /// OCI image layout to upload and use as it is: a folder, or a tar archive of one
    #[arg(long, value_name = "PATH", conflicts_with = "file")]
    layout: Option<PathBuf>,
    /// Name of the author, which is shown with the version
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Approve the version at once
    #[arg(long)]
    approve: bool,
    /// Wait until the version is ready or has failed
    #[arg(long, requires = "approve")]
    follow: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// An environment, and perhaps one of its versions.
#[derive(Debug, Args)]
struct VersionArgs {
    /// NAME or GROUP/NAME, with @VERSION for one version
    #[arg(value_name = "NAME[@VERSION]", value_parser = versioned)]
    of: (EnvironmentName, Option<u32>),
}

fn versioned(text: &str) -> Result<(EnvironmentName, Option<u32>), String> {
    let (name, number) = match text.split_once('@') {
        Some((name, number)) => {
            let wrong = |_| format!("invalid version {number:?}: expected a number");
            (name, Some(number.parse().map_err(wrong)?))
        }
        None => (text, None),
    };
    Ok((name.parse().map_err(|error: model::ParseIdError| error.to_string())?, number))
}

/// Runs the chosen subcommand.
pub(crate) async fn run(args: EnvArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    match args.command {
        EnvCommand::Add(args) => add(*args, globals, settings).await,
        EnvCommand::List { name } => {
            list(name.as_ref(), &Farm::connect(globals, settings).await?, globals).await
        }
        EnvCommand::Approve { version: VersionArgs { of: (name, number) }, by, follow } => {
            let farm = Farm::connect(globals, settings).await?;
            approve(&name, (number, by), follow, &farm, globals).await
        }
        EnvCommand::Rm { version: VersionArgs { of: (name, number) } } => {
            let farm = Farm::connect(globals, settings).await?;
            let left = farm.call(async |client| client.remove_environment(&name, number).await).await?;
            record(&farm, "rm", (&name, number), "removed").await;
            if globals.json {
                stdout::json(&left)?;
            } else {
                match number {
                    Some(number) => say(&format!("removed version {number} of the environment {name}")),
                    None => say(&format!("removed the environment {name}")),
                }
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Records a change for operators.
async fn record(
    farm: &Farm,
    command: &str,
    (name, number): (&EnvironmentName, Option<u32>),
    change: &'static str,
) {
    let target = number.map_or_else(|| name.to_string(), |number| format!("{name}@{number}"));
    farm.record(AuditKind::Environment, &format!("forebay env {command}"), &target, Some(change)).await;
}

async fn add(args: AddArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    // Report invalid input before connecting to a farm.
    let definition = match (&args.file, args.image, &args.layout) {
        (Some(file), _, _) => read(file)?,
        (None, Some(image), _) => EnvironmentDefinition::Image(image),
        (None, None, Some(path)) => {
            let layout = layout::read(path)?;
            let remote = args.remote.connect(globals, settings).await?;
            layout.upload(&remote).await?;
            EnvironmentDefinition::Stored(layout.manifest)
        }
        (None, None, None) => {
            return Err(Failure::usage("expected one of --file, --image and --layout"));
        }
    };
    let (name, by) = (args.name, args.by);
    let farm = Farm::connect(globals, settings).await?;
    let proposing = async |client: &client::Client| {
        client.propose_environment(&name, definition.clone(), by.clone()).await
    };
    let (environment, number) = farm.call(proposing).await?;
    record(&farm, "add", (&name, Some(number)), "proposed").await;
    if args.approve {
        return approve(&name, (Some(number), by), args.follow, &farm, globals).await;
    }
    if globals.json {
        stdout::json(&environment)?;
    } else {
        say(&format!(
            "version {number} of the environment {name} waits for approval: forebay env approve {name}@{number}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a definition in YAML or JSON.
fn read(file: &Path) -> Result<EnvironmentDefinition, Failure> {
    let unreadable =
        |error: &dyn std::error::Error| Failure::new(USAGE, format!("cannot read {}", file.display()), error);
    let text = file_argument::text(file).map_err(|error| unreadable(&error))?;
    serde_norway::from_str(&text).map_err(|error| unreadable(&error))
}

async fn approve(
    name: &EnvironmentName,
    (number, by): (Option<u32>, Option<String>),
    follow: bool,
    farm: &Farm,
    globals: &Globals,
) -> Result<ExitCode, Failure> {
    let is_under_way = |version: &EnvironmentVersion| {
        matches!(version.state, EnvironmentState::Approved { .. } | EnvironmentState::Ready { .. })
    };
    let known = farm.call(async |client| client.environment(name).await).await?;
    let asked = number.and_then(|number| known.version(number));
    // There may be nothing to approve, but a result to wait for.
    let under_way = asked.filter(|version| follow && is_under_way(version)).map(|version| version.number);
    let (environment, number) = if let Some(number) = under_way {
        (known, number)
    } else {
        let approving =
            async |client: &client::Client| client.approve_environment(name, number, by.clone()).await;
        let (environment, number) = farm.call(approving).await?;
        record(farm, "approve", (name, Some(number)), "approved").await;
        (environment, number)
    };
    let build = environment.version(number).and_then(|version| version.state.build());
    if !globals.json {
        let making = build.map(|build| format!(": its build is {}", name.build_key(build)));
        say(&format!("version {number} of the environment {name} is approved{}", making.unwrap_or_default()));
    }
    let environment = if follow { finished(name, number, farm).await? } else { environment };
    if globals.json {
        stdout::json(&environment)?;
    }
    let Some(version) = environment.version(number) else {
        return Err(Failure::plain(
            FAILED,
            format!("version {number} of the environment {name} was removed"),
        ));
    };
    match &version.state {
        EnvironmentState::Ready { image, .. } => {
            if !globals.json {
                say(&format!("version {number} is ready: {image}"));
            }
            Ok(ExitCode::SUCCESS)
        }
        EnvironmentState::Failed { reason, build } => {
            // A build that was refused has none.
            let build = build.filter(|_| !reason.starts_with(REFUSED));
            let logs = build.map(|build| format!("; see forebay logs {}", name.build_key(build)));
            let line = format!(
                "version {number} of the environment {name} failed: {reason}{}",
                logs.unwrap_or_default()
            );
            Err(Failure::plain(FAILED, line))
        }
        EnvironmentState::Proposed | EnvironmentState::Approved { .. } => Ok(ExitCode::SUCCESS),
    }
}

/// Waits until a version is ready, has failed, or is removed.
async fn finished(name: &EnvironmentName, number: u32, farm: &Farm) -> Result<Environment, Failure> {
    let mut changes = farm.client().bus().buckets().changes::<EnvironmentChanged>().await?;
    loop {
        let environment = farm.call(async |client| client.environment(name).await).await?;
        let state = environment.version(number).map(|version| &version.state);
        if !matches!(state, Some(EnvironmentState::Proposed | EnvironmentState::Approved { .. })) {
            return Ok(environment);
        }
        let _ = tokio::time::timeout(REPAIR, changes.next()).await;
    }
}

async fn list(name: Option<&EnvironmentName>, farm: &Farm, globals: &Globals) -> Result<ExitCode, Failure> {
    let environments = match name {
        Some(name) => vec![farm.call(async |client| client.environment(name).await).await?],
        None => farm.call(async |client| client.environments().await).await?,
    };
    if globals.json {
        match (name, environments.as_slice()) {
            (Some(_), [environment]) => stdout::json(environment)?,
            (_, environments) => stdout::json(&json!({ "environments": environments }))?,
        }
    } else if environments.is_empty() {
        stdout::line(
            "the farm has no environment: propose one with forebay env add (see forebay env --help)",
        )?;
    } else {
        stdout::line(&table(&environments, farm.now(), name.is_some()).trim_fmt())?;
        if name.is_some() {
            for version in environments.iter().flat_map(|environment| &environment.versions) {
                stdout::line(&format!("\nversion {}:\n{}", version.number, definition(version)))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The definition of a version, as its author could have written it.
fn definition(version: &EnvironmentVersion) -> String {
    let text = serde_norway::to_string(&version.definition);
    let text = text.unwrap_or_else(|error| format!("it cannot be shown: {error}"));
    text.lines().map(|line| format!("    {}", telemetry::escaped(line))).collect::<Vec<_>>().join("\n")
}

/// The versions: all of them, or of each environment the one that its name means and those after it.
fn table(environments: &[Environment], now: Millis, all: bool) -> Table {
    let mut table = style::table();
    table.set_header(["ENVIRONMENT", "VERSION", "STATE", "PROPOSED", "APPROVED", "CONTENT"]);
    for environment in environments {
        let current = environment.current().map_or(0, |(version, _)| version.number);
        for version in environment.versions.iter().filter(|version| all || version.number >= current) {
            let is_current = version.number == current;
            let state = version.state.as_str();
            table.add_row([
                environment.name.to_string(),
                version.number.to_string(),
                if is_current { format!("{state}, current") } else { state.to_owned() },
                change(Some(&version.proposed), now),
                change(version.approved.as_ref(), now),
                content(version),
            ]);
        }
    }
    table
}

fn change(change: Option<&EnvironmentChange>, now: Millis) -> String {
    let Some(EnvironmentChange { at_ms, by }) = change else { return "-".to_owned() };
    let by = by.as_ref().map(|by| format!(" by {by}"));
    format!("{}{}", age(*at_ms, now), by.unwrap_or_default())
}

/// The image, or why there is none.
fn content(version: &EnvironmentVersion) -> String {
    match &version.state {
        EnvironmentState::Ready { image, .. } => image.to_string(),
        EnvironmentState::Failed { reason, .. } => reason.lines().next().unwrap_or_default().to_owned(),
        EnvironmentState::Approved { build: Some(build) } => {
            format!("build {}", model::BuildKey { group: model::Group::of_environments(), id: *build })
        }
        EnvironmentState::Proposed | EnvironmentState::Approved { build: None } => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::versioned;

    #[test]
    fn a_version_is_a_number_after_the_name() {
        let of = |text: &str| versioned(text).map(|(name, number)| (name.to_string(), number));
        assert_eq!(of("g/gcc-11@3"), Ok(("g/gcc-11".to_owned(), Some(3))));
        assert_eq!(of("gcc"), Ok(("gcc".to_owned(), None)));
        assert!(of("gcc@x").unwrap_err().contains("expected a number"));
        assert!(of("GCC").unwrap_err().contains("lower-case"));
    }
}
