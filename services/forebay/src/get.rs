//! `forebay get`: shows a build or downloads its output files.

use std::process::ExitCode;

use clap::Args;
use model::{BuildResult, OutputFile};
use settings::Settings;

use crate::{
    failure::{Failure, USAGE},
    farm::{BuildArgs, Farm},
    fetch,
    globals::Globals,
    record_text::full_text,
    remote::GatewayArgs,
    stdout,
    style::printable,
};

/// Options of `forebay get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    build: BuildArgs,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Download the output file PATH to the file or folder DEST, `-` for stdout; a glob ('**' matches all) downloads
    /// every match below the folder DEST
    #[arg(long, num_args = 2, value_names = ["PATH", "DEST"])]
    output: Vec<String>,
}

/// All kept files of a build: outputs, log overflow and job report.
fn files(result: &BuildResult) -> impl Iterator<Item = &OutputFile> {
    let report = result.job.iter().filter_map(|job| job.report.as_ref());
    result.outputs.iter().chain(&result.log.overflow).chain(report)
}

/// The outputs that match a glob.
fn matching<'a>(outputs: &'a [OutputFile], pattern: &str) -> Result<Vec<&'a OutputFile>, Failure> {
    let glob = globset::GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob
        .map_err(|error| Failure::usage(format!("invalid output {pattern:?}: {error}")))?
        .compile_matcher();
    Ok(outputs.iter().filter(|file| glob.is_match(&file.path)).collect())
}

/// Shows the build, or downloads its output files.
pub(crate) async fn run(args: GetArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let view = farm.call(async |client| client.get(&key).await).await?;
    if let [path, destination] = args.output.as_slice() {
        let result = view.record.result();
        let result = result.ok_or_else(|| {
            Failure::usage(format!("build {key} has not ended: it has no output files yet"))
        })?;
        let kept: Vec<&OutputFile> = files(result).collect();
        if let Some(file) = kept.iter().find(|file| file.path == *path) {
            let store = args.gateway.connect(&farm, globals, settings).await?;
            fetch::fetch(&store, file, destination).await?;
        } else {
            let found = matching(&result.outputs, path)?;
            if found.is_empty() {
                let names: Vec<&str> = kept.iter().map(|file| file.path.as_str()).collect();
                return Err(Failure::plain(
                    USAGE,
                    format!("build {key} has no output file {path:?}; it has {names:?}"),
                ));
            }
            if destination == "-" {
                return Err(Failure::usage(format!(
                    "{path:?} may match several files: give a folder instead of -"
                )));
            }
            let store = args.gateway.connect(&farm, globals, settings).await?;
            fetch::fetch_all(&store, &found, destination).await?;
        }
    } else if globals.json {
        stdout::json(&view)?;
    } else {
        stdout::bytes(printable(&full_text(&view, farm.now())).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
