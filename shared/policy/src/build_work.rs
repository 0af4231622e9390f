//! The properties by which builds are similar, for estimates of their run time.

use std::collections::BTreeMap;

use model::{Build, Context, Digest, ExecutorType, Group};

use crate::estimate::Keys;

/// Labels that describe the environment and hardware of a build; they are not part of the label set.
const ENVIRONMENT: &str = "environment";
const HARDWARE: &str = "hwgroup";
/// Maximum number of characters of a command that is used as it is; a longer command is replaced by its digest.
const COMMAND_MAX: usize = 200;

/// A build as estimates see it: the thesis's author and exercise in the terms of a build farm (section
/// 3.4.1 of the thesis).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildWork {
    /// Quota group of the build. Keys of different groups never match: run times would show what others run.
    pub group: Group,
    /// Environment of the build: its label `environment`, else the command of its tool.
    pub environment: String,
    /// Hardware of the build: its label `hwgroup`, else the executor types that it uses in addition to x86.
    pub hardware: String,
    /// Content of the build: its other labels; without labels, the command and the source tree.
    pub labels: BTreeMap<String, String>,
    /// Owner of the build: its submitter, else its group.
    pub submitter: String,
    /// Command that the build runs.
    pub command: String,
}

impl BuildWork {
    /// Derives the properties of `build`.
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
            group: build.group.clone(),
            environment: label(ENVIRONMENT).unwrap_or_else(|| build.tool_call().command.clone()),
            hardware: label(HARDWARE).unwrap_or_else(|| types(build)),
            labels,
            submitter: build.submitter.clone().unwrap_or_else(|| build.group.to_string()),
            command,
        }
    }

    /// The keys under which its run time is stored.
    pub fn keys(&self) -> Keys {
        let keys = Keys::of(&self.environment, &self.hardware, &self.labels, &self.submitter);
        keys.with_command([self.command.as_str()]).within(self.group.as_str())
    }
}

/// Executor types other than x86, which all builds use.
fn types(build: &Build) -> String {
    let others = build.occupancy.0.keys().filter(|kind| **kind != ExecutorType::x86());
    others.map(ExecutorType::as_str).collect::<Vec<_>>().join("+")
}

/// The part of a context that stays the same from one revision of the sources to the next.
fn source(context: &Context) -> Option<String> {
    match context {
        Context::Git { url, .. } => Some(url.clone()),
        Context::Directory { path, .. } => Some(path.clone()),
        Context::Tree { source, .. } => source.clone(),
        Context::Empty | Context::Archive { .. } => None,
    }
}

fn short(text: String) -> String {
    if text.chars().count() <= COMMAND_MAX { text } else { Digest::of(text.as_bytes()).to_string() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::{BuildId, BuildRequest, Millis, RequestLimits};

    use super::*;
    use crate::estimate::{Estimator, Source};

    fn work(request: BuildRequest) -> BuildWork {
        work_of("ci", request)
    }

    fn work_of(group: &str, request: BuildRequest) -> BuildWork {
        let request = BuildRequest { id: Some(BuildId::generate()), ..request };
        let limits = RequestLimits::default();
        let group = group.parse().unwrap();
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
    fn run_times_do_not_show_what_another_group_runs() {
        let mut estimator = Estimator::default();
        estimator.observe(&work(labelled(&[("environment", "gcc-14")])).keys(), Duration::from_secs(7));
        let estimate = |group: &str| {
            let keys = work_of(group, labelled(&[("environment", "gcc-14")])).keys();
            estimator.estimate(&keys, Duration::from_secs(100))
        };
        assert_eq!(estimate("ci").ms, 7000);
        assert_eq!(estimate("other").source, Source::HalfOfLimit);
    }

    #[test]
    fn a_script_of_any_length_is_told_apart_and_takes_no_room() {
        let long = format!("sh -c {}", "x".repeat(5000));
        let work = work(request(&long));
        assert!(work.command.len() < 100 && work.labels["command"] == work.command);
    }
}
