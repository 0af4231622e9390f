//! Audit events: archived once, found by caller, kind, target and time, and removed by age.

use std::{collections::BTreeMap, time::Duration};

use archive_store::{Batch, LogStream, Retention, Store, Writer};
use bus::Stored;
use model::{AuditKind, AuditRequest, Millis, Sequence};
use serde_json::json;

use crate::{databases::Database, messages::START_MS};

const CREATED: Millis = Millis(5);

/// Event `number`, as many seconds after the start: each third is a refusal.
fn event(number: u64) -> Stored {
    let (kind, decision) =
        if number.is_multiple_of(3) { ("refusal", "refused") } else { ("cancel", "allowed") };
    let event = json!({
        "at_ms": START_MS + number * 1000, "kind": kind, "decision": decision, "proof": "key",
        "who": format!("key:ci-{}", number % 2), "call": "POST /v1/builds/{group}/{id}/cancel",
        "address": "10.0.0.1", "target": format!("web/{number}"), "reason": "a\nb", "source": "gateway-1",
        "dropped": number,
    });
    Stored {
        subject: format!("forebay.audit.{kind}"),
        sequence: Sequence(number),
        at: Millis(START_MS + number * 1000),
        headers: None,
        payload: event.to_string().into_bytes().into(),
    }
}

async fn archive(writer: &mut Writer, numbers: impl Iterator<Item = u64>) {
    let cursor = writer.cursor(LogStream::Audit, CREATED).await.unwrap();
    let mut batch = Batch::new(LogStream::Audit, cursor.base);
    for number in numbers {
        batch.add(&event(number));
    }
    writer.commit(&batch, cursor).await.unwrap();
}

async fn found(store: &Store, request: AuditRequest) -> Vec<u64> {
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        let page = AuditRequest { cursor, limit: Some(4), ..request.clone() };
        let reply = store.audit(&page).await.unwrap();
        all.extend(reply.events.iter().map(|entry| entry.position.0));
        cursor = reply.next;
        if cursor.is_none() {
            return all;
        }
    }
}

async fn events_are_found_by_what_they_say(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, 1..=12).await;
    let store = &database.store;
    let all = AuditRequest::default();
    assert_eq!(found(store, all.clone()).await, (1..=12).rev().collect::<Vec<_>>());
    let text = |text: &str| Some(text.to_owned());
    let cases = [
        (AuditRequest { kind: Some(AuditKind::Refusal), ..all.clone() }, vec![12, 9, 6, 3]),
        (AuditRequest { who: text("key:ci-1"), ..all.clone() }, vec![11, 9, 7, 5, 3, 1]),
        (AuditRequest { who: text("key:ci"), ..all.clone() }, vec![]),
        (AuditRequest { who: text("key:ci*"), limit: None, ..all.clone() }, (1..=12).rev().collect()),
        (AuditRequest { target: text("web/1"), ..all.clone() }, vec![1]),
        (AuditRequest { target: text("web/1*"), ..all.clone() }, vec![12, 11, 10, 1]),
        (AuditRequest { target: text("*"), who: text("' OR 1=1 --"), ..all.clone() }, vec![]),
        (AuditRequest { since_ms: Some(Millis(START_MS + 11_000)), ..all.clone() }, vec![12, 11]),
        (
            AuditRequest { kind: Some(AuditKind::Cancel), who: text("key:ci-0"), ..all.clone() },
            vec![10, 8, 4, 2],
        ),
    ];
    for (request, wanted) in cases {
        assert_eq!(found(store, request.clone()).await, wanted, "{request:?}");
    }
    let reply = store.audit(&AuditRequest { limit: Some(1), ..all.clone() }).await.unwrap();
    let event = &reply.events[0].event;
    assert_eq!((event.dropped, event.reason.as_ref().unwrap().as_str()), (12, "a\u{fffd}b"));
    assert_eq!(event.address.as_ref().unwrap().as_str(), "10.0.0.1");
    assert!(store.audit(&AuditRequest { cursor: text("forged"), ..all.clone() }).await.is_err());
    assert!(store.audit(&AuditRequest { who: text("a\0"), ..all }).await.unwrap_err().is_misuse());
}

async fn events_are_removed_by_age(database: Database) {
    let mut writer = database.store.writer().await.unwrap();
    archive(&mut writer, 1..=10).await;
    let retention = Retention { age: Duration::from_secs(60), age_by_group: BTreeMap::new(), size_max: 0 };
    writer.sweep(&retention, Millis(START_MS + 65_500)).await.unwrap();
    assert_eq!(found(&database.store, AuditRequest::default()).await, [10, 9, 8, 7, 6]);
}

on_both! {
    events_are_found_by_what_they_say,
    events_are_removed_by_age,
}
