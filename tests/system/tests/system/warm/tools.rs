//! A tool's server is kept for the next build.

use std::{path::Path, time::Duration};

use bus::{FromJson as _, Subject};
use farm::{Farm, SOON};
use futures::StreamExt as _;
use model::{
    BuildKey, BuildRecord, BuildRequest, Context, Outcome, UsageReport, WorkspaceKind, WorkspaceUse,
};

use super::{kind_of, one_workspace, run, warm, warm_in};
use crate::check::{ended_as, ended_within, processes_of, script, until};

#[tokio::test]
async fn survivors_serve_until_a_fresh_build_comes() {
    let farm = one_workspace().await;
    let text =
        "[ -e pid ] || { setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > pid; }; kill -0 $(cat pid)";
    let (kind, first) = run(&farm, warm(text)).await;
    assert_eq!(kind, Some(WorkspaceKind::New));
    assert_eq!(run(&farm, warm(text)).await.0, Some(WorkspaceKind::Exact));
    assert_eq!(processes_of(first.id).len(), 1);
    assert_eq!(run(&farm, script("test ! -e pid")).await.0, None);
    until("it is gone", SOON, || processes_of(first.id).is_empty()).await;
    assert_eq!(run(&farm, warm(text)).await.0, Some(WorkspaceKind::New));
}

/// Returns whether Bazel is installed. Its server starts and works without any network.
pub(crate) fn has_bazel() -> bool {
    let found = std::process::Command::new("bazel").arg("--version").env("PATH", farm::with_tools()).output();
    found.is_ok_and(|output| output.status.success())
}

/// Makes `folder` a workspace of Bazel, whose server optimises little: half of a short build is its compiler's.
pub(crate) fn make_bazel_workspace(folder: &Path) {
    std::fs::write(folder.join("WORKSPACE"), "").unwrap();
    let options = "startup --host_jvm_args=-XX:TieredStopAtLevel=1\n";
    std::fs::write(folder.join(".bazelrc"), options).unwrap();
}

/// A folder with one target, built by `command`.
struct Project {
    farm: Farm,
    context: Context,
}

impl Project {
    fn new(farm: Farm) -> Self {
        let source = farm.folder().join("source");
        std::fs::create_dir(&source).unwrap();
        make_bazel_workspace(&source);
        let project = Self {
            farm,
            context: Context::Directory { path: source.display().to_string(), ignore_files: false },
        };
        project.make_by("echo one > $@");
        project
    }

    fn make_by(&self, command: &str) {
        let rule = format!("genrule(name = \"x\", outs = [\"x.txt\"], cmd = \"{command}\")\n");
        std::fs::write(self.farm.folder().join("source/BUILD"), rule).unwrap();
    }

    /// Builds with a script that has `server`, the process id of Bazel's server, and `log`, the output of Bazel.
    async fn build(&self, check: &str) -> (BuildKey, BuildRecord) {
        let text = format!(
            "set -e; bazel build //:x 2>log || {{ cat log >&2; exit 9; }}
             bazel info server_pid 2>/dev/null > server; cat bazel-bin/x.txt; cat log >&2
             if [ -e before ]; then cmp before server; ! grep 'Starting local Bazel' log; fi; mv server before
             test -d ../bazel; test ! -e .cache; rm -f step; {check}"
        );
        let tool =
            model::ToolCall { command: "build".into(), targets: vec!["//:x".into()], ..Default::default() };
        let request = BuildRequest { tool: Some(tool), ..warm_in(&self.context, &["/bin/sh", "-c", &text]) };
        let key = self.farm.submit("default", request).await;
        let record = ended_within(&self.farm, &key, Duration::from_secs(120)).await;
        let said = self.farm.cli(&["watch", &key.id.to_string()]).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?} {said:?}");
        (key, record)
    }

    /// Builds with the same server; asserts that nothing is analysed again.
    async fn again(&self) -> BuildRecord {
        let check =
            "! grep 'discarding analysis cache' log; grep -q '(0 packages loaded, 0 targets configured)' log
             ! grep -E '[1-9][0-9]* (remote|local|processwrapper-sandbox|linux-sandbox)' log";
        let (_, record) = self.build(check).await;
        assert_eq!(kind_of(&record), Some(WorkspaceKind::Exact));
        record
    }
}

#[tokio::test]
async fn bazel_keeps_its_server_and_its_caches_between_builds() {
    if !has_bazel() {
        return;
    }
    let project = Project::new(one_workspace().await);
    let (first, record) = project.build("true").await;
    assert_eq!(kind_of(&record), Some(WorkspaceKind::New));
    project.again().await;
    project.again().await;
    assert!(!processes_of(first.id).is_empty());
}

/// Sums the ESU that executors report, times their seconds, until they report none.
async fn reported_by_executors(reports: &mut async_nats::Subscriber) -> f64 {
    let mut total = 0.0;
    loop {
        let message = tokio::time::timeout(SOON, reports.next()).await.unwrap().unwrap();
        let report = UsageReport::from_json(&message.payload).unwrap();
        if report.source.starts_with("executor-") {
            match report.groups.get(&"default".parse().unwrap()) {
                Some(used) => total += used.get(&"gpu".parse().unwrap()).units() * 2.0,
                None => return total,
            }
        }
    }
}

/// A Bazel that sends its actions to the farm has a new invocation id in each build, which does not reset its caches.
#[tokio::test]
async fn bazel_keeps_its_caches_while_it_uses_the_farm() {
    if !has_bazel() {
        return;
    }
    // The executor is of another type than the worker, so that their usage can be distinguished.
    let farm = Farm::builder().workspaces(1).with("scheduler").with("cas").start().await;
    farm.keep(farm.spawn_with_env("executor", &[("FOREBAY_EXECUTOR_TYPE", "gpu")]).await);
    farm.replace("worker", &[]).await;
    let project = Project::new(farm);
    project.make_by("sleep 2; echo one > $@");
    let gpu = |record: &BuildRecord| {
        let result = record.result().unwrap();
        result.usage.get(&"gpu".parse().unwrap()).units() * result.wall_seconds
    };
    let mut reports = project.farm.bus().client().subscribe(Subject::Usage.to_string()).await.unwrap();
    let (_, record) = project.build("grep '1 remote' log").await;
    let reported = reported_by_executors(&mut reports).await;
    assert!((reported - gpu(&record)).abs() < 0.1, "{reported}, {record:#?}");
    assert!((2.0..4.0).contains(&gpu(&record)), "{record:#?}");
    let record = project.again().await;
    assert!(gpu(&record) < 0.001, "{record:#?}");
    project.make_by("sleep 1; echo two > $@");
    let (_, record) = project.build("grep '1 remote' log; ! grep 'discarding analysis cache' log").await;
    assert!((1.0..3.0).contains(&gpu(&record)), "{record:#?}");
}

/// The rules and tags of targets are in BUILD files, which only the worker sees: they are known from the second build on.
#[tokio::test]
async fn executor_types_follow_the_tags_that_bazel_reported() {
    if !has_bazel() {
        return;
    }
    let types = r#"{"x86": [], "gpu": ["tag:requires-gpu"]}"#;
    let farm = Farm::builder().workspaces(1).env("FOREBAY_EXECUTOR_TYPES", types).start().await;
    let project = Project::new(farm);
    let build =
        "genrule(name = \"x\", outs = [\"x.txt\"], cmd = \"echo one > $@\", tags = [\"requires-gpu\"])\n";
    std::fs::write(project.farm.folder().join("source/BUILD"), build).unwrap();
    let gpu = |record: &BuildRecord| record.build.occupancy.0.contains_key(&"gpu".parse().unwrap());
    let run = async |command: &[&str]| {
        let key = project.farm.submit("default", warm_in(&project.context, command)).await;
        let record = ended_within(&project.farm, &key, Duration::from_secs(120)).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
        record
    };
    let first = run(&["bazel", "build", "//..."]).await;
    assert!(!gpu(&first));
    let facts = first.result().unwrap().tool.as_deref().unwrap();
    let all = &facts.targets["//..."];
    assert_eq!(
        (&all.rules, &all.tags),
        (&["genrule".to_owned()].into(), &["requires-gpu".to_owned()].into())
    );
    // An enqueuer learns from the log, a moment after the end.
    let known = async || gpu(&run(&["bazel", "build", "--keep_going", "//..."]).await);
    let learned = async { while !known().await {} };
    tokio::time::timeout(Duration::from_secs(60), learned).await.expect("the tag is known");
    // A restarted enqueuer knows it from the log.
    project.farm.replace("enqueuer", &[]).await;
    let learned = async { while !known().await {} };
    tokio::time::timeout(Duration::from_secs(60), learned).await.expect("the tag is known again");
}

#[tokio::test]
async fn a_build_that_asks_for_another_version_of_bazel_gets_another_workspace() {
    let farm = one_workspace().await;
    let request = |version: Option<&str>| {
        let env = version.map(|version| ("USE_BAZEL_VERSION".to_owned(), version.to_owned()));
        BuildRequest { env: env.into_iter().collect(), ..warm("true") }
    };
    let kind = async |version| run(&farm, request(version)).await.0;
    assert_eq!(kind(Some("7.4.1")).await, Some(WorkspaceKind::New));
    assert_eq!(kind(Some("7.4.1")).await, Some(WorkspaceKind::Exact));
    assert_eq!(kind(Some("8.0.0")).await, Some(WorkspaceKind::New));
    assert_eq!(kind(None).await, Some(WorkspaceKind::New));
}

#[tokio::test]
async fn the_version_of_bazel_in_a_folder_of_the_store_selects_the_workspace() {
    let farm = Farm::builder().workspaces(1).with("cas").start().await;
    let source = farm.folder().join("source");
    std::fs::create_dir(&source).unwrap();
    let kind = async |version: &str| {
        std::fs::write(source.join(".bazelversion"), version).unwrap();
        let dir = source.to_str().unwrap();
        // The command names the tool, so the version matters.
        let said = farm.cli(&["submit", "--warm", "--dir", dir, "--", "sh", "-c", ": bazel"]).await;
        let id = said.stdout.trim().parse().unwrap_or_else(|_| panic!("{said:?}"));
        let key = BuildKey { group: "default".parse().unwrap(), id };
        kind_of(&ended_within(&farm, &key, Duration::from_secs(30)).await)
    };
    assert_eq!(kind("7.4.1\n").await, Some(WorkspaceKind::New));
    assert_eq!(kind("7.4.1\n").await, Some(WorkspaceKind::Exact));
    assert_eq!(kind("8.0.0\n").await, Some(WorkspaceKind::New));
}

/// The usage of tool servers between two builds counts for the group that left them.
#[tokio::test]
async fn what_a_tool_server_uses_between_builds_counts_for_its_group() {
    if !std::path::Path::new("/sys/fs/cgroup/cpuacct/cgroup.procs").exists() {
        return;
    }
    let farm = one_workspace().await;
    // Parts of the time are reported while it is used up.
    let mut reports = farm.bus().client().subscribe("forebay.usage").await.unwrap();
    // Two seconds of processor time.
    let used_up = farm.folder().join("used-up");
    let spin = "sh -c 'ulimit -t 2; while :; do :; done'";
    let busy = format!("({spin}; touch {}; exec sleep 60) >/dev/null 2>&1 & exit 0", used_up.display());
    let first =
        farm.submit("left", BuildRequest { workspace: Some(WorkspaceUse::Warm), ..script(&busy) }).await;
    ended_as(&farm, &first, Outcome::Succeeded).await;
    let end = tokio::time::Instant::now() + 2 * SOON;
    while !used_up.exists() {
        assert!(tokio::time::Instant::now() < end, "the tool server did not use up its processor time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let next = farm.submit("next", script("sleep 2.5")).await;
    let end = tokio::time::Instant::now() + SOON;
    // The mean since the report before, which is some seconds ago on a busy machine.
    let mut used = 0.0;
    while used < 0.1 {
        let message = tokio::time::timeout_at(end, reports.next()).await.expect("usage is reported").unwrap();
        let report = UsageReport::from_json(&message.payload).unwrap();
        if let Some(of) = report.groups.get(&"left".parse().unwrap()) {
            used += of.iter().map(|(_, esu)| esu.units()).sum::<f64>();
        }
    }
    ended_as(&farm, &next, Outcome::Succeeded).await;
}
