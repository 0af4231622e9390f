//! The server satisfies every statement of the Remote Execution API that needs no execution.

use std::collections::BTreeSet;

use crate::common::{Options, READ_ONLY, Server};
use conform::{Group, Report};

/// Checks that apply only to a server that executes actions.
const OF_EXECUTION: [u16; 2] = [6, 21];
/// The check of the right to write action results: it needs an instance whose clients lack this right.
const OF_RIGHTS: u16 = 80;
/// Larger than the blobs of the checks.
const BLOB_BYTES_MAX: u64 = 64 << 20;

/// Runs these checks, all of which must pass.
async fn assert_passes(options: conform::Options) {
    let count = options.only.len();
    let report: Report = conform::run(options, |_| {}).await.unwrap();
    assert_eq!((report.pass, report.fail, report.skip), (count, 0, 0), "{}", report.text(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_server_holds_to_every_statement_without_execution() {
    let limited = Options { blob_bytes_max: Some(BLOB_BYTES_MAX), ..Options::default() };
    let (server, full) = (Server::with(limited).await, Server::start().await);
    full.cas.set_full(true);
    let statements = conform::statements().into_iter();
    let of_the_store =
        statements.filter(|statement| statement.group <= Group::E).map(|statement| statement.id);
    let only: BTreeSet<u16> =
        of_the_store.filter(|id| !OF_EXECUTION.contains(id) && *id != OF_RIGHTS).collect();
    assert!(!only.is_empty(), "no statement is of groups A to E");
    assert_passes(conform::Options {
        endpoint: server.url().to_owned(),
        full_endpoint: Some(full.url().to_owned()),
        nested_instance: "a/b/c".into(),
        only,
        ..conform::Options::default()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_read_only_instance_may_not_write_action_results() {
    let server = Server::start().await;
    assert_passes(conform::Options {
        endpoint: server.url().to_owned(),
        instance: READ_ONLY.to_owned(),
        only: BTreeSet::from([OF_RIGHTS]),
        ..conform::Options::default()
    })
    .await;
}
