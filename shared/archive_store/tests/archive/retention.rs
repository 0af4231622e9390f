//! What is removed because of its age, on SQLite and on PostgreSQL.

use std::{collections::BTreeMap, time::Duration};

use archive_store::Retention;
use model::{ListRequest, Millis};

use crate::{
    databases::Database,
    facts::{archive, log, numbers, request},
    messages::{START_MS, run_id},
};

on_both! {
    old_builds_are_removed,
    a_group_may_have_an_age_of_its_own,
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
