//! Scenarios that must work with every Bazel and every project.

use std::time::Duration;

use e2e_tests::{Bazel, Rig, Run, processes_with_word, until};

/// Time limit for operations without waiting.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Bound of the time until Bazel has started and sent an action, on a busy machine.
const BAZEL_STARTS: Duration = Duration::from_secs(120);
/// Time limit for processes to disappear after Ctrl-C or a timeout.
const GONE: Duration = Duration::from_secs(30);

/// A number of seconds that is unique among all command lines.
pub(crate) fn word(seconds: &str) -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{seconds}{:07}{number:02}", std::process::id())
}

fn define(name: &str, value: &str) -> String {
    format!("--define={name}={value}")
}

/// The whole project and the folder output of `cases`.
const ALL: [&str; 2] = ["//:all", "//cases:tree_sum"];

/// Builds and tests everything locally, then on the farm: every action runs there, every output is equal. A second
/// run finds all actions in the action cache. Returns the local run.
pub(crate) async fn builds_and_tests(bazel: &Bazel, rig: &Rig) -> Run {
    let local = bazel.local("test", &ALL).await.ok();
    bazel.clean().await;
    let remote = bazel.remote(rig, "test", &ALL).await.ok();
    remote.assert_all_remote(local.spawns.len());
    assert_eq!(remote.hashes(), local.hashes(), "outputs of the farm and of this machine");
    assert_eq!(remote.on_disk(), remote.hashes().len(), "outputs on the disk\n{remote}");
    bazel.clean().await;
    let again = bazel.remote(rig, "test", &ALL).await.ok();
    again.assert_all_hits(local.spawns.len());
    assert_eq!(again.hashes(), local.hashes(), "cached outputs and outputs of this machine");
    println!(
        "{} actions: {:?} here, {:?} there, {:?} cached",
        local.spawns.len(),
        local.took,
        remote.took,
        again.took
    );
    local
}

/// With `--remote_download_minimal`, a build downloads nothing, the next build needs no local outputs, and a last one
/// downloads the requested output. `program` is built by `//:NAME`, `user` depends on it.
pub(crate) async fn downloads_little(bazel: &Bazel, rig: &Rig, program: &str, user: &str) {
    bazel.clean().await;
    // An option that was never used: nothing is cached.
    let fresh = format!("--copt=-DFRESH={}", word(""));
    let target = format!("//:{program}");
    let minimal = ["--remote_download_minimal", fresh.as_str()];
    let first = bazel.remote(rig, "build", &[&minimal[..], &[&target]].concat()).await.ok();
    // Changes that do not affect the objects hit the cache from here on.
    first.assert_none_local();
    assert!(!first.has_on_disk(&format!("bin/{program}")), "{first}");
    let next = bazel.remote(rig, "build", &[&minimal[..], &[user]].concat()).await.ok();
    next.assert_none_local();
    let tests = bazel.remote(rig, "test", &[&minimal[..], &["//:all"]].concat()).await.ok();
    tests.assert_none_local();
    bazel.clean().await;
    let fetched = bazel.remote(rig, "build", &["--remote_download_toplevel", &fresh, &target]).await.ok();
    assert!(fetched.has_on_disk(&format!("bin/{program}")) && fetched.on_disk() > 0, "{fetched}");
}

/// A failing test shows its log; one that runs too long is reported as a timeout and shows its log too; neither comes
/// from the action cache the next time.
pub(crate) async fn tests_fail(bazel: &Bazel, rig: &Rig) {
    let marker = word("600.");
    let define = define("marker", &marker);
    let args =
        ["--test_timeout=2", "--test_output=errors", &define, "//cases:wrong_test", "//cases:late_test"];
    for _ in 0..2 {
        let run = bazel.remote(rig, "test", &args).await.ended(3);
        run.assert_none_local();
        for what in ["six times seven is 41", "it will take its time", "FAILED in", "TIMEOUT in"] {
            run.assert_says(what);
        }
        let cached = run.spawns.iter().filter(|spawn| spawn.runner != e2e_tests::REMOTE && !spawn.is_timed());
        assert_eq!(cached.count(), 0, "a failure was cached: {run}");
    }
    until("the timed-out process is gone", GONE, || processes_with_word(&marker).is_empty()).await;
}

/// The output of a command is shown, its exit code is reported, and an action that no pool can run is refused
/// immediately with a reason.
pub(crate) async fn actions_tell(bazel: &Bazel, rig: &Rig) {
    let pace = word("0.0");
    let define = define("pace", &pace);
    let talkative = bazel.remote(rig, "build", &[&define, "//cases:talkative"]).await.ok();
    talkative.assert_says(&format!("a word after {pace}"));
    let broken = bazel.remote(rig, "build", &[&define, "//cases:broken"]).await.ended(1);
    broken.assert_says("(Exit 7)");
    broken.assert_says(&format!("the rule is broken after {pace}"));
    let elsewhere = bazel.remote(rig, "build", &["//cases:elsewhere"]).await;
    assert!(elsewhere.code != 0 && elsewhere.took < SOON, "{elsewhere}");
    for what in ["OSFamily", "plan9", "linux"] {
        elsewhere.assert_says(what);
    }
}

/// Ctrl-C ends the client and, within seconds, its running actions.
pub(crate) async fn interrupt_stops_actions(bazel: &Bazel, rig: &Rig) {
    let marker = word("600.");
    let build = bazel.start_remote(rig, "build", &[&define("marker", &marker), "//cases:sleepy"]);
    until("the action runs", BAZEL_STARTS, || {
        assert!(build.is_alive(), "Bazel ended too soon");
        processes_with_word(&marker).len() == 2
    })
    .await;
    build.interrupt();
    let client = async {
        let run = build.finish().await;
        if !bazel.cancels_calls() {
            bazel.end_server();
        }
        run
    };
    let stopped = until("the action is gone", GONE, || processes_with_word(&marker).is_empty());
    let (run, took) = tokio::join!(client, stopped);
    let run = run.ended(8);
    run.assert_says("interrupted");
    println!("Ctrl-C: the client ended after {:?} in all, the action {took:?} after the signal", run.took);
}

/// Bazel does not notice `kill -9` of each of these services, one after the other, while a build's actions run.
pub(crate) async fn build_survives(bazel: &Bazel, rig: &Rig, services: &[&str]) {
    // Two at a time, 25 actions take four seconds, or twenty-five to allow for more kills.
    let pace = word(if services.len() == 1 { "0.3" } else { "2.0" });
    let build = bazel.start_remote(rig, "build", &["--keep_going", &define("pace", &pace), "//cases:steps"]);
    for service in services {
        until("an action runs", BAZEL_STARTS, || {
            assert!(build.is_alive(), "Bazel ended before {service} was killed");
            !processes_with_word(&pace).is_empty()
        })
        .await;
        rig.kill9(service).await;
    }
    let run = build.finish().await.ok();
    run.assert_all_remote(25);
    println!("{services:?} killed: {:?}", run.took);
    until("nothing is left", GONE, || processes_with_word(&pace).is_empty()).await;
}
