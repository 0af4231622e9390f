//! Whether a build is expected to run actions on executors.

use model::Build;

use crate::{BuildWork, estimate::Keys, recent::Recent};

/// Variable with the address of the Remote Execution API for tools of a build. A build that sets it to the empty value
/// does not use the executors.
pub const ADDRESS_VARIABLE: &str = "FOREBAY_GRPC";

/// Tools that use the executors of the farm without any options of the build.
const SENDERS: [&str; 2] = ["bazel", "bazelisk"];

/// Which builds ran actions, learned from their ends: one bit for each of the last eight runs of the same build. One
/// run with actions is enough, because a run whose actions were all cached says nothing.
#[derive(Debug, Clone)]
pub struct ActionSenders(Recent<Keys, u8>);

impl ActionSenders {
    /// Remembers at most `most` different builds: those that ended last.
    pub fn new(most: usize) -> Self {
        Self(Recent::new(most))
    }

    /// Learns from the end of a run.
    pub fn observe(&mut self, build: &Build, ran_actions: bool) {
        let seen = self.0.of(BuildWork::of(build).keys());
        *seen = (*seen << 1) | u8::from(ran_actions);
    }

    /// Whether `build` is expected to run actions: a job does; another build if one of its latest runs did. Without
    /// a run, the tool that it calls decides.
    pub fn expects(&self, build: &Build) -> bool {
        if build.job.is_some() {
            return true;
        }
        if build.env.get(ADDRESS_VARIABLE).is_some_and(String::is_empty) {
            return false;
        }
        if let Some(runs) = self.0.get(BuildWork::of(build).keys()) {
            return *runs > 0;
        }
        let program = build.command.first().map(String::as_str).unwrap_or_default();
        SENDERS.contains(&program.rsplit('/').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use model::{BuildId, BuildRequest, Millis, RequestLimits};

    use super::*;

    fn build(command: &str, address: Option<&str>) -> Build {
        let command = command.split(' ').map(str::to_owned).collect();
        let env = address.map(|value| (ADDRESS_VARIABLE.to_owned(), value.to_owned())).into_iter().collect();
        let request = BuildRequest { id: Some(BuildId::generate()), command, env, ..BuildRequest::default() };
        let limits = RequestLimits::default();
        request.validate(&"ci".parse().unwrap(), None, None, &limits, Millis(0)).unwrap().build
    }

    #[test]
    fn without_a_run_the_tool_decides() {
        let none = ActionSenders::new(9);
        assert!(!none.expects(&build("make all", None)));
        assert!(none.expects(&build("/usr/bin/bazel build //...", None)));
        assert!(!none.expects(&build("bazel build //...", Some(""))), "it asked for no executors");
    }

    #[test]
    fn the_latest_runs_decide() {
        let mut seen = ActionSenders::new(9);
        let (script, bazel) = (build("sh build.sh", None), build("bazel build //a", None));
        seen.observe(&script, true);
        assert!(seen.expects(&script));
        // All of its actions were cached, for a while.
        (0..7).for_each(|_| seen.observe(&script, false));
        assert!(seen.expects(&script));
        seen.observe(&script, false);
        assert!(!seen.expects(&script));
        seen.observe(&bazel, false);
        assert!(!seen.expects(&bazel));
        assert!(seen.expects(&build("bazel build //b", None)), "nothing is known of it");
    }
}
