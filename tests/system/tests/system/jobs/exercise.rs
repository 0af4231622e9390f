//! The example of an exercise: compiled, tested with repeated measurement, and judged.

use std::{fs, path::Path};

use bus::EventKind;
use client::WatchBody;
use farm::{Builder, Farm};
use model::{BuildKey, Digest, Job, MeasurementState, Outcome, Sequence, TaskStatus, ToolEvent};

use super::{builder, content, ended, request_in, start};

const TESTS: [&str; 3] = ["test-sum", "test-mean", "test-distinct"];

/// Interactors need a sandbox.
fn sandboxed() -> Builder {
    builder().env("FOREBAY_SANDBOX", "bubblewrap")
}

/// A copy of the example with another solution, and its job.
fn exercise(farm: &Farm, change: impl Fn(String) -> String) -> (tempfile::TempDir, Job) {
    let example = farm::repository().join("examples/exercise");
    let copy = tempfile::tempdir_in(farm.folder()).unwrap();
    let copied = std::process::Command::new("cp").arg("-R").arg(example.join(".")).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    let solution = copy.path().join("solution.c");
    fs::write(&solution, change(fs::read_to_string(&solution).unwrap())).unwrap();
    let mut job: Job =
        serde_norway::from_str(&fs::read_to_string(copy.path().join("job.yaml")).unwrap()).unwrap();
    for measure in job.tasks.iter_mut().filter_map(|task| task.measure.as_mut()) {
        // Other tests disturb the runs.
        measure.max_disturbed = Some(0);
    }
    (copy, job)
}

/// The tests with their preliminary and final reports, in the order of the events.
async fn reported(farm: &Farm, key: &BuildKey) -> Vec<(String, bool)> {
    let mut watch = farm.client().watch(key, Sequence(0), &[EventKind::Tool, EventKind::Lifecycle]);
    let mut found = Vec::new();
    while let Some(event) = watch.next().await.unwrap() {
        if let WatchBody::Tool(ToolEvent::TasksEnded { reports, preliminary, .. }) = event.body {
            found.extend(preliminary.iter().map(|report| (report.id.to_string(), false)));
            found.extend(reports.iter().map(|report| (report.id.to_string(), true)));
        }
    }
    found
}

async fn submit(farm: &Farm, folder: &Path, job: Job) -> BuildKey {
    farm.submit("g", request_in(job, folder)).await
}

#[tokio::test]
async fn a_right_submission_gets_the_full_score_after_preliminary_ones() {
    let farm = start(sandboxed()).await;
    let (folder, job) = exercise(&farm, |solution| solution);
    let key = submit(&farm, folder.path(), job).await;
    let ended = ended(&farm, &key).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.reports);
    assert_eq!(ended.job().score, Some(1.0));
    let runs = |id: &str| ended.task(id).measurement.as_ref().unwrap().cpu.n;
    assert_eq!([runs("test-sum"), runs("test-mean")], [3, 3]);
    let guess = ended.task("test-guess");
    assert_eq!(guess.interactor.as_ref().map(|interactor| interactor.exit_code), Some(0), "{guess:#?}");
    let log = ended.task("test-guess").service_logs["interactor.stderr"];
    let log = content(&farm, &Digest::from_sha256(log.hash)).await;
    assert!(log.starts_with("right after "), "{log}");
    assert!((5..=15).contains(&runs("test-distinct")));
    let distinct = ended.task("test-distinct").measurement.as_ref().unwrap();
    assert!(
        matches!(distinct.state, MeasurementState::Narrow | MeasurementState::StillWide),
        "{distinct:#?}"
    );
    assert!(distinct.cpu.median_us > 1000, "200,000 numbers take milliseconds: {distinct:#?}");
    let events = reported(&farm, &key).await;
    for id in TESTS {
        let of_test: Vec<bool> =
            events.iter().filter(|(test, _)| test == id).map(|(_, last)| *last).collect();
        assert_eq!(of_test, [false, true], "{id} is first reported preliminarily: {events:?}");
    }
}

#[tokio::test]
async fn a_wrong_submission_is_not_measured_further() {
    let farm = start(sandboxed()).await;
    // The mean is a whole number: wrong. The distinct numbers lack one of a thousand.
    let (folder, job) = exercise(&farm, |solution| {
        let wrong = solution.replace("(double)sum / numbers", "(double)(sum / numbers)");
        wrong.replace("!seen[number]++)", "number != 7 && !seen[number]++)")
    });
    let key = submit(&farm, folder.path(), job).await;
    let ended = ended(&farm, &key).await;
    let score = |id: &str| ended.task(id).score;
    assert_eq!(
        [score("test-sum"), score("test-mean"), score("test-distinct")],
        [Some(1.0), Some(0.0), Some(0.999)]
    );
    for id in ["test-mean", "test-distinct"] {
        let report = ended.task(id);
        assert_eq!(
            (report.status, &report.measurement),
            (TaskStatus::Succeeded, &None),
            "its first run was wrong"
        );
    }
    let total = ended.job().score.unwrap();
    assert!((total - (1.0 + 0.0 + 2.0 * 0.999) / 4.0).abs() < 1e-9, "{total}");
}

#[tokio::test]
async fn a_submission_that_guesses_badly_or_never_flushes_fails_with_the_reason() {
    let farm = start(sandboxed()).await;
    for (changes, status, reason) in [
        (("low + high) / 2", "low + 0 * high)"), TaskStatus::Failed, "its interactor ended with exit code 1"),
        (("fflush(stdout);", ""), TaskStatus::OverLimit, "deadlock"),
    ] {
        let (folder, mut job) = exercise(&farm, |solution| solution.replace(changes.0, changes.1));
        job.tasks.retain(|task| ["compile", "test-guess"].contains(&task.id.as_str()));
        for task in &mut job.tasks {
            task.limits.wall_ms = (task.id.as_str() == "test-guess").then_some(5000);
        }
        let key = submit(&farm, folder.path(), job).await;
        let ended = ended(&farm, &key).await;
        let guess = ended.task("test-guess");
        assert_eq!(guess.status, status, "{guess:#?}");
        assert!(ended.reason("test-guess").contains(reason), "{guess:#?}");
    }
}

#[tokio::test]
async fn a_slow_submission_passes_only_on_the_hardware_group_with_higher_limits() {
    let slow = |solution: String| {
        solution
            .replace("int low = 1,", "for (volatile long i = 0; clock() < CLOCKS_PER_SEC; i++); int low = 1,")
    };
    let with_clock =
        |solution: String| solution.replace("#include <string.h>", "#include <string.h>\n#include <time.h>");
    for (group, wanted) in [("old", TaskStatus::Succeeded), ("new", TaskStatus::OverLimit)] {
        let properties = format!(r#"{{"hwgroup": ["{group}"]}}"#);
        let farm = start(sandboxed().env("FOREBAY_POOL_PROPERTIES", &properties)).await;
        let (folder, mut job) = exercise(&farm, |solution| slow(with_clock(solution)));
        job.tasks.retain(|task| ["compile", "test-guess"].contains(&task.id.as_str()));
        let key = submit(&farm, folder.path(), job).await;
        let ended = ended(&farm, &key).await;
        assert_eq!(ended.status("test-guess"), wanted, "{group}: {:#?}", ended.reports);
    }
}

#[tokio::test]
async fn the_command_line_shows_the_preliminary_result_and_then_the_final_one() {
    let farm = start(sandboxed()).await;
    let (folder, _) = exercise(&farm, |solution| solution);
    let (dir, job) = (folder.path().to_str().unwrap(), folder.path().join("job.yaml"));
    let output = farm.cli(&["submit", "--follow", "--dir", dir, "--job", job.to_str().unwrap()]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let said = &output.stderr;
    for id in TESTS {
        let mut lines = said.lines().filter(|line| line.starts_with(&format!("task {id} ")));
        let line = lines.next().unwrap_or_default();
        let expected = format!("task {id} succeeded with score 1 in 1 run, ");
        assert!(
            line.starts_with(&expected) && line.ends_with(" (preliminary, may change)"),
            "{line}\n{said}"
        );
        let last = lines.next().unwrap_or_default();
        let runs = last.strip_prefix(&format!("task {id} succeeded with score 1 in "));
        let runs: u64 = runs.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or_default();
        assert!(runs >= 3 && !last.contains("preliminary"), "{last}\n{said}");
    }
    assert!(said.contains("score 1"), "{said}");
}
