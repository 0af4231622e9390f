//! `forebay get`

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
    stdout,
    style::printable,
};

/// Options of `forebay get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    build: BuildArgs,
    /// Fetch the kept file PATH to the file or folder DEST, `-` for stdout
    #[arg(long, num_args = 2, value_names = ["PATH", "DEST"])]
    output: Vec<String>,
}

/// The files that are kept of a build.
fn files(result: &BuildResult) -> impl Iterator<Item = &OutputFile> {
    let report = result.job.iter().filter_map(|job| job.report.as_ref());
    result.outputs.iter().chain(&result.log.overflow).chain(report)
}

/// Shows the build, or fetches one of its files.
pub(crate) async fn run(args: GetArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let view = farm.call(async |client| client.get(&key).await).await?;
    if let [path, destination] = args.output.as_slice() {
        let result = view.record.result();
        let result = result
            .ok_or_else(|| Failure::usage(format!("build {key} has not ended: no file is kept yet")))?;
        let kept: Vec<&OutputFile> = files(result).collect();
        let Some(file) = kept.iter().find(|file| file.path == *path) else {
            let names: Vec<&str> = kept.iter().map(|file| file.path.as_str()).collect();
            return Err(Failure::plain(USAGE, format!("build {key} kept no file {path:?}, but {names:?}")));
        };
        fetch::fetch(&farm, settings, file, destination).await?;
    } else if globals.json {
        stdout::json(&view)?;
    } else {
        stdout::bytes(printable(&full_text(&view, farm.now())).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
