//! What a build has in common with others, for whoever estimates how long it will run.

use std::collections::BTreeMap;

use model::{Build, Context, Digest, ExecutorType};

use crate::estimate::Keys;

/// Labels that say what a build runs in and on; they are no part of the label set.
const ENVIRONMENT: &str = "environment";
const HARDWARE: &str = "hwgroup";
/// Characters of a command that stands for itself; of a longer one the digest does.
const COMMAND_MAX: usize = 200;

/// A build, as estimates look at it: the thesis's author and exercise in the words of a build farm (section 3.4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildWork {
    /// What it runs in: its label `environment`, else the command of its tool.
    pub environment: String,
    /// What it runs on: its label `hwgroup`, else the executor types that it uses beside x86.
    pub hardware: String,
    /// What it is: its other labels; where it has none, what it runs, and of which source tree.
    pub labels: BTreeMap<String, String>,
    /// Whose it is: its submitter, else its group.
    pub submitter: String,
    /// What it runs.
    pub command: String,
}

impl BuildWork {
    /// That of `build`.
    pub fn of(build: &Build) -> Self {
        let label = |name: &str| build.labels.get(name).cloned();
        let command = match &build.job {
            Some(job) => format!("job {}", job.digest),
            None => short(build.command.join(" ")),
        };
        let mut labels = build.labels.clone();
        labels.retain(|name, _| name != ENVIRONMENT && name != HARDWARE);
        if labels.is_empty() {
            labels.insert("command".to_owned(), command.clone());
            labels.extend(source(&build.context).map(|source| ("source".to_owned(), short(source))));
        }
        Self {
            environment: label(ENVIRONMENT).unwrap_or_else(|| build.tool_call().command.clone()),
            hardware: label(HARDWARE).unwrap_or_else(|| types(build)),
            labels,
            submitter: build.submitter.clone().unwrap_or_else(|| build.group.to_string()),
            command,
        }
    }

    /// Under which keys its duration is kept.
    pub fn keys(&self) -> Keys {
        let keys = Keys::of(&self.environment, &self.hardware, &self.labels, &self.submitter);
        keys.with_command([self.command.as_str()])
    }
}

/// All builds use x86.
fn types(build: &Build) -> String {
    let others = build.occupancy.0.keys().filter(|kind| **kind != ExecutorType::x86());
    others.map(ExecutorType::as_str).collect::<Vec<_>>().join("+")
}

/// What stays the same from one state of the sources to the next.
fn source(context: &Context) -> Option<String> {
    match context {
        Context::Git { url, .. } => Some(url.clone()),
        Context::Directory { path, .. } => Some(path.clone()),
        Context::Empty | Context::Archive { .. } => None,
    }
}

fn short(text: String) -> String {
    if text.chars().count() <= COMMAND_MAX { text } else { Digest::of(text.as_bytes()).to_string() }
}

#[cfg(test)]
mod tests {
    use model::{BuildId, BuildRequest, Millis, RequestLimits};

    use super::*;

    fn work(request: BuildRequest) -> BuildWork {
        let request = BuildRequest { id: Some(BuildId::generate()), ..request };
        let limits = RequestLimits::default();
        let group = "ci".parse().unwrap();
        BuildWork::of(&request.validate(&group, None, None, &limits, Millis(0)).unwrap().build)
    }

    fn request(command: &str) -> BuildRequest {
        let command = command.split(' ').map(str::to_owned).collect();
        BuildRequest { command, ..BuildRequest::default() }
    }

    fn labelled(labels: &[(&str, &str)]) -> BuildRequest {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        BuildRequest { labels, submitter: Some("ada".to_owned()), ..request("make all") }
    }

    #[test]
    fn labels_say_what_a_build_is() {
        let work = work(labelled(&[("environment", "gcc-14"), ("hwgroup", "large"), ("exercise", "7")]));
        assert_eq!((work.environment.as_str(), work.hardware.as_str()), ("gcc-14", "large"));
        assert_eq!(work.labels.keys().collect::<Vec<_>>(), ["exercise"]);
        assert_eq!((work.submitter.as_str(), work.command.as_str()), ("ada", "make all"));
    }

    #[test]
    fn without_labels_it_is_what_it_runs_and_of_which_sources() {
        let of = |path: &str, command: &str| {
            let context = Context::Directory { path: path.to_owned(), ignore_files: false };
            work(BuildRequest { context, ..request(command) })
        };
        let one = of("/src/a", "make all");
        assert_eq!((one.environment.as_str(), one.submitter.as_str()), ("make", "ci"));
        assert_eq!(one.keys(), of("/src/a", "make all").keys());
        assert_ne!(one.keys(), of("/src/b", "make all").keys(), "another project");
        assert_ne!(one.keys(), of("/src/a", "make test").keys(), "something else");
    }

    #[test]
    fn a_script_of_any_length_is_told_apart_and_takes_no_room() {
        let long = format!("sh -c {}", "x".repeat(5000));
        let work = work(request(&long));
        assert!(work.command.len() < 100 && work.labels["command"] == work.command);
    }
}
