//! The archive on SQLite and on PostgreSQL: each fact is tested on both.

use archive_store::{Batch, Cursor, LogStream, Store, Writer};
use bus::Stored;
use model::{
    ArchivedBuildsRequest, ConsoleOf, ConsoleOfBuild, ConsoleRequest, HistoryOf, HistoryRequest, ListRequest,
    Millis, Outcome, Priority, ReportRequest, Sequence, State,
};
use serde_json::json;

use crate::{
    databases::Database,
    messages::{Build, Log, START_MS, id, run_id},
};

const CREATED: Millis = Millis(5);

on_both! {
    what_is_written_is_read,
    what_is_delivered_again_changes_nothing,
    a_message_that_cannot_be_read_is_set_aside,
    filters_select_the_same_builds_as_a_scan,
    a_time_range_has_all_its_builds_in_any_order_of_arrival,
    pages_cover_all_builds_once,
    a_rare_text_is_looked_up_in_an_index,
    no_list_reads_a_whole_table,
    a_history_counts_passes_and_times,
    a_report_has_the_means_of_each_priority,
    a_second_process_writes_only_after_the_first,
    a_stream_that_was_created_again_goes_on,
    a_hostile_text_is_archived,
    an_id_that_is_published_again_is_the_newer_build,
}

pub(crate) async fn archive(writer: &mut Writer, messages: &[Stored], batch_size: usize) -> Cursor {
    let mut cursor = writer.cursor(LogStream::Events, CREATED).await.unwrap();
    let new: Vec<&Stored> = messages.iter().filter(|stored| stored.sequence > cursor.sequence()).collect();
    for part in new.chunks(batch_size) {
        cursor = write(writer, part, cursor).await;
    }
    cursor
}

async fn write(writer: &mut Writer, messages: &[&Stored], cursor: Cursor) -> Cursor {
    let mut batch = Batch::new(LogStream::Events, cursor.base);
    for stored in messages {
        batch.add(stored);
    }
    writer.commit(&batch, cursor).await.unwrap()
}

/// Some builds of two groups.
pub(crate) fn log(builds: u64) -> Log {
    let mut log = Log::default();
    for number in 1..=builds {
        let changes = json!({
            "labels": {"branch": if number % 2 == 0 { "main" } else { "topic" }, "n": number.to_string()},
            "priority": if number % 4 == 0 { "batch" } else { "interactive" },
            "submitter": format!("user{}", number % 7),
            "requirements": if number % 6 == 0 { json!({"ISA": "arm"}) } else { json!({}) },
            "command": ["bazel", "test", format!("//app{number}:All_100%")],
        });
        log.whole_build(number, if number % 10 == 0 { "other" } else { "core" }, &changes);
    }
    log
}

pub(crate) fn request(list: ListRequest) -> ArchivedBuildsRequest {
    ArchivedBuildsRequest { group: None, list }
}

pub(crate) async fn numbers(store: &Store, request: &ArchivedBuildsRequest) -> Vec<u64> {
    let reply = store.builds(request).await.unwrap();
    reply.builds.iter().map(|view| number(&view.record.build.labels["n"])).collect()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap()
}

async fn what_is_written_is_read(database: Database) {
    let log = log(10);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 7).await;
    let key = "core/0199f3a0-0000-7000-8000-000000000005".parse().unwrap();
    let view = database.store.build(&key).await.unwrap().unwrap();
    assert_eq!((view.state, view.record.attempt.0), (State::Finished, 2));
    let last = log
        .messages
        .iter()
        .rfind(|stored| stored.subject.contains(&id(5)) && stored.subject.ends_with("lifecycle"));
    assert_eq!(view.sequence, last.unwrap().sequence);
    assert_eq!(view.record, last.unwrap().record().unwrap());
    let runs = database.store.invocations(&key).await.unwrap();
    let ends: Vec<_> = runs.iter().map(|run| run.end.as_ref().unwrap()).collect();
    assert_eq!(ends[0].outcome, None, "the first attempt was lost, and the build went on");
    assert_eq!(ends[0].reason.as_deref(), Some("lease_expired"));
    assert_eq!(ends[1].outcome, Some(Outcome::Succeeded));
    assert!(runs[0].prepared_at_ms.is_some() && runs[0].lease_revision == Some(5));
    assert_eq!(runs.iter().map(|run| run.console["stdout"].bytes).collect::<Vec<_>>(), [6, 12]);
    let first_run = run_id(5, 1).parse().unwrap();
    let found = database.store.invocation(first_run).await.unwrap().unwrap();
    assert_eq!((found.invocation.attempt.0, found.build.record.build.key()), (1, key.clone()));
    let named = database.store.find(run_id(5, 2).parse().unwrap()).await.unwrap();
    assert_eq!(named.iter().map(|build| build.id).collect::<Vec<_>>(), [key.id]);
    assert!(
        database
            .store
            .build(&"core/0199f3a0-0000-7000-8000-0000000000ff".parse().unwrap())
            .await
            .unwrap()
            .is_none()
    );
}

async fn what_is_delivered_again_changes_nothing(database: Database) {
    let log = log(30);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 9).await;
    let content = database.store.content_hashes().await.unwrap();
    assert!(content.len() > 8);
    // As after a crash between a commit and its answer: any suffix is written again.
    for suffix in [1, 5, 40, log.messages.len()] {
        let mut cursor = writer.cursor(LogStream::Events, CREATED).await.unwrap();
        for part in log.messages[log.messages.len() - suffix..].chunks(11) {
            cursor = write(&mut writer, &part.iter().collect::<Vec<_>>(), cursor).await;
        }
    }
    assert_eq!(database.store.content_hashes().await.unwrap(), content);
}

async fn a_message_that_cannot_be_read_is_set_aside(database: Database) {
    let mut log = Log::default();
    let build = log.whole_build(1, "core", &json!({}));
    let position = log.poison(&build);
    log.whole_build(2, "core", &json!({}));
    let mut writer = database.store.writer().await.unwrap();
    let cursor = archive(&mut writer, &log.messages, 100).await;
    assert_eq!(cursor.sequence().0, log.messages.len() as u64);
    let status = database.store.status().await.unwrap();
    assert_eq!(status.set_aside.len(), 1);
    assert_eq!(status.set_aside[0].position, Sequence(position));
    assert!(status.set_aside[0].reason.contains("cannot be read"), "{}", status.set_aside[0].reason);
    writer.record_gap(LogStream::Events, 3, 9).await.unwrap();
    assert_eq!(database.store.status().await.unwrap().gaps[0].last, Sequence(9));
    assert_eq!(database.store.find(id(2).parse().unwrap()).await.unwrap().len(), 1);
}

/// Whether a list contains the build with this number.
type Check = fn(u64) -> bool;

async fn filters_select_the_same_builds_as_a_scan(database: Database) {
    let log = log(60);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 50).await;
    let at = |number: u64| Some(Millis(START_MS + number * 1000));
    let labels = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let all = ListRequest { limit: Some(1000), ..ListRequest::default() };
    let cases: Vec<(ListRequest, Check)> = vec![
        (all.clone(), |_| true),
        (ListRequest { outcome: Some(Outcome::Failed), ..all.clone() }, |n| n % 3 == 0),
        (ListRequest { outcome: Some(Outcome::Succeeded), ..all.clone() }, |n| n % 3 != 0),
        (ListRequest { priority: Some(Priority::Batch), ..all.clone() }, |n| n % 4 == 0),
        (ListRequest { submitter: Some("user3".into()), ..all.clone() }, |n| n % 7 == 3),
        (ListRequest { labels: labels("branch", "main"), ..all.clone() }, |n| n % 2 == 0),
        (ListRequest { requirements: labels("ISA", "arm"), ..all.clone() }, |n| n % 6 == 0),
        (ListRequest { since_ms: at(10), until_ms: at(20), ..all.clone() }, |n| (10..20).contains(&n)),
        (ListRequest { state: Some(State::InProgress), ..all.clone() }, |_| false),
        (ListRequest { text: Some("APP12:all".into()), ..all.clone() }, |n| n == 12),
        (ListRequest { text: Some("l_100%".into()), ..all.clone() }, |_| true),
        (ListRequest { text: Some("l_1_0%".into()), ..all.clone() }, |_| false),
        (ListRequest { text: Some("\"app\" OR".into()), ..all.clone() }, |_| false),
        (
            ListRequest {
                text: Some("bazel".into()),
                labels: labels("branch", "topic"),
                outcome: Some(Outcome::Failed),
                ..all.clone()
            },
            |n| n % 2 == 1 && n % 3 == 0,
        ),
        (ListRequest { id_prefix: Some("0199f3a0000070008000".into()), ..all.clone() }, |_| true),
    ];
    for (list, wanted) in cases {
        for group in [None, Some("other")] {
            let request =
                ArchivedBuildsRequest { group: group.map(|name| name.parse().unwrap()), list: list.clone() };
            let expected: Vec<u64> =
                (1..=60).rev().filter(|n| wanted(*n) && (group.is_none() || n % 10 == 0)).collect();
            assert_eq!(numbers(&database.store, &request).await, expected, "{list:?} of {group:?}");
        }
    }
    for text in ["", "ab"] {
        let short = request(ListRequest { text: Some(text.into()), ..all.clone() });
        assert!(database.store.builds(&short).await.unwrap_err().is_misuse());
    }
}

async fn a_time_range_has_all_its_builds_in_any_order_of_arrival(database: Database) {
    let (mut log, minutes) = (Log::default(), |minutes: u64| minutes * 60_000);
    // Several enqueuers accept builds at once: in each group of five, later builds came first.
    let times: Vec<u64> = (0..6)
        .flat_map(|hour| (0..5).map(move |n| START_MS + minutes(60 * hour) + minutes(1) * (4 - n)))
        .collect();
    for (number, at) in (1..).zip(&times) {
        let labels = json!({"n": number.to_string()});
        log.whole_build(number, "core", &json!({"submitted_at_ms": at, "labels": labels}));
    }
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 100).await;
    for (since, until) in
        [(0, 1000), (0, 3), (2, 1000), (60, 62), (61, 180), (119, 121), (301, 304), (400, 500)]
    {
        let (since, until) = (START_MS + minutes(since), START_MS + minutes(until));
        let (since_ms, until_ms) = (Some(Millis(since)), Some(Millis(until)));
        let range = ListRequest { since_ms, until_ms, limit: Some(1000), ..ListRequest::default() };
        let inside =
            (1..).zip(&times).filter(|(_, at)| (since..until).contains(at)).map(|(number, _)| number);
        let expected: Vec<u64> = inside.collect::<Vec<_>>().into_iter().rev().collect();
        assert_eq!(numbers(&database.store, &request(range)).await, expected, "{since} to {until}");
    }
}

async fn pages_cover_all_builds_once(database: Database) {
    let log = log(25);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 50).await;
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = request(ListRequest {
            limit: Some(4),
            cursor,
            text: Some("bazel".into()),
            ..ListRequest::default()
        });
        let reply = database.store.builds(&page).await.unwrap();
        seen.extend(reply.builds.iter().map(|view| number(&view.record.build.labels["n"])));
        cursor = reply.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, (1..=25).rev().collect::<Vec<_>>());
}

async fn a_rare_text_is_looked_up_in_an_index(database: Database) {
    let log = log(500);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 500).await;
    for (text, number) in [("//app321:", 321), ("TEST //APP77:", 77), ("app499:all_100%", 499)] {
        let list = request(ListRequest { text: Some(text.into()), ..ListRequest::default() });
        assert_eq!(numbers(&database.store, &list).await, [number], "{text}");
        let plan = database.store.plan(&list).await.unwrap();
        assert!(plan.iter().any(|step| step.contains("_search")), "{text}: {plan:#?}");
    }
}

async fn no_list_reads_a_whole_table(database: Database) {
    let log = log(60);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 50).await;
    let labels: std::collections::BTreeMap<String, String> =
        [("branch".to_owned(), "main".to_owned())].into();
    let none = ListRequest::default;
    let lists = [
        none(),
        ListRequest { outcome: Some(Outcome::Failed), ..none() },
        ListRequest { outcome: Some(Outcome::Succeeded), ..none() },
        ListRequest { priority: Some(Priority::Batch), ..none() },
        ListRequest { submitter: Some("user3".into()), ..none() },
        ListRequest { labels: labels.clone(), ..none() },
        ListRequest { requirements: labels, outcome: Some(Outcome::Failed), ..none() },
        ListRequest {
            since_ms: Some(Millis(START_MS + 3000)),
            until_ms: Some(Millis(START_MS + 9000)),
            ..none()
        },
        ListRequest { state: Some(State::Enqueued), ..none() },
        ListRequest { text: Some("bazel test".into()), ..none() },
        ListRequest { cursor: Some("p200".into()), ..none() },
    ];
    let reads_all = |step: &&String| {
        let table = ["builds", "b", "r", "build_records", "build_properties", "build_texts"];
        step.contains("Seq Scan") || table.iter().any(|name| **step == format!("SCAN {name}"))
    };
    for list in lists {
        for group in [None, Some("core")] {
            let request =
                ArchivedBuildsRequest { group: group.map(|name| name.parse().unwrap()), list: list.clone() };
            let plan = database.store.plan(&request).await.unwrap();
            assert!(
                !plan.is_empty() && plan.iter().find(reads_all).is_none(),
                "{list:?} of {group:?}: {plan:#?}"
            );
        }
    }
}

async fn a_history_counts_passes_and_times(database: Database) {
    let log = log(20);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 50).await;
    let now = Millis(START_MS + 3_600_000);
    let history = |of| HistoryRequest { group: None, of, days: None };
    let task = database.store.history(&history(HistoryOf::Task("//app:tests".into())), now).await.unwrap();
    assert_eq!((task.total.runs, task.total.passed, task.total.p50_ms, task.total.p95_ms), (20, 14, 10, 19));
    let label = database.store.history(&history(HistoryOf::Label("branch=main".into())), now).await.unwrap();
    assert_eq!((label.total.runs, label.total.passed), (10, 7));
    let line = "bazel test //app3:All_100%".to_owned();
    let command = database.store.history(&history(HistoryOf::Command(line)), now).await.unwrap();
    assert_eq!((command.total.runs, command.total.passed), (1, 0));
}

async fn a_report_has_the_means_of_each_priority(database: Database) {
    let log = log(20);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 50).await;
    let report = async |since_ms, group: Option<&str>| {
        let request = ReportRequest { since_ms, group: group.map(|group| group.parse().unwrap()) };
        database.store.report(&request).await.unwrap().priorities
    };
    let all = report(Millis(0), None).await;
    let counts: Vec<_> = all.iter().map(|of| (of.priority, of.builds)).collect();
    let wanted = [Priority::Emergency, Priority::Interactive, Priority::Automated, Priority::Batch];
    assert_eq!(counts, wanted.into_iter().zip([0, 15, 0, 5]).collect::<Vec<_>>());
    let [none, interactive, _, batch] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((none.queue_ms, none.share, batch.share), (None, 0.0, 0.25));
    // Each build names a target, and starts 5 ms after it is submitted.
    assert_eq!((interactive.targets, interactive.queue_ms), (Some(1.0), Some(5.0)));
    assert!(interactive.size_bytes.unwrap() > 400.0 && interactive.execution_ms.is_some(), "{interactive:?}");
    let of_other = report(Millis(0), Some("other")).await;
    assert_eq!(of_other.iter().map(|of| of.builds).sum::<u64>(), 2);
    // Builds 16 to 20.
    let recent = report(Millis(START_MS + 16_000), None).await;
    assert_eq!(recent.iter().map(|of| of.builds).sum::<u64>(), 5);
    assert_eq!(report(Millis(START_MS + 60_000), None).await[3].builds, 0);
}

async fn a_second_process_writes_only_after_the_first(database: Database) {
    let log = log(3);
    let mut first = database.store.writer().await.unwrap();
    archive(&mut first, &log.messages[..4], 2).await;
    let other = database.again();
    let waiting = tokio::spawn(async move { other.writer().await.map(|writer| (writer, other)) });
    let answers = database.again();
    assert_eq!(answers.status().await.unwrap().streams["FOREBAY_EVENTS"].position, Sequence(4));
    assert!(!waiting.is_finished());
    first.close().await.unwrap();
    let (mut second, store) = waiting.await.unwrap().unwrap();
    archive(&mut second, &log.messages, 100).await;
    assert_eq!(numbers(&store, &request(ListRequest::default())).await, [3, 2, 1]);
}

async fn a_stream_that_was_created_again_goes_on(database: Database) {
    let (old, mut new) = (log(2), Log::default());
    new.whole_build(7, "core", &json!({"labels": {"n": "7"}}));
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &old.messages, 100).await;
    let mut cursor = writer.cursor(LogStream::Events, Millis(9)).await.unwrap();
    assert_eq!(cursor.sequence(), Sequence(0), "a new stream is read from its start");
    cursor = write(&mut writer, &new.messages.iter().collect::<Vec<_>>(), cursor).await;
    assert_eq!(cursor.sequence(), new.messages.last().unwrap().sequence);
    assert_eq!(numbers(&database.store, &request(ListRequest::default())).await, [7, 2, 1]);
    let view = database.store.build(&format!("core/{}", id(7)).parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(view.sequence, new.messages.last().unwrap().sequence);
}

async fn a_hostile_text_is_archived(database: Database) {
    let mut log = Log::default();
    let nasty = format!("\0'; DROP TABLE builds; -- \u{202e}<b> % _ \\ \" {}", "x".repeat(9000));
    let changes = json!({"labels": {"n": "1", nasty.clone(): nasty.clone()}, "submitter": nasty.clone(), "command": [nasty.clone()]});
    log.whole_build(1, "core", &changes);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 100).await;
    assert!(database.store.status().await.unwrap().set_aside.is_empty());
    for text in ["'; drop table", "% _ \\ \"", "\u{202e}<b>"] {
        let found = numbers(
            &database.store,
            &request(ListRequest { text: Some(text.into()), ..ListRequest::default() }),
        )
        .await;
        assert_eq!(found, [1], "{text}");
    }
    let by_name = ListRequest { submitter: Some(nasty), ..ListRequest::default() };
    assert_eq!(numbers(&database.store, &request(by_name)).await, [1]);
}

/// In batches of any size, and after a repeat, the archive is as if it had only the newer build; sums count both.
async fn an_id_that_is_published_again_is_the_newer_build(database: Database) {
    let mut log = Log::default();
    log.whole_build(5, "core", &json!({"labels": {"n": "5"}, "command": ["old"]}));
    let old = log.messages.len();
    let newer = Build::new(5, "core", &json!({"labels": {"n": "5", "is": "new"}, "command": ["new"]}));
    let first = log.enqueued(&newer);
    log.started(&newer, 6, 1, first);
    log.console(&newer, 1, 0, "new\n");
    log.finished(&newer, 6, 1, first, "failed");

    let alone = Database::sqlite();
    archive(&mut alone.store.writer().await.unwrap(), &log.messages[old..], 100).await;
    let mut wanted = alone.store.content_hashes().await.unwrap();
    wanted.remove("day_sums");
    let mut writer = database.store.writer().await.unwrap();
    let mut sums = Vec::new();
    for size in [1, 4, old - 1, 100] {
        let mut cursor = writer.cursor(LogStream::Events, CREATED).await.unwrap();
        for part in log.messages.chunks(size) {
            cursor = write(&mut writer, &part.iter().collect::<Vec<_>>(), cursor).await;
        }
        let mut found = database.store.content_hashes().await.unwrap();
        sums.push(found.remove("day_sums").unwrap());
        if database.store.dialect() == alone.store.dialect() {
            assert_eq!(found, wanted, "{size}");
        }
        let view = database.store.build(&newer.key).await.unwrap().unwrap();
        assert_eq!(view.record.build.command, ["new"]);
        assert_eq!(database.store.invocations(&newer.key).await.unwrap().len(), 1);
        let of = ConsoleOf::Build(ConsoleOfBuild {
            group: newer.key.group.clone(),
            id: newer.key.id,
            attempt: None,
        });
        let console = database.store.console(&ConsoleRequest { of, after: None }).await.unwrap().unwrap();
        assert_eq!(console.pieces.len(), 1, "{console:?}");
    }
    assert!(sums.iter().all(|found| *found == sums[0]), "a repeat counts nothing again");
    // At once, and not one after the other.
    let at_once = Database::sqlite();
    archive(&mut at_once.store.writer().await.unwrap(), &log.messages, 100).await;
    if database.store.dialect() == at_once.store.dialect() {
        let mut found = at_once.store.content_hashes().await.unwrap();
        assert_eq!(found.remove("day_sums"), Some(sums[0].clone()));
        assert_eq!(found, wanted);
    }
}
