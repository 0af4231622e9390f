//! Groups share executors by usage, not by the number of requests.

use std::time::Duration;

use farm::Farm;
use futures::{StreamExt as _, future::join_all};
use model::{ExecutionOutcome, Millis};
use prost::Message as _;
use reapi::{
    execution::{ExecuteRequest, ExecutedActionMetadata, RequestMetadata},
    metadata::REQUEST_METADATA,
    protobuf::Timestamp,
};
use remote::Remote;

use crate::acting;

/// Time limit of a test.
const BOUND: Duration = Duration::from_secs(120);

async fn farm() -> Farm {
    let builder = acting::builder().env("FOREBAY_INSTANCES", "red=red blue=blue *=default");
    builder.env("FOREBAY_EXECUTOR_SLOTS", "4").start().await
}

/// Seconds since the Unix epoch.
fn seconds(at: Option<&Timestamp>) -> f64 {
    let at = at.unwrap();
    at.seconds as f64 + f64::from(at.nanos) / 1e9
}

/// Times of one finished action.
#[derive(Debug, Clone, Copy)]
struct Ran {
    queued: f64,
    started: f64,
    ended: f64,
}

impl Ran {
    fn of(metadata: &ExecutedActionMetadata) -> Self {
        Self {
            queued: seconds(metadata.queued_timestamp.as_ref()),
            started: seconds(metadata.execution_start_timestamp.as_ref()),
            ended: seconds(metadata.execution_completed_timestamp.as_ref()),
        }
    }

    /// Returns the seconds that it ran between two moments.
    fn within(self, from: f64, to: f64) -> f64 {
        (self.ended.min(to) - self.started.max(from)).max(0.0)
    }
}

/// Runs `count` actions of this group, each of which sleeps for `sleep` seconds; all are sent at once.
async fn run(remote: &Remote, group: &str, count: usize, sleep: f64) -> Vec<Ran> {
    let client = remote.with_instance(group);
    let actions = futures::stream::iter(0..count)
        .map(|number| {
            let client = &client;
            async move { acting::upload(client, &format!(": {number}; sleep {sleep}")).await }
        })
        .buffered(16)
        .collect::<Vec<_>>()
        .await;
    let ran = actions.into_iter().map(async |action| {
        let executed = tokio::time::timeout(BOUND, acting::execute(&client, action)).await;
        let response = executed.expect("it ends").unwrap().unwrap().response;
        Ran::of(&response.result.unwrap().execution_metadata.unwrap())
    });
    join_all(ran).await
}

#[tokio::test]
async fn a_group_that_sends_little_does_not_wait_for_one_that_sends_much() {
    let farm = farm().await;
    let remote = acting::remote(&farm).await;
    let much = {
        let remote = remote.clone();
        tokio::spawn(async move { run(&remote, "red", 400, 0.1).await })
    };
    // They are sent when the first actions of the other group run.
    while !some_ended(&farm).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let little = run(&remote, "blue", 20, 0.1).await;
    let much = tokio::time::timeout(BOUND, much).await.expect("all end").unwrap();
    let meanwhile = ended_meanwhile(&much, &little);
    // Half of the slots for twenty actions: about as many of the other group run at the same time.
    assert!(meanwhile < 60, "{meanwhile} of 400 actions ended before the last of 20 later ones");
    let wait = |all: &[Ran]| all.iter().map(|ran| ran.started - ran.queued).sum::<f64>() / all.len() as f64;
    assert!(wait(&little) * 3.0 < wait(&much), "{} s and {} s", wait(&little), wait(&much));
}

/// Counts the actions of `much` that ended while any of `little` waited or ran.
fn ended_meanwhile(much: &[Ran], little: &[Ran]) -> usize {
    let from = little.iter().map(|ran| ran.queued).fold(0.0, f64::max);
    let to = little.iter().map(|ran| ran.ended).fold(0.0, f64::max);
    much.iter().filter(|ran| ran.ended > from && ran.ended <= to).count()
}

async fn some_ended(farm: &Farm) -> bool {
    let histories = acting::histories(farm).await;
    histories.values().flatten().filter_map(|record| record.outcome()).any(ExecutionOutcome::is_success)
}

#[tokio::test]
async fn groups_share_by_what_they_use_and_not_by_how_many_they_send() {
    let farm = farm().await;
    let remote = acting::remote(&farm).await;
    let began = Millis::of_this_machine();
    // Ten seconds with four slots each, if each group had them exclusively.
    let (short, long) = tokio::join!(run(&remote, "red", 400, 0.05), run(&remote, "blue", 40, 0.5));
    assert!(Millis::of_this_machine().since(began) < BOUND);
    let span = |all: &[Ran]| {
        let first = all.iter().map(|ran| ran.started).fold(f64::MAX, f64::min);
        (first, all.iter().map(|ran| ran.started).fold(0.0, f64::max))
    };
    // As long as both groups have waiting actions.
    let ((short_from, short_to), (long_from, long_to)) = (span(&short), span(&long));
    let (from, to) = (short_from.max(long_from), short_to.min(long_to));
    let used = [&short, &long].map(|all| all.iter().map(|ran| ran.within(from, to)).sum::<f64>());
    let jain = (used[0] + used[1]).powi(2) / (2.0 * (used[0].powi(2) + used[1].powi(2)));
    assert!(jain > 0.9, "{jain}: {used:?} slot-seconds in {} s", to - from);
}

#[tokio::test]
async fn invocations_of_a_group_take_turns() {
    let farm = acting::builder().env("FOREBAY_EXECUTOR_SLOTS", "2").start().await;
    let remote = acting::remote(&farm).await;
    let much = {
        let remote = remote.clone();
        tokio::spawn(async move { run_as(&remote, "much", 120).await })
    };
    while !some_ended(&farm).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let little = run_as(&remote, "little", 10).await;
    let much = tokio::time::timeout(BOUND, much).await.expect("all end").unwrap();
    let meanwhile = ended_meanwhile(&much, &little);
    assert!(meanwhile < 70, "{meanwhile} of 120 actions ended before the last of 10 of another invocation");
}

/// Runs `count` actions of one invocation; all are sent at once.
async fn run_as(remote: &Remote, invocation: &str, count: usize) -> Vec<Ran> {
    let said = RequestMetadata { tool_invocation_id: invocation.to_owned(), ..RequestMetadata::default() }
        .encode_to_vec();
    let ran = (0..count).map(async |number| {
        let action = acting::upload(remote, &format!(": {invocation} {number}; sleep 0.15")).await;
        let digest = Some(reapi::digest::to_proto(&action));
        let mut asked =
            tonic::Request::new(ExecuteRequest { action_digest: digest, ..ExecuteRequest::default() });
        asked.metadata_mut().insert_bin(REQUEST_METADATA, tonic::metadata::MetadataValue::from_bytes(&said));
        let stream = remote.execution().execute(asked).await.unwrap().into_inner();
        Ran::of(&acting::ended(stream).await.result.unwrap().execution_metadata.unwrap())
    });
    join_all(ran).await
}
