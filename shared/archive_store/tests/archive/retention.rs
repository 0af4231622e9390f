//! What is removed because of its age, on SQLite and on PostgreSQL.

use std::{collections::BTreeMap, time::Duration};

use archive_store::{Batch, LogStream, Retention, Writer};
use bus::Stored;
use model::{
    ActionsReply, ActionsRequest, ListRequest, Millis, Sequence, ToolInvocationsReply, ToolInvocationsRequest,
};
use serde_json::json;

use crate::{
    databases::Database,
    facts::{archive, log, numbers, request},
    messages::{START_MS, id, run_id},
    tools::{archive as archive_calls, call, messages as call_messages},
};

on_both! {
    old_builds_are_removed,
    a_group_may_have_an_age_of_its_own,
    messages_that_were_set_aside_are_removed_by_age,
}

/// Ten seconds, and others for these groups.
pub(crate) fn retention(groups: &[(&str, u64)]) -> Retention {
    let own = groups.iter().map(|(group, age)| (group.parse().unwrap(), Duration::from_secs(*age)));
    Retention { age: Duration::from_secs(10), age_by_group: own.collect::<BTreeMap<_, _>>(), size_max: 0 }
}

/// The builds of 30 that are left after 31 seconds; every tenth is of the group `other`.
async fn left(database: &Database, retention: &Retention) -> Vec<u64> {
    let log = log(30);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 50).await;
    while writer.sweep(retention, Millis(START_MS + 31_000)).await.unwrap() {}
    let all = request(ListRequest { text: Some("bazel".into()), ..ListRequest::default() });
    numbers(&database.store, &all).await
}

async fn old_builds_are_removed(database: Database) {
    assert_eq!(left(&database, &retention(&[])).await, (21..=30).rev().collect::<Vec<_>>());
    assert!(database.store.find(run_id(5, 1).parse().unwrap()).await.unwrap().is_empty());
}

async fn a_group_may_have_an_age_of_its_own(database: Database) {
    let ages = retention(&[("other", 1000), ("core", 5), ("unused", 1)]);
    assert_eq!(left(&database, &ages).await, [30, 29, 28, 27, 26, 20, 10]);
}

async fn messages_that_were_set_aside_are_removed_by_age(database: Database) {
    let mut log = log(1);
    let build = crate::messages::Build::new(2, "core", &json!({}));
    log.poison(&build);
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log.messages, 50).await;
    let left = async || database.store.status().await.unwrap().set_aside.len();
    writer.sweep(&retention(&[]), Millis(START_MS + 9_000)).await.unwrap();
    assert_eq!(left().await, 1);
    writer.sweep(&retention(&[]), Millis(START_MS + 31_000)).await.unwrap();
    assert_eq!(left().await, 0);
}

/// Action `number` of a build, accepted as many seconds after the start.
fn action(number: u64) -> Stored {
    let record = json!({
        "execution": {
            "id": id(number), "group": "core", "action": format!("{}/9", "a".repeat(64)), "priority": 0,
            "timeout_ms": 1000, "accepted_at_ms": START_MS + number * 1000, "expires_at_ms": START_MS * 2,
            "max_attempts": 3, "build": {"worker": "w1", "id": id(1), "attempt": 1},
        },
        "attempt": 1, "place": 0, "at_ms": START_MS + number * 1000, "event": "ACTION_ACCEPTED",
    });
    Stored {
        subject: format!("forebay.action.event.core.{}", id(number)),
        sequence: Sequence(number),
        at: Millis(START_MS + number * 1000),
        headers: None,
        payload: record.to_string().into_bytes().into(),
    }
}

async fn archive_actions(writer: &mut Writer, actions: &[Stored]) {
    let cursor = writer.cursor(LogStream::Actions, Millis(5)).await.unwrap();
    let mut batch = Batch::new(LogStream::Actions, cursor.base);
    for stored in actions {
        batch.add(stored);
    }
    assert_eq!(batch.refused().next(), None);
    writer.commit(&batch, cursor).await.unwrap();
}

/// Half the size removes the older half of each kind, and not all of one.
#[tokio::test]
async fn an_archive_that_is_too_large_loses_its_oldest_rows_of_each_kind() {
    let database = Database::sqlite();
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, &log(200).messages, 500).await;
    archive_actions(&mut writer, &(1..=200).map(action).collect::<Vec<_>>()).await;
    // Calls of Bazel with many targets, 10 s apart, as the builds and actions are 1 s apart.
    for number in 1..=20 {
        archive_calls(
            &mut writer,
            &call_messages(&format!("c{number}"), &call(60), 1000, 0, number * 1000),
            1,
        )
        .await;
    }
    writer.close().await.unwrap();
    let size = std::fs::metadata(database.path()).unwrap().len();
    let mut writer = database.store.writer().await.unwrap();
    let limit = Retention { age: Duration::from_secs(1 << 30), size_max: size / 2, ..retention(&[]) };
    while writer.sweep(&limit, Millis(START_MS)).await.unwrap() {}

    let all = request(ListRequest { limit: Some(1000), ..ListRequest::default() });
    let builds = numbers(&database.store, &all).await;
    let ActionsReply { actions, .. } = database
        .store
        .actions(&ActionsRequest {
            build: Some(id(1).parse().unwrap()),
            limit: Some(1000),
            ..ActionsRequest::default()
        })
        .await
        .unwrap();
    let ToolInvocationsReply { tool_invocations: calls, .. } =
        database.store.tool_invocations(&ToolInvocationsRequest::default()).await.unwrap();
    let oldest_build = *builds.last().unwrap();
    let oldest_action = (actions.last().unwrap().accepted_at_ms.0 - START_MS) / 1000;
    let oldest_call = calls.last().unwrap().id.as_str()[1..].parse::<u64>().unwrap() * 10;
    assert!((20..180).contains(&oldest_build), "{oldest_build}");
    assert!(oldest_build.abs_diff(oldest_action) <= 10, "{oldest_build} {oldest_action}");
    assert!(oldest_build.abs_diff(oldest_call) <= 20, "{oldest_build} {oldest_call}");
}
