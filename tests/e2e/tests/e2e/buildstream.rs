//! Tests with the client `BuildStream`.

use e2e_tests::{BuildStream, Place, Rig, everything};
use farm::Output;

/// Number of elements that run a command.
const ACTIONS: usize = 5;
const RAN: &str = "SUCCESS Waiting for the remote build to complete";
const FOUND: &str = "Action result found in action cache";

fn count(output: &Output, what: &str) -> usize {
    let lines = output.stdout.lines().chain(output.stderr.lines());
    lines.filter(|line| line.contains(what)).count()
}

/// Each element's actions see the input root as `/`. The farm's output equals that of this machine; a second machine
/// finds all of it in the action cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buildstream_builds_with_its_own_root() {
    if !everything() {
        return;
    }
    let place = Place::new();
    let rig = Rig::start(&place, &[("FOREBAY_POOL_ROOT_IS_INPUT", "true")]).await;
    let Some(here) = BuildStream::new(&place, "here", None) else {
        eprintln!("skipped: BuildStream is not installed");
        return;
    };
    let (_, wanted) = here.build().await;
    assert!(wanted.starts_with("5000050000\n"), "{wanted}");
    let there = BuildStream::new(&place, "there", Some(&rig)).unwrap();
    let (output, made) = there.build().await;
    assert_eq!(made, wanted);
    assert_eq!(count(&output, RAN), ACTIONS, "{output:?}");
    there.forget();
    let (output, again) = there.build().await;
    assert_eq!(again, wanted);
    assert_eq!((count(&output, FOUND), count(&output, RAN)), (ACTIONS, 0), "{output:?}");
}
