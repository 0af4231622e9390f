//! One id in two groups: both builds exist, although nats-server compares message ids across all groups.

use async_nats::{
    HeaderMap,
    jetstream::{context::PublishError, publish::PublishAck},
};
use farm::{Farm, SOON};
use model::{BuildId, BuildKey, State};

/// Publishes a build with this `Nats-Msg-Id`, again until it is acknowledged: a cluster of three refuses an id
/// that it is processing.
async fn publish(farm: &Farm, group: &str, message_id: &str) -> PublishAck {
    loop {
        if let Ok(ack) = publish_once(farm, group, message_id).await {
            return ack;
        }
    }
}

async fn publish_once(farm: &Farm, group: &str, message_id: &str) -> Result<PublishAck, PublishError> {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", message_id);
    let subject = format!("forebay.build.request.{group}.interactive");
    let payload = format!(r#"{{"command":["echo","{group}"]}}"#);
    let sent = farm.bus().jetstream().publish_with_headers(subject, headers, payload.into()).await;
    sent?.await
}

async fn is_queued(farm: &Farm, group: &str, id: BuildId) {
    let key = BuildKey { group: group.parse().unwrap(), id };
    let (_, record) = farm.wait_until(&key, SOON, |record| record.state() == State::Enqueued).await;
    assert_eq!(record.build.command, ["echo", group]);
}

async fn bare_ids(farm: &Farm) {
    let mut repeats = 0;
    for round in 0..10 {
        let id = BuildId::generate();
        let (one, other) = (format!("one{round}"), format!("other{round}"));
        let text = id.to_string();
        let acks = tokio::join!(publish(farm, &one, &text), publish(farm, &other, &text));
        repeats += usize::from(acks.0.duplicate) + usize::from(acks.1.duplicate);
        is_queued(farm, &one, id).await;
        is_queued(farm, &other, id).await;
    }
    // Otherwise nothing was tested.
    assert!(repeats > 0, "nats-server took no publish for a repeat");
}

#[tokio::test]
async fn a_bare_id_that_is_published_to_two_groups_at_once_is_two_builds() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    bare_ids(&farm).await;
}

#[tokio::test]
async fn a_bare_id_that_is_published_to_two_groups_of_a_cluster_is_two_builds() {
    let farm = Farm::builder().only(&["enqueuer"]).cluster(3).start().await;
    bare_ids(&farm).await;
}

#[tokio::test]
async fn an_id_with_its_group_is_safe_while_no_service_runs() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    drop(farm.take("enqueuer"));
    let id = BuildId::generate();
    let names = (format!("one/{id}"), format!("other/{id}"));
    let acks = tokio::join!(publish(&farm, "one", &names.0), publish(&farm, "other", &names.1));
    assert!(!acks.0.duplicate && !acks.1.duplicate);
    farm.keep(farm.spawn("enqueuer").await);
    is_queued(&farm, "one", id).await;
    is_queued(&farm, "other", id).await;
}

#[tokio::test]
async fn an_id_with_another_group_than_the_subjects_is_refused() {
    let farm = Farm::builder().only(&["enqueuer"]).start().await;
    let id = BuildId::generate();
    publish(&farm, "one", &format!("other/{id}")).await;
    let key = BuildKey { group: "one".parse().unwrap(), id };
    let record = farm.wait_finished(&key, SOON).await;
    let reason = record.result().unwrap().reason.as_ref().unwrap().message.clone();
    assert_eq!(reason, "header Nats-Msg-Id names group other, expected one");
}
