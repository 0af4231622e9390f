//! Calls of build tools, their targets and tests, on SQLite and on PostgreSQL.

use std::time::Duration;

use archive_store::{Batch, LogStream, Retention, Store, Writer};
use build_events::{
    bep::{self, About, Payload},
    pack,
    service::{Any, BuildEvent, Event, OrderedBuildEvent, StreamFinished},
};
use bus::Stored;
use bytes::BytesMut;
use model::{
    Group, HistoryOf, HistoryRequest, Millis, Sequence, TargetView, TargetsRequest, TestGridRequest,
    TestView, TestsRequest, ToolInvocationsRequest,
};
use prost::Message as _;

use crate::{
    databases::Database,
    messages::{START_MS, id},
    retention::retention,
};

const CREATED: Millis = Millis(5);

on_both! {
    a_call_has_its_targets_and_tests,
    events_that_come_again_change_nothing,
    pages_cover_all_targets_and_tests_once,
    pages_of_large_rows_fit_into_a_message,
    labels_with_any_characters_are_paged,
    a_history_of_a_test_counts_its_runs,
    a_grid_compares_the_last_calls_with_tests,
    old_calls_are_removed,
    events_in_a_missing_blob_are_set_aside,
}

fn group() -> Group {
    "g".parse().unwrap()
}

fn event(about: About, payload: Payload) -> Event {
    let id = Some(bep::Id { about: Some(about) });
    let event = bep::BuildEvent { id, last_message: false, payload: Some(payload) };
    Event::BazelEvent(Any {
        type_url: "x/build_event_stream.BuildEvent".into(),
        value: event.encode_to_vec().into(),
    })
}

fn completed(label: &str, success: bool) -> Event {
    let id = bep::TargetId { label: label.into(), ..bep::TargetId::default() };
    event(About::TargetCompleted(id), Payload::Completed(bep::TargetComplete { success }))
}

fn tested(label: &str, shard: i32, status: i32) -> Event {
    let id = bep::TestId { label: label.into(), run: 1, shard, attempt: 1, configuration: None };
    let result = bep::TestResult { status, duration_millis: 20, ..bep::TestResult::default() };
    event(About::TestResult(id), Payload::TestResult(result))
}

/// A call with `targets` targets, each with a test of two shards; every third fails.
pub(crate) fn call(targets: usize) -> Vec<Event> {
    let started = bep::Started { command: "test".into(), start_time_millis: 7, ..bep::Started::default() };
    let pattern = bep::Patterns { pattern: vec!["//...".into()] };
    let mut events = vec![
        event(About::Started(bep::Nothing {}), Payload::Started(started)),
        event(About::Pattern(pattern), Payload::Expanded(bep::Nothing {})),
    ];
    for number in 0..targets {
        let label = format!("//a:t{number:03}");
        let id = bep::TargetId { label: label.clone(), ..bep::TargetId::default() };
        let kind = "cc_test rule".to_owned();
        let configured = bep::TargetConfigured { target_kind: kind, test_size: 1, tag: vec!["x".into()] };
        events.push(event(About::TargetConfigured(id), Payload::Configured(configured)));
        events.push(completed(&label, number % 3 != 2));
        // A second configuration.
        events.push(completed(&label, true));
        events.push(tested(&label, 1, 1));
        events.push(tested(&label, 2, if number % 3 == 2 { 4 } else { 1 }));
    }
    let exit_code = Some(bep::ExitCode { name: "TESTS_FAILED".into(), code: 3 });
    let finished = bep::Finished { exit_code, finish_time_millis: 99, finish_time: None };
    events.push(event(About::Finished(bep::Nothing {}), Payload::Finished(finished)));
    events.push(Event::ComponentStreamFinished(StreamFinished { kind: 1 }));
    events
}

/// Messages of call `name` with the events `from` to the end, `size` in each, after position `after`.
pub(crate) fn messages(name: &str, events: &[Event], size: usize, from: usize, after: u64) -> Vec<Stored> {
    let parts = events.get(from..).unwrap().chunks(size).enumerate();
    let message = |(part, events): (usize, &[Event])| {
        let first = from + part * size + 1;
        let mut packed = BytesMut::new();
        for (event, number) in events.iter().zip(first..) {
            let event = Some(BuildEvent { event_time: None, event: Some(event.clone()) });
            let sequence_number = i64::try_from(number).unwrap();
            pack(&mut packed, OrderedBuildEvent { stream_id: None, sequence_number, event });
        }
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Forebay-Tool-Invocation", name);
        headers.insert("Forebay-Numbers", format!("{first}-{}", first + events.len() - 1).as_str());
        if events.iter().any(|event| matches!(event, Event::ComponentStreamFinished(_))) {
            headers.insert("Forebay-Stream-End", "1");
        }
        let sequence = after + part as u64 + 1;
        Stored {
            subject: format!("forebay.bazel.event.g.{name}"),
            sequence: Sequence(sequence),
            at: Millis(START_MS + sequence * 10),
            headers: Some(headers),
            payload: packed.freeze(),
        }
    };
    parts.map(message).collect()
}

/// Archives messages of the stream of calls outside of builds, `size` in each transaction.
pub(crate) async fn archive(writer: &mut Writer, messages: &[Stored], size: usize) {
    let mut cursor = writer.cursor(LogStream::Bazel, CREATED).await.unwrap();
    for part in messages.chunks(size) {
        let mut batch = Batch::new(LogStream::Bazel, cursor.base);
        for stored in part {
            batch.add(stored);
        }
        cursor = writer.commit(&batch, cursor).await.unwrap();
    }
}

async fn all_targets(store: &Store, name: &str, limit: usize) -> Vec<TargetView> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let id = name.parse().unwrap();
        let request = TargetsRequest { group: group(), id, status: None, cursor, limit: Some(limit) };
        let reply = store.targets(&request).await.unwrap();
        found.extend(reply.targets);
        cursor = reply.next;
        if cursor.is_none() {
            return found;
        }
    }
}

async fn all_tests(store: &Store, name: &str, status: Option<&str>, limit: usize) -> Vec<TestView> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let (id, status) = (name.parse().unwrap(), status.map(str::to_owned));
        let request = TestsRequest { group: group(), id, status, cursor, limit: Some(limit) };
        let reply = store.tests(&request).await.unwrap();
        found.extend(reply.tests);
        cursor = reply.next;
        if cursor.is_none() {
            return found;
        }
    }
}

async fn a_call_has_its_targets_and_tests(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    // The events of a build, and of a call outside of builds.
    let build = id(7);
    let mut inside = messages("inside", &call(1), 3, 0, 0);
    for stored in &mut inside {
        stored.subject = format!("forebay.build.event.g.{build}.bazel.inside");
        stored.headers.as_mut().unwrap().insert("Forebay-Attempt", "2");
    }
    let mut cursor = writer.cursor(LogStream::Events, CREATED).await.unwrap();
    let mut batch = Batch::new(LogStream::Events, cursor.base);
    for stored in &inside {
        batch.add(stored);
    }
    cursor = writer.commit(&batch, cursor).await.unwrap();
    assert_eq!((cursor.sequence(), batch.refused().count()), (Sequence(inside.len() as u64), 0));
    archive(&mut writer, &messages("outside", &call(3), 4, 0, 0), 2).await;

    let request = ToolInvocationsRequest { group: Some(group()), ..ToolInvocationsRequest::default() };
    let calls = database.store.tool_invocations(&request).await.unwrap().tool_invocations;
    let names: Vec<_> = calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let of_build = ToolInvocationsRequest { build: Some(build.parse().unwrap()), ..request.clone() };
    let calls = database.store.tool_invocations(&of_build).await.unwrap().tool_invocations;
    let [found] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!((found.id.as_str(), found.attempt.map(|attempt| attempt.0)), ("inside", Some(2)));
    let by_id = ToolInvocationsRequest { id: Some("outside".parse().unwrap()), ..request };
    let calls = database.store.tool_invocations(&by_id).await.unwrap().tool_invocations;
    let [found] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(
        (found.build, found.command.as_deref(), found.patterns.as_deref()),
        (None, Some("test"), Some("//..."))
    );
    assert_eq!((found.exit_name.as_deref(), found.exit_code), (Some("TESTS_FAILED"), Some(3)));
    assert_eq!((found.started_at_ms, found.finished_at_ms), (Some(Millis(7)), Some(Millis(99))));
    assert_eq!((found.events, found.complete), (call(3).len() as u64, true));
    let targets = all_targets(&database.store, "outside", 100).await;
    let statuses: Vec<_> = targets.iter().map(|target| target.status.as_deref().unwrap()).collect();
    assert_eq!(statuses, ["built", "built", "failed"], "one that failed in one configuration has failed");
    assert_eq!((targets[0].test_size.as_deref(), targets[0].tags.as_deref()), (Some("small"), Some("x")));
    let failed = all_tests(&database.store, "outside", Some("failed"), 100).await;
    let [test] = failed.as_slice() else { panic!("{failed:?}") };
    assert_eq!((test.label.as_str(), test.shard, test.duration_ms), ("//a:t002", 2, Some(20)));
}

async fn events_that_come_again_change_nothing(database: Database) {
    let events = call(5);
    let once = messages("c", &events, 4, 0, 0);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &once, 100).await;
    let wanted = database.store.content_hashes().await.unwrap();
    let after = once.len() as u64;
    // After a broken connection the tool sends the last events again, and they are packed in another way.
    archive(&mut writer, &messages("c", &events, 3, events.len() / 2, after), 2).await;
    assert_eq!(database.store.content_hashes().await.unwrap(), wanted);
}

async fn pages_cover_all_targets_and_tests_once(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &messages("c", &call(23), 10, 0, 0), 100).await;
    let targets = all_targets(&database.store, "c", 5).await;
    assert_eq!(targets, all_targets(&database.store, "c", 1000).await);
    assert_eq!(targets.len(), 23);
    let tests = all_tests(&database.store, "c", None, 3).await;
    assert_eq!(tests, all_tests(&database.store, "c", None, 1000).await);
    assert_eq!(tests.len(), 46);
    for forged in ["", "a", "a\nb\nc", "x\ny\nz\n1\n2"] {
        let (id, cursor) = ("c".parse().unwrap(), Some(forged.to_owned()));
        let request = TestsRequest { group: group(), id, status: None, cursor, limit: None };
        assert!(database.store.tests(&request).await.is_err(), "{forged:?}");
    }
}

async fn pages_of_large_rows_fit_into_a_message(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let mut events = call(0);
    for number in 0..700 {
        let id = bep::TargetId { label: format!("//a:t{number:03}"), ..bep::TargetId::default() };
        let tag = vec!["x".repeat(1900)];
        let configured = bep::TargetConfigured { target_kind: "k".repeat(1900), test_size: 1, tag };
        events.push(event(About::TargetConfigured(id), Payload::Configured(configured)));
    }
    archive(&mut writer, &messages("c", &events, 100, 0, 0), 100).await;
    let mut calls = Vec::new();
    for number in 0..700 {
        let pattern = bep::Patterns { pattern: vec!["y".repeat(2000)] };
        let expanded = event(About::Pattern(pattern), Payload::Expanded(bep::Nothing {}));
        calls.extend(messages(&format!("c{number}"), &[expanded], 1, 0, 1000 + number));
    }
    archive(&mut writer, &calls, 1000).await;

    let id = "c".parse().unwrap();
    let mut request = TargetsRequest { group: group(), id, status: None, cursor: None, limit: Some(1000) };
    let page = database.store.targets(&request).await.unwrap();
    assert!(serde_json::to_vec(&page).unwrap().len() < 900 << 10 && page.targets.len() > 100);
    request.cursor = page.next;
    assert_eq!(database.store.targets(&request).await.unwrap().targets[0].label, {
        let next = page.targets.len();
        format!("//a:t{next:03}")
    });
    assert_eq!(all_targets(&database.store, "c", 1000).await.len(), 700);
    let (mut found, mut cursor) = (0, None);
    loop {
        let request =
            ToolInvocationsRequest { limit: Some(1000), cursor, ..ToolInvocationsRequest::default() };
        let page = database.store.tool_invocations(&request).await.unwrap();
        assert!(serde_json::to_vec(&page).unwrap().len() < 900 << 10);
        found += page.tool_invocations.len();
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(found, 701);
}

async fn labels_with_any_characters_are_paged(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let labels = ["//a:1\n2\n3", "//a:\"4\"\\", "//a:ä\u{1}", "//a:\n"];
    let mut events = call(0);
    for label in labels {
        events.extend([completed(label, true), tested(label, 1, 1), tested(label, 2, 1)]);
    }
    archive(&mut writer, &messages("c", &events, 100, 0, 0), 100).await;
    let mut found: Vec<_> =
        all_targets(&database.store, "c", 1).await.into_iter().map(|target| target.label).collect();
    let mut wanted = labels.map(str::to_owned);
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    assert_eq!(all_tests(&database.store, "c", None, 1).await.len(), 8);
}

async fn a_history_of_a_test_counts_its_runs(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let mut all = messages("c1", &[tested("//a:t", 1, 1)], 1, 0, 0);
    all.extend(messages("c2", &[tested("//a:t", 1, 4)], 1, 0, 1));
    all.extend(messages("c3", &[tested("//a:t", 1, 0)], 1, 0, 2));
    archive(&mut writer, &all, 10).await;
    let of = HistoryOf::Test("//a:t".into());
    let request = HistoryRequest { group: Some(group()), of, days: None };
    let history = database.store.history(&request, Millis(START_MS + 1000)).await.unwrap();
    assert_eq!((history.total.runs, history.total.passed, history.total.p50_ms), (2, 1, 20), "{history:?}");
}

async fn a_grid_compares_the_last_calls_with_tests(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let mut all = messages("old", &[tested("//a:t", 1, 1), tested("//a:u", 1, 1)], 2, 0, 0);
    all.extend(messages("without", &[completed("//a:t", true)], 1, 0, 1000));
    all.extend(messages("new", &[tested("//a:t", 1, 1), tested("//a:t", 2, 4)], 2, 0, 2000));
    archive(&mut writer, &all, 10).await;
    let grid = async |text: Option<&str>, calls| {
        let text = text.map(str::to_owned);
        let request = TestGridRequest { group: Some(group()), text, calls: Some(calls) };
        database.store.test_grid(&request).await.unwrap()
    };
    let found = grid(None, 10).await;
    let calls: Vec<&str> = found.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(calls, ["new", "old"], "{found:?}");
    let statuses = |row: usize| -> Vec<(usize, &str)> {
        found.tests[row].results.iter().map(|result| (result.call, result.status.as_str())).collect()
    };
    assert_eq!((statuses(0), statuses(1)), (vec![(0, "failed"), (1, "passed")], vec![(1, "passed")]));
    assert_eq!(grid(Some(":u"), 10).await.tests.len(), 1);
    assert_eq!(grid(None, 1).await.tests[0].results.len(), 1);
    let other = TestGridRequest { group: Some("other".parse().unwrap()), ..TestGridRequest::default() };
    assert!(database.store.test_grid(&other).await.unwrap().calls.is_empty());
    let none = TestGridRequest { calls: Some(0), ..TestGridRequest::default() };
    assert!(database.store.test_grid(&none).await.is_err());
}

async fn old_calls_are_removed(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let mut all = messages("old", &call(2), 100, 0, 0);
    all.extend(messages("new", &call(2), 100, 0, 1000));
    archive(&mut writer, &all, 10).await;
    let retention = Retention { age: Duration::from_secs(5), ..retention(&[]) };
    while writer.sweep(&retention, Millis(START_MS + 6_000)).await.unwrap() {}
    assert!(all_targets(&database.store, "old", 10).await.is_empty());
    assert!(all_tests(&database.store, "old", None, 10).await.is_empty());
    assert_eq!(all_targets(&database.store, "new", 10).await.len(), 2);
}

async fn events_in_a_missing_blob_are_set_aside(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    let mut all = messages("c", &call(1), 3, 0, 0);
    let blob = format!("{}/9", "a".repeat(64));
    all[1].headers.as_mut().unwrap().insert("Forebay-Blob", blob.as_str());
    archive(&mut writer, &all, 10).await;
    let status = database.store.status().await.unwrap();
    let [aside] = status.set_aside.as_slice() else { panic!("{status:?}") };
    assert!(aside.reason.contains(&blob) && aside.position == Sequence(2), "{aside:?}");
    let tests = all_tests(&database.store, "c", None, 10).await;
    let [rest] = tests.as_slice() else { panic!("{tests:?}") };
    assert_eq!(rest.shard, 2, "the run of the first shard was in the blob");
}
