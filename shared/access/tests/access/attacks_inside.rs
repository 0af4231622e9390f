//! Attacks of one service of the farm on others, and on what is stored.

use crate::support::{Acks, Mode, World, in_both_modes, json, next, nothing};

in_both_modes!(
    n6_workers_cannot_receive_requests,
    n8_services_cannot_hear_what_is_for_others,
    n14_an_executor_cannot_act_as_another,
    n15_no_service_can_delete_what_is_stored,
    a_service_cannot_answer_more_often_than_asked,
);

const NEXT: &str = "$JS.API.CONSUMER.MSG.NEXT.FOREBAY_REQUESTS.enqueuer-batch";

async fn n6_workers_cannot_receive_requests(world: World) {
    for name in ["worker/w-1", "executor/e-1", "gateway/1", "reaper/1", "scheduler/1"] {
        world.connect(name).await.is_denied_publish(NEXT).await;
    }
    // Nor the expiry of leases, which is the reapers'.
    let leases = "$JS.API.CONSUMER.MSG.NEXT.KV_FOREBAY_LEASES.reaper-leases";
    world.connect("worker/w-1").await.is_denied_publish(leases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn n7_a_forged_acknowledgement_changes_nothing() {
    for (acks, mode) in [(Acks::First, Mode::Keys), (Acks::Second, Mode::Keys), (Acks::Second, Mode::Jwt)] {
        let world = World::start_with(acks, mode).await;
        let ci = world.connect("a/ci").await;
        ci.stored("forebay.build.request.a1.batch", "{}").await;
        let enqueuer = world.connect("enqueuer/1").await;
        let mut inbox = enqueuer.subscribe("_INBOX_enqueuer.1.pull").await;
        enqueuer.publish_with_reply(NEXT, "_INBOX_enqueuer.1.pull", r#"{"batch":1}"#).await;
        let delivery = next(&mut inbox).await;
        let ack = delivery.reply.unwrap().to_string();
        assert_eq!(ack.split('.').count(), if acks == Acks::First { 9 } else { 11 }, "{ack}");
        // Denied in both forms, whichever the server uses.
        let mut worker = world.connect("worker/w-1").await;
        for subject in [
            ack.as_str(),
            "$JS.ACK.FOREBAY_REQUESTS.enqueuer-batch.1.1.1.1.0",
            "$JS.ACK._.hash.FOREBAY_REQUESTS.enqueuer-batch.1.1.1.1.0.x",
        ] {
            worker.is_denied_publish(subject).await;
        }
        // No consumer is in the account of a tenant.
        let careless = world.careless().await;
        for body in ["+ACK", "+TERM"] {
            careless.client.publish(ack.clone(), body.into()).await.unwrap();
        }
        careless.client.flush().await.unwrap();
        assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, 1, "{acks:?}");
        // Its own is accepted.
        enqueuer.ask(&ack, "+ACK").await;
        assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, 0, "{acks:?}");
    }
}

async fn n8_services_cannot_hear_what_is_for_others(world: World) {
    let mut worker = world.connect("worker/w-1").await;
    for subject in [
        ">",
        "_INBOX.>",
        "_INBOX_enqueuer.1.>",
        "_INBOX_worker.w-2.>",
        "forebay.worker.offer.w-2.0f",
        "forebay.worker.offer.*",
        "forebay.build.live.>",
        "$SYS.>",
        "$KV.>",
        "$JS.>",
    ] {
        worker.is_denied_subscribe(subject).await;
    }
}

async fn n14_an_executor_cannot_act_as_another(world: World) {
    let mut executor = world.connect("executor/e-1").await;
    executor.stored("$KV.FOREBAY_EXECUTORS.e-1.0f", "{}").await;
    for subject in [
        "$KV.FOREBAY_EXECUTORS.e-2.0f",
        "$KV.FOREBAY_LEASES.a1.x",
        "forebay.executor.grant.e-2.0f",
        "forebay.executor.control.e-2.0f",
        "forebay.build.event.a1.x.lifecycle",
    ] {
        executor.is_denied_publish(subject).await;
    }
    for subject in
        ["forebay.executor.grant.e-2.0f", "forebay.executor.control.e-2.0f", "forebay.executor.output.e-2.0f"]
    {
        executor.is_denied_subscribe(subject).await;
    }
    // Limits that the documents name: these subjects do not name the executor that writes.
    let scheduler = world.connect("scheduler/1").await;
    let mut heartbeats = scheduler.subscribe("forebay.executor.heartbeat").await;
    executor.client.publish("forebay.executor.heartbeat", "of e-2".into()).await.unwrap();
    assert_eq!(next(&mut heartbeats).await.payload, "of e-2");
    executor.stored("forebay.action.event.a1.x", "{}").await;
}

async fn n15_no_service_can_delete_what_is_stored(world: World) {
    let ci = world.connect("a/ci").await;
    ci.stored("forebay.build.request.a1.batch", "{}").await;
    for name in ["operator/1", "topology/1", "enqueuer/1", "reaper/1", "gateway/1", "worker/w-1"] {
        let mut user = world.connect(name).await;
        for call in [
            "STREAM.DELETE.FOREBAY_REQUESTS",
            "STREAM.PURGE.FOREBAY_REQUESTS",
            "STREAM.MSG.DELETE.FOREBAY_REQUESTS",
            "STREAM.RESTORE.FOREBAY_REQUESTS",
            "STREAM.SNAPSHOT.FOREBAY_REQUESTS",
            "CONSUMER.DELETE.FOREBAY_REQUESTS.enqueuer-batch",
            "META.LEADER.STEPDOWN",
        ] {
            user.is_denied_publish(&format!("$JS.API.{call}")).await;
        }
    }
    let enqueuer = world.connect("enqueuer/1").await;
    assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_permissions_may_do_nothing() {
    let world = World::start().await;
    // The default of an account denies; this is what a block that was forgotten would mean.
    let text = std::fs::read_to_string(world.folder.path().join("users.conf")).unwrap();
    let (key, _) = world.credentials("web/1", access::Slot::Current);
    let seed = &key.seed;
    let start = text.find(&format!("{{ nkey: {}", seed.public())).unwrap();
    let end = start + text[start..].find("} }\n").unwrap() + 3;
    let bare = format!("{}{{ nkey: {} }}{}", &text[..start], seed.public(), &text[end..]);
    std::fs::write(world.folder.path().join("users.conf"), bare).unwrap();
    let mut world = world;
    world.restart().await;
    let mut user = world.try_connect(&key, "_INBOX_web.1").await.unwrap();
    user.is_denied_publish("forebay.api.list").await;
    user.is_denied_subscribe("_INBOX_web.1.>").await;
}

async fn a_service_cannot_answer_more_often_than_asked(world: World) {
    let worker = world.connect("worker/w-1").await;
    let mut offers = worker.subscribe("forebay.worker.offer.w-1.0f").await;
    let dispatcher = world.connect("dispatcher/1").await;
    let mut answers = dispatcher.subscribe("_INBOX_dispatcher.1.x").await;
    dispatcher.publish_with_reply("forebay.worker.offer.w-1.0f", "_INBOX_dispatcher.1.x", "offer").await;
    let reply = next(&mut offers).await.reply.unwrap();
    for body in ["first", "second"] {
        worker.client.publish(reply.clone(), body.into()).await.unwrap();
    }
    worker.client.flush().await.unwrap();
    assert_eq!(next(&mut answers).await.payload, "first");
    nothing(&mut answers).await;
    let info = dispatcher.ask("$JS.API.STREAM.INFO.FOREBAY_EVENTS", "").await;
    assert_eq!(json(&info)["config"]["name"], "FOREBAY_EVENTS");
}
