//! Tests of the text forms of build records.

use std::{collections::BTreeMap, time::Duration};

use model::{
    Attempt, Build, BuildId, BuildJob, BuildRecord, BuildResult, BuildView, Context, Digest, Invocation,
    JobResult, Millis, Occupancy, Outcome, Priority, Reason, ReasonCode, Retry, Sequence, TaskId, TaskReport,
    TaskStatus, WorkspaceUse,
};

use super::{command_text, full_text, state_line, work_text};

fn waiting() -> BuildRecord {
    BuildRecord::enqueued(Build {
        id: BuildId::generate(),
        group: "ci".parse().unwrap(),
        priority: Priority::Batch,
        command: vec!["sh".into(), "-c".into(), "echo 'a'".into()],
        env: BTreeMap::new(),
        context: Context::Empty,
        timeout_seconds: 60,
        queue_timeout_seconds: 60,
        lease_ttl_seconds: 15,
        max_attempts: Attempt(3),
        outputs: Vec::new(),
        require_outputs: false,
        labels: BTreeMap::new(),
        tool: None,
        workspace: WorkspaceUse::Fresh,
        tool_hints: model::ToolHints::default(),
        requirements: model::BuildRequirements::default(),
        secrets: Vec::new(),
        services: Vec::new(),
        limits: model::BuildLimits::default(),
        occupancy: Occupancy::default(),
        estimated_by: None,
        sends_actions: false,
        job: None,
        submitter: None,
        expected_ms: None,
        submitted_at_ms: Millis(1_000_000),
        request_digest: Digest::of(b""),
        traceparent: None,
    })
}

fn running() -> BuildRecord {
    let invocation = Invocation {
        id: Some("0198c5d3-0000-7000-8000-000000000001".parse().unwrap()),
        worker: "w1".parse().unwrap(),
        workspace: 2,
        lease_revision: 1,
        started_at_ms: Millis(1_002_000),
        dispatched_at_us: 0,
        dispatched_at_sequence: Sequence(1),
        workspace_kind: None,
    };
    waiting().started(invocation, Sequence(5))
}

#[test]
fn commands_can_be_typed_again() {
    assert_eq!(command_text(&waiting().build.command), r"sh -c 'echo '\''a'\'''");
    assert_eq!(command_text(&["true".to_owned(), String::new()]), "true ''");
}

#[test]
fn states_in_a_line() {
    assert_eq!(state_line(&waiting()), "ENQUEUED in group ci, priority batch");
    assert_eq!(state_line(&running()), "IN_PROGRESS in workspace w1/2, attempt 1 of 3");
    let reason = Reason { code: ReasonCode::LeaseExpired, message: "the worker was lost".into() };
    let again = running().requeued(
        Retry { reason, worker: "w1".parse().unwrap(), invocation: None },
        true,
        Millis(1_003_000),
    );
    assert_eq!(
        state_line(&again),
        "ENQUEUED again, attempt 2 of 3: worker w1: the worker was lost (lease_expired)"
    );
    let result = BuildResult::without_run(Outcome::TimedOut, ReasonCode::RunningTooLong, "too long");
    let ended = running().finished(result, Millis(1_003_000));
    assert_eq!(state_line(&ended), "FINISHED timed out: too long (running_too_long)");
}

#[test]
fn the_whole_record_says_what_and_why() {
    let now = Millis(1_000_000).after(Duration::from_secs(10));
    let text = full_text(&BuildView::new(Sequence(9), waiting()), now);
    assert!(text.contains("state      ENQUEUED (attempt 1 of 3, position 9)\n"), "{text}");
    assert!(text.contains("waiting    10.0 s for a workspace\n"), "{text}");
    let text = full_text(&BuildView::new(Sequence(9), running()), now);
    assert!(text.contains("running    8.0 s in workspace w1/2\n"), "{text}");
    assert!(text.contains("queued     2.0 s\n"), "{text}");
    assert!(text.contains("invocation 0198c5d3-0000-7000-8000-000000000001\n"), "{text}");
}

#[test]
fn a_fact_is_one_line_whatever_it_contains() {
    let mut record = waiting();
    record.build.command = vec!["printf".into(), "a\n\u{1b}[31m".into()];
    let text = full_text(&BuildView::new(Sequence(9), record), Millis(1_010_000));
    assert!(text.contains("command    printf 'a\\n\\u{1b}[31m'\n"), "{text}");
}

#[test]
fn of_a_job_the_tasks_are_told() {
    let mut record = running();
    record.build.job = Some(BuildJob { digest: Digest::of(b"job"), size_bytes: Some(3), tasks: 130 });
    record.build.submitter = Some("ann".into());
    assert_eq!(work_text(&record.build), "job of 130 tasks");
    let task = |id: &str| id.parse::<TaskId>().unwrap();
    let failure = TaskReport { exit_code: Some(2), ..TaskReport::new(task("link"), TaskStatus::Failed) };
    let job = JobResult {
        tasks: 130,
        succeeded: 4,
        failed: 2,
        skipped: 124,
        failures: vec![failure],
        skipped_tasks: vec![task("test"), task("pack")],
        ..JobResult::default()
    };
    let mut result = BuildResult::without_run(Outcome::Failed, ReasonCode::TasksFailed, "2 tasks failed");
    result.job = Some(Box::new(job));
    let ended = record.finished(result, Millis(1_003_000));
    let line =
        "FINISHED failed: 2 tasks failed (tasks_failed); 130 tasks: 4 succeeded, 2 failed, 124 skipped";
    assert_eq!(state_line(&ended), line);
    let text = full_text(&BuildView::new(Sequence(9), ended), Millis(1_010_000));
    for fact in [
        "job        130 tasks, sha256:",
        "submitter  ann\n",
        "failed     task link failed: exit code 2\nfailed     and 1 more\n",
        "skipped    test pack and 122 more\n",
    ] {
        assert!(text.contains(fact), "{fact:?} is not in {text}");
    }
    assert!(!text.contains("command"), "{text}");
}
