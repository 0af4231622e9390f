//! What each user needs works.

use access::rights_of;

use crate::support::{Acks, Mode, World, in_both_modes, json, next, services};

in_both_modes!(
    publishers_publish_and_see_their_builds,
    watchers_watch_groups_of_other_tenants_only_if_granted,
    services_follow_streams,
    a_lease_is_acquired_renewed_and_released,
    the_server_allows_all_that_the_roles_list,
);

const ID: &str = "0198c5d3-0000-7000-8000-000000000001";

async fn publishers_publish_and_see_their_builds(world: World) {
    let mut ci = world.connect("a/ci").await;
    let enqueuer = world.connect("enqueuer/1").await;
    for group in ["a1", "a2"] {
        let mut live = ci.subscribe(&format!("forebay.build.live.{group}.>")).await;
        let mut refused = ci.subscribe(&format!("forebay.build.rejected.{group}")).await;
        for priority in ["emergency", "interactive", "automated", "batch"] {
            ci.stored(&format!("forebay.build.request.{group}.{priority}"), "{}").await;
        }
        enqueuer.stored(&format!("forebay.build.event.{group}.{ID}.lifecycle"), "queued").await;
        let event = next(&mut live).await;
        assert_eq!(event.payload, "queued");
        let headers = event.headers.unwrap();
        assert!(headers.get("Nats-Sequence").is_some() && headers.get("Nats-Last-Sequence").is_some());
        enqueuer.stored(&format!("forebay.build.rejected.{group}"), "refused").await;
        assert_eq!(next(&mut refused).await.payload, "refused");
    }
    assert_eq!(ci.denials().await, Vec::<String>::new());
}

async fn watchers_watch_groups_of_other_tenants_only_if_granted(world: World) {
    let mut dashboard = world.connect("b/dashboard").await;
    let enqueuer = world.connect("enqueuer/1").await;
    let mut live = dashboard.subscribe("forebay.build.live.a2.>").await;
    let event = format!("forebay.build.event.a2.{ID}.lifecycle");
    enqueuer.stored(&event, "queued").await;
    assert_eq!(next(&mut live).await.payload, "queued");
    let last = dashboard.ask(&format!("$JS.API.DIRECT.GET.FOREBAY_EVENTS.{event}"), "").await;
    assert_eq!(last.payload, "queued");
    dashboard.is_denied_subscribe("forebay.build.live.a1.>").await;
    dashboard.is_denied_publish("forebay.build.request.a2.batch").await;
    // A publisher publishes to groups of its tenant, and does not see what the tenant only watches.
    world.connect("b/ci").await.is_denied_publish("forebay.build.request.a2.batch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueuers_receive_acknowledge_and_answer() {
    for (acks, mode) in [(Acks::First, Mode::Keys), (Acks::Second, Mode::Keys), (Acks::First, Mode::Jwt)] {
        let world = World::start_with(acks, mode).await;
        let mut enqueuer = world.connect("enqueuer/1").await;
        let ci = world.connect("a/ci").await;
        let context = async_nats::jetstream::new(enqueuer.client.clone());
        for priority in ["emergency", "interactive", "automated", "batch"] {
            ci.stored(&format!("forebay.build.request.a1.{priority}"), "{}").await;
            let name = format!("enqueuer-{priority}");
            let consumer: async_nats::jetstream::consumer::PullConsumer =
                context.get_consumer_from_stream(name, "FOREBAY_REQUESTS").await.unwrap();
            let mut batch = consumer.batch().max_messages(1).messages().await.unwrap();
            let message = futures::StreamExt::next(&mut batch).await.unwrap().unwrap();
            message.double_ack().await.unwrap();
        }
        assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, 0, "{acks:?}");
        // A request of a tenant, across the border of its account.
        let mut calls = enqueuer.subscribe("forebay.api.get.*").await;
        let asker = world.connect("a/dashboard").await;
        let answer = tokio::spawn(async move { asker.ask("forebay.api.get.a1", "{}").await });
        let call = next(&mut calls).await;
        enqueuer.client.publish(call.reply.unwrap(), "found".into()).await.unwrap();
        assert_eq!(answer.await.unwrap().payload, "found");
        assert_eq!(enqueuer.denials().await, Vec::<String>::new(), "{acks:?}");
    }
}

async fn services_follow_streams(world: World) {
    let enqueuer = world.connect("enqueuer/1").await;
    enqueuer.stored(&format!("forebay.build.event.a1.{ID}.lifecycle"), "queued").await;
    for name in
        ["dispatcher/1", "trainer/1", "autoscaler/1", "archive/1", "cas/1", "enqueuer/1", "operator/1"]
    {
        let mut user = world.connect(name).await;
        let context = async_nats::jetstream::new(user.client.clone());
        let config = async_nats::jetstream::consumer::pull::Config {
            // Of its own: the next user would find this one at its end.
            name: Some(format!("follow-{}", name.replace('/', "-"))),
            filter_subject: "forebay.build.event.*.*.lifecycle".to_owned(),
            ack_policy: async_nats::jetstream::consumer::AckPolicy::None,
            ..Default::default()
        };
        let consumer = context.create_consumer_on_stream(config, "FOREBAY_EVENTS").await.unwrap();
        let mut messages = consumer.stream().messages().await.unwrap();
        let message = futures::StreamExt::next(&mut messages).await.unwrap().unwrap();
        assert_eq!(message.payload, "queued", "{name}");
        assert_eq!(user.denials().await, Vec::<String>::new(), "{name}");
    }
}

async fn a_lease_is_acquired_renewed_and_released(world: World) {
    let mut worker = world.connect("worker/w-1").await;
    let lease = format!("$KV.FOREBAY_LEASES.a1.{ID}");
    let expected = "Nats-Expected-Last-Subject-Sequence";
    let first = worker.ask_with(&lease, &[(expected, "0"), ("Nats-TTL", "15s")], "{}").await;
    let at = json(&first)["seq"].to_string();
    let second = worker.ask_with(&lease, &[(expected, &at), ("Nats-TTL", "15s")], "{}").await;
    let at = json(&second)["seq"].to_string();
    let other = world.connect("worker/w-2").await;
    let refused = other.ask_with(&lease, &[(expected, "0"), ("Nats-TTL", "15s")], "{}").await;
    assert!(json(&refused)["error"].is_object());
    let purge = [(expected, at.as_str()), ("KV-Operation", "PURGE"), ("Nats-Rollup", "sub")];
    assert!(json(&worker.ask_with(&lease, &purge, "").await)["seq"].is_u64());
    let body = format!(r#"{{"last_by_subj":"{lease}"}}"#);
    assert!(
        json(&worker.ask("$JS.API.STREAM.MSG.GET.KV_FOREBAY_LEASES", &body).await)["message"].is_object()
    );
    assert_eq!(worker.denials().await, Vec::<String>::new());
}

async fn the_server_allows_all_that_the_roles_list(world: World) {
    for service in services(&world.access) {
        let rights = rights_of(&service);
        let mut user = world.connect(&service.to_string()).await;
        for subject in rights.subscribe() {
            user.subscribe(subject).await;
        }
        for filter in rights.publish() {
            // An empty body is a valid request to none of these, so nothing changes.
            let subject = filter.replace('*', "x").replace('>', "x.y");
            user.client.publish(subject, bytes::Bytes::new()).await.unwrap();
        }
        assert_eq!(user.denials().await, Vec::<String>::new(), "{service}");
    }
}
