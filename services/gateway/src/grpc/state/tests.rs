use model::{
    ActionKeys, Attempt, ClientTool, DigestFunction, Execution, ExecutionId, ExecutionOutcome, ExecutorId,
    Needs,
};

use super::*;

fn record() -> ExecutionRecord {
    ExecutionRecord::accepted(Execution {
        id: ExecutionId::generate(),
        group: "web".parse().unwrap(),
        instance: "main".into(),
        action: DigestFunction::Blake3.digest(b"action"),
        band: model::Priority::Interactive,
        priority: 0,
        requirements: model::Requirements::default(),
        timeout_ms: 1000,
        image: None,
        do_not_cache: false,
        zone: None,
        caller: String::new(),
        accepted_at_ms: Millis(1_234_567),
        expires_at_ms: Millis(2_000_000),
        max_attempts: Attempt(3),
        traceparent: None,
        client: ClientTool::default(),
        build: None,
        needs: Needs::default(),
        keys: ActionKeys::default(),
    })
}

fn progress(executor: &str, stage: ExecutionStage, at: u64) -> ExecutionProgress {
    let executor: ExecutorId = executor.parse().unwrap();
    ExecutionProgress { executor, stage, at_ms: Millis(at), image: None }
}

fn name(record: &ExecutionRecord) -> OperationName {
    OperationName { instance: "main".into(), key: record.execution.key() }
}

fn read(any: &Any) -> ExecuteOperationMetadata {
    status::unpack(any, METADATA).unwrap()
}

#[test]
fn an_execution_goes_through_its_stages_and_back() {
    let first = record();
    let name = name(&first);
    let mut known = Known::default();
    assert!(known.apply(Sequence(5), first.clone()));
    assert!(!known.apply(Sequence(5), first.clone()), "a repeated record is not new");
    let expected = Some(std::time::Duration::from_millis(2500));
    let position = Some(Position { of_group: 4, of_others: 1, expected });
    let waits = Why { text: "the executors are full".to_owned(), position };
    let metadata = read(&metadata(&name, &known, Some(&waits)));
    assert_eq!(metadata.stage(), Stage::Queued);
    assert_eq!(metadata.digest_function, i32::from(reapi::digest::value(DigestFunction::Blake3)));
    assert_eq!(metadata.stdout_stream_name, "");
    let partial = metadata.partial_execution_metadata.unwrap();
    assert_eq!(partial.queued_timestamp, Some(Timestamp { seconds: 1234, nanos: 567_000_000 }));
    let why: rpc::Status = status::unpack(&partial.auxiliary_metadata[0], STATUS).unwrap();
    assert_eq!((why.code, why.message.as_str()), (0, "the executors are full"));
    let place: Struct = status::unpack(&why.details[0], STRUCT).unwrap();
    let number = |name: &str| place.fields[name].kind.clone();
    assert_eq!(number("ahead_of_group"), Some(Kind::NumberValue(4.0)));
    assert_eq!(number("ahead_of_others"), Some(Kind::NumberValue(1.0)));
    assert_eq!(number("expected_start_seconds"), Some(Kind::NumberValue(3.0)));

    assert!(known.apply_progress(progress("one", ExecutionStage::Fetching, 1_300_000)));
    assert!(known.apply_progress(progress("one", ExecutionStage::Running, 1_400_000)));
    let metadata = read(&super::metadata(&name, &known, Some(&Why::from("no matter".to_owned()))));
    assert_eq!(metadata.stage(), Stage::Executing);
    assert!(metadata.stdout_stream_name.starts_with("main/logstreams/live.web."));
    assert_ne!(metadata.stdout_stream_name, metadata.stderr_stream_name);
    let partial = metadata.partial_execution_metadata.unwrap();
    assert_eq!(partial.worker, "one");
    assert_eq!(partial.worker_start_timestamp.unwrap().seconds, 1300);
    assert_eq!(partial.execution_start_timestamp.unwrap().seconds, 1400);
    assert!(partial.auxiliary_metadata.is_empty());

    let requeued = first.requeued(Sequence(5), "its executor died".into(), None, true, Millis(1_500_000));
    assert!(known.apply(Sequence(9), requeued.clone()));
    assert_eq!(client_view(&known, None).stage, Stage::Queued);
    assert!(known.waits());
    assert!(!known.apply(Sequence(5), first), "an older record is not new");

    let outcome = ExecutionOutcome::without_run(1, String::new());
    assert!(known.apply(Sequence(12), requeued.finished(Sequence(9), outcome, Millis(1_600_000))));
    assert!(known.is_over());
    assert_eq!(read(&super::metadata(&name, &known, None)).stage(), Stage::Completed);
}

#[test]
fn what_happens_beside_a_running_copy_leaves_it_running() {
    let first = record();
    let mut known = Known::default();
    known.apply(Sequence(1), first.clone());
    known.apply_progress(progress("one", ExecutionStage::Running, 100));
    let hedged = first.hedged(Sequence(1), Millis(200));
    let urgent = model::Urgency { priority: -5, ..model::Urgency::default() };
    let raised = hedged.raised(Sequence(2), urgent, Millis(300));
    for (sequence, record) in [(2, &hedged), (3, &raised)] {
        assert!(known.apply(Sequence(sequence), record.clone()));
        assert_eq!(client_view(&known, None).stage, Stage::Executing);
    }
    let shown = |known: &Known| known.progress().map(|progress| progress.executor.to_string());
    // Of two copies, the one with the latest report is shown; an ended copy is not.
    assert!(known.apply_progress(progress("two", ExecutionStage::Fetching, 400)));
    assert_eq!(shown(&known).as_deref(), Some("two"));
    assert!(known.apply_progress(progress("one", ExecutionStage::Uploading, 500)));
    assert_eq!(shown(&known).as_deref(), Some("one"));
    assert_eq!(known.executors().count(), 2);
    assert_eq!(known.copies.last().unwrap().begun_at, Millis(100), "it began with its first report");
    let one: ExecutorId = "one".parse().unwrap();
    let ended = raised.copy_ended(Sequence(3), "it died".into(), one, None, Millis(600));
    assert!(known.apply(Sequence(4), ended.clone()));
    assert_eq!(shown(&known).as_deref(), Some("two"));
    let two: ExecutorId = "two".parse().unwrap();
    known.apply(Sequence(5), ended.copy_ended(Sequence(4), "it died".into(), two, None, Millis(700)));
    assert!(known.waits(), "no executor has a copy");
}

#[test]
fn only_a_change_that_a_client_can_see_is_sent() {
    let mut known = Known::default();
    known.apply(Sequence(1), record());
    let queued = client_view(&known, None);
    assert_ne!(client_view(&known, Some(&Why::from("full".to_owned()))), queued);
    known.apply_progress(progress("one", ExecutionStage::Fetching, 1));
    let fetching = client_view(&known, None);
    assert_ne!(fetching, queued);
    known.apply_progress(progress("one", ExecutionStage::Running, 2));
    let running = client_view(&known, None);
    assert_ne!(running, fetching);
    known.apply_progress(progress("one", ExecutionStage::Uploading, 3));
    assert_eq!(client_view(&known, Some(&Why::from("no matter".to_owned()))), running);
}

#[test]
fn a_response_is_found_in_its_operation() {
    let response = ExecuteResponse { message: "hello".into(), ..ExecuteResponse::default() };
    let action = DigestFunction::Sha256.digest(b"a");
    let operation = done("n", done_metadata(&action), &response);
    assert!(operation.done);
    let Some(operation::Result::Response(any)) = &operation.result else { panic!("{operation:?}") };
    assert_eq!(status::unpack(any, RESPONSE), Some(response));
    assert_eq!(read(operation.metadata.as_ref().unwrap()).stage(), Stage::Completed);
}
