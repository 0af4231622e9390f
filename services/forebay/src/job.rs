//! The job of `forebay submit --job`: reads it, checks it, and stores it if it is large.

use std::{
    collections::HashMap,
    io::Read as _,
    path::{Path, PathBuf},
};

use clap::Args;
use model::{Digest, DigestFunction, Graph, Job, JobLimits, JobSource, StoredJob};
use remote::Source;
use settings::Settings;

use crate::{
    failure::{Failure, USAGE},
    farm::Farm,
    globals::Globals,
    remote::GatewayArgs,
};

/// Maximum length in bytes of a job, as JSON, within a request. A longer one goes through the store.
const INLINE_BYTES_MAX: usize = 128 << 10;

/// Options of `forebay submit` for jobs.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Run the graph of tasks in this YAML or JSON file instead of a command; - for stdin
    #[arg(long = "job", value_name = "FILE", conflicts_with_all = ["command", "env"])]
    pub(crate) file: Option<PathBuf>,
}

impl JobArgs {
    /// Reads and checks the job, if one is given. A job that no farm would accept is an error.
    pub(crate) fn read(&self) -> Result<Option<Job>, Failure> {
        let Some(path) = &self.file else { return Ok(None) };
        let what = format!("--job {}", path.display());
        let content = content(path).map_err(|error| Failure::new(USAGE, &what, &error))?;
        let wrong = |why: String| Failure::usage(format!("{what}: {why}"));
        let job = parse(&content).map_err(wrong)?;
        // The limits depend on the farm, which checks them itself.
        Graph::new(&job, &JobLimits::NONE).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(job))
    }
}

/// The job as part of a request: inline, or the digest of the stored job if it is too long.
pub(crate) async fn source(
    gateway: &GatewayArgs,
    farm: &Farm,
    globals: &Globals,
    settings: &Settings,
    job: Job,
) -> Result<JobSource, Failure> {
    let json = job.to_json();
    if json.len() <= INLINE_BYTES_MAX {
        return Ok(JobSource::Inline(job));
    }
    let blob = DigestFunction::Sha256.digest(&json);
    let store = gateway.connect(farm, globals, settings).await?;
    store.upload(&HashMap::from([(blob, Source::Bytes(json.into()))])).await?;
    Ok(JobSource::Stored(StoredJob { digest: Digest::from_sha256(blob.hash), size_bytes: Some(blob.size) }))
}

fn content(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(path)
}

/// Parses JSON if the text begins with `{`, else YAML. An error names the field.
fn parse(text: &str) -> Result<Job, String> {
    if text.trim_start().starts_with('{') {
        let mut json = serde_json::Deserializer::from_str(text);
        let job = serde_path_to_error::deserialize(&mut json).map_err(|error| at(&error))?;
        return json.end().map(|()| job).map_err(|error| format!("unexpected text after the job: {error}"));
    }
    if text.trim().is_empty() {
        return Err("the file is empty".to_owned());
    }
    let mut documents = serde_norway::Deserializer::from_str(text);
    let Some(first) = documents.next() else { return Err("the file contains no YAML document".to_owned()) };
    // Before reading a second document, so that an error in the first one reports its line.
    let job = serde_path_to_error::deserialize(first).map_err(|error| at(&error))?;
    match documents.next() {
        None => Ok(job),
        Some(_) => Err("expected one YAML document, found a second one".to_owned()),
    }
}

/// Formats an error with its path: `job.tasks[3].limits.cpu_ms: invalid type …`
fn at<E: std::error::Error>(error: &serde_path_to_error::Error<E>) -> String {
    let path = error.path().to_string();
    let dot = if path.starts_with('.') || path.starts_with('[') { "" } else { "." };
    let path = if path == "." { "" } else { path.as_str() };
    let what = error.inner().to_string();
    // Errors of YAML already begin with the path.
    let what = what.strip_prefix(&format!("{path}: ")).unwrap_or(&what);
    format!("job{dot}{path}: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "\
defaults:
  env: {PATH: /usr/bin}
tasks:
  - id: compile
    command: [cc, -c, a.c]
    outputs: [a.o]
  - id: link
    command: [cc, a.o]
    inputs: [a.o]
";

    #[test]
    fn yaml_and_json_are_the_same_job() {
        let job = parse(YAML).unwrap();
        assert_eq!(job.tasks.len(), 2);
        let json = String::from_utf8(job.to_json()).unwrap();
        assert_eq!(parse(&format!("\n {json}\n")).unwrap(), job);
    }

    #[test]
    fn c6_aliases_and_depth_cannot_make_a_short_text_a_huge_job() {
        let level = |level: u32| {
            let before = format!("*a{}, ", level - 1).repeat(9);
            format!("a{level}: &a{level} [{before}]\n")
        };
        let bomb: Vec<String> = (1..40).map(level).collect();
        let command = format!("a0: &a0 [x]\n{}tasks:\n  - {{id: a, command: *a39}}\n", bomb.concat());
        let deep = format!("tasks: {}", "[".repeat(1000));
        let own = "tasks: &t\n  - {id: a, command: [*t]}\n".to_owned();
        for text in [command, deep, own, "tasks: [{id: a, command: [x], limits: {cpu_ms: 1e400}}]".to_owned()]
        {
            assert!(parse(&text).unwrap_err().starts_with("job"), "{}", parse(&text).unwrap_err());
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let wrong = |text: &str| parse(text).unwrap_err();
        let yaml = wrong(&YAML.replace("outputs: [a.o]", "limits: {cpu_ms: much}"));
        assert!(yaml.starts_with("job.tasks[0].limits.cpu_ms: invalid type: string \"much\""), "{yaml}");
        let json = wrong(r#"{"tasks": [{"id": "a", "comand": []}]}"#);
        assert!(json.starts_with("job.tasks[0]") && json.contains("unknown field `comand`"), "{json}");
        assert!(wrong(r#"{"tasks": []} x"#).starts_with("unexpected text after the job"));
        assert!(wrong("{}").starts_with("job: missing field `tasks`"), "{}", wrong("{}"));
        assert_eq!(wrong(" \n"), "the file is empty");
        assert!(wrong("tasks: []\n---\ntasks: []\n").contains("one YAML document"));
        for (text, line) in
            [("tasks: [\n", "line 2"), ("tasks:\n\t- id: a\n", "line 2"), ("tasks: [a\nb: }\n", "line")]
        {
            let error = wrong(text);
            assert!(error.contains(line) && error.contains("column"), "{text:?}: {error}");
        }
    }
}
