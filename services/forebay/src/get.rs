//! `forebay get`: shows a build or downloads its output files.

use std::process::ExitCode;

use clap::Args;
use command_line::{failure::Failure, globals::Globals, stdout};
use invariant::impossible;
use model::{BuildKey, BuildResult, OutputFile, read_glob};
use settings::Settings;

use telemetry::escaped;

use crate::{
    farm::{BuildArgs, Farm},
    fetch,
    record_text::full_text,
    remote::GatewayArgs,
};

/// Options of `forebay get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    build: BuildArgs,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Download the output file PATH to the file or folder DEST, `-` for stdout; a glob ('**' matches all) downloads
    /// every match below the folder DEST (repeatable)
    #[arg(long, num_args = 2, value_names = ["PATH", "DEST"])]
    output: Vec<String>,
}

/// What one `--output` downloads.
#[derive(Debug, PartialEq)]
enum Download<'a> {
    File(&'a OutputFile, &'a str),
    /// The matches of a glob, and the folder for them.
    Matches(Vec<&'a OutputFile>, &'a str),
}

/// All kept files of a build: outputs, log overflow and job report.
fn files(result: &BuildResult) -> impl Iterator<Item = &OutputFile> {
    let report = result.job.iter().filter_map(|job| job.report.as_ref());
    result.outputs.iter().chain(&result.log.overflow).chain(report)
}

/// A relative path without empty parts and `.`, as outputs are named.
fn normal(path: &str) -> String {
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("{root}{}", parts.join("/"))
}

/// The files for `--output PATH DEST`.
fn choose<'a>(result: &'a BuildResult, path: &str, destination: &'a str) -> Result<Download<'a>, Failure> {
    let pattern = normal(path);
    if let Some(file) = files(result).find(|file| file.path == path || file.path == pattern) {
        return Ok(Download::File(file, destination));
    }
    let glob = read_glob(&pattern)
        .map_err(|error| Failure::usage(format!("invalid output {path:?}: {error}")))?
        .compile_matcher();
    let found: Vec<&OutputFile> = result.outputs.iter().filter(|file| glob.is_match(&file.path)).collect();
    if found.is_empty() {
        let names: Vec<String> = files(result).map(|file| escaped(&file.path)).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(Failure::usage(format!("no output file matches {path:?}; output files: {names}")));
    }
    if destination == "-" {
        return Err(Failure::usage(format!("{path:?} may match several files: give a folder instead of -")));
    }
    Ok(Download::Matches(found, destination))
}

/// Shows the build, or downloads its output files.
pub(crate) async fn run(args: GetArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let view = farm.call(async |client| client.get(&key).await).await?;
    if !args.output.is_empty() {
        let downloads = choose_all(&key, view.record.result(), &args.output)?;
        let store = args.gateway.connect(&farm, globals, settings).await?;
        for download in downloads {
            match download {
                Download::File(file, destination) => fetch::fetch(&store, file, destination).await?,
                Download::Matches(files, destination) => {
                    fetch::fetch_all(&store, &files, destination).await?;
                }
            }
        }
    } else if globals.json {
        stdout::json(&view)?;
    } else {
        stdout::bytes(full_text(&view, farm.now()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The downloads of all `--output` options, each with its two values.
fn choose_all<'a>(
    key: &BuildKey,
    result: Option<&'a BuildResult>,
    output: &'a [String],
) -> Result<Vec<Download<'a>>, Failure> {
    let result = result
        .ok_or_else(|| Failure::usage(format!("build {key} has not ended: it has no output files yet")))?;
    let (pairs, rest) = output.as_chunks::<2>();
    if !rest.is_empty() {
        impossible!("an option --output has one value");
    }
    pairs.iter().map(|[path, destination]| choose(result, path, destination)).collect()
}

#[cfg(test)]
mod tests {
    use model::{BuildResult, Digest, Outcome, OutputFile, ReasonCode};

    use super::{Download, choose, choose_all, normal};

    fn result(paths: &[&str]) -> BuildResult {
        let mut result = BuildResult::without_run(Outcome::Failed, ReasonCode::CommandFailed, "failed");
        let file = |path: &&str| OutputFile {
            path: (*path).to_owned(),
            size_bytes: 1,
            digest: Digest::of(b"x"),
            executable: false,
        };
        result.outputs = paths.iter().map(file).collect();
        result
    }

    #[test]
    fn a_path_is_compared_without_dots_and_empty_parts() {
        assert_eq!(normal("./r//u/."), "r/u");
        assert_eq!(normal("/r/u"), "/r/u");
        let result = result(&["r/u"]);
        assert_eq!(choose(&result, "./r/u", "x").unwrap(), Download::File(&result.outputs[0], "x"));
        assert!(choose(&result, "/r/u", "x").is_err());
    }

    #[test]
    fn every_output_is_chosen_or_none() {
        let result = result(&["a", "d/b"]);
        let key = "g/00000000-0000-4000-8000-000000000001".parse().unwrap();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let two = words("a x d/* y");
        let chosen = choose_all(&key, Some(&result), &two).unwrap();
        let [a, b] = [&result.outputs[0], &result.outputs[1]];
        assert_eq!(chosen, [Download::File(a, "x"), Download::Matches(vec![b], "y")]);
        let refused =
            |text: &str| choose_all(&key, Some(&result), &words(text)).unwrap_err().line().to_owned();
        assert_eq!(refused("a x no* y"), r#"no output file matches "no*"; output files: a, d/b"#);
        assert!(refused("* -").contains("give a folder"));
        assert!(choose_all(&key, None, &two).unwrap_err().line().contains("has not ended"));
    }
}
