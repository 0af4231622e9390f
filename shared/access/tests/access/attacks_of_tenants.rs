//! Attacks of users of a tenant on other tenants and on the farm. The careless user may do everything in the account of its
//! tenant: what it cannot do is denied by the account, not by permissions.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use credentials::{Seed, UserKey};

use crate::support::{World, in_both_modes, json, next, nothing};

in_both_modes!(
    n1_strangers_cannot_connect,
    n2_tenants_publish_only_to_their_groups_and_priorities,
    n2_a_priority_that_a_tenant_lacks_is_not_in_its_account,
    n3_answers_to_tenants_arrive_in_their_own_account,
    n4_tenants_cannot_list_or_read_streams,
    n5_tenants_cannot_have_messages_delivered_to_others,
    n6_tenants_cannot_receive_requests,
    n12_a_tenant_cannot_use_up_connections_or_subscriptions,
    n8_tenants_hear_only_their_groups,
    n9_headers_of_requests_change_nothing_in_the_queue,
    n10_a_message_id_of_another_tenant_loses_no_build,
);

const ID: &str = "0198c5d3-0000-7000-8000-000000000001";

/// The answer of the server to a connection that signs `nonce`, or its own nonce.
fn raw_connect(world: &World, key: &UserKey, nonce: Option<&str>) -> (String, String) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", world.port.number())).unwrap();
    stream.set_read_timeout(Some(farm::SOON)).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let info: serde_json::Value = serde_json::from_str(line.trim_start_matches("INFO ")).unwrap();
    let own = info["nonce"].as_str().unwrap().to_owned();
    let signature = URL_SAFE_NO_PAD.encode(key.seed.sign(nonce.unwrap_or(&own).as_bytes()).unwrap());
    let connect = match &key.token {
        None => serde_json::json!({"verbose": false, "nkey": key.seed.public().as_str(), "sig": signature}),
        Some(token) => serde_json::json!({"verbose": false, "jwt": token.reveal(), "sig": signature}),
    };
    write!(stream, "CONNECT {connect}\r\nPING\r\n").unwrap();
    let mut answer = String::new();
    reader.read_line(&mut answer).unwrap();
    if answer.starts_with("-ERR") {
        // The server closes the connection.
        let mut rest = String::new();
        let _ = reader.read_to_string(&mut rest);
    }
    (own, answer)
}

async fn n1_strangers_cannot_connect(world: World) {
    assert!(async_nats::connect(world.url()).await.is_err(), "without credentials");
    let password = async_nats::ConnectOptions::with_user_and_password("a".into(), "a".into());
    assert!(password.connect(world.url()).await.is_err(), "with a password");
    let stranger = Seed::generate().unwrap().into();
    assert!(world.try_connect(&stranger, "_INBOX").await.is_err(), "with an unknown key");
    let (key, _) = world.credentials("a/ci", access::Slot::Current);
    let (nonce, answer) = raw_connect(&world, &key, None);
    assert_eq!(answer, "PONG\r\n");
    let (_, answer) = raw_connect(&world, &key, Some(&nonce));
    assert!(answer.contains("Authorization Violation"), "an old signature: {answer}");
}

async fn n2_tenants_publish_only_to_their_groups_and_priorities(world: World) {
    let mut nightly = world.connect("a/nightly").await;
    nightly.stored("forebay.build.request.a1.batch", "{}").await;
    for subject in [
        "forebay.build.request.a1.emergency",
        "forebay.build.request.a2.batch",
        "forebay.build.request.b1.batch",
        "forebay.build.event.a1.x.lifecycle",
        "forebay.worker.control.w-1.0f",
        "forebay.api.create.a1",
        "$KV.FOREBAY_QUOTA.default",
    ] {
        nightly.is_denied_publish(subject).await;
    }
    let enqueuer = world.connect("enqueuer/1").await;
    let before = enqueuer.messages("FOREBAY_REQUESTS").await;
    let careless = world.careless().await;
    for subject in [
        "forebay.build.request.b1.batch",
        "forebay.build.request.other.batch",
        "forebay.build.event.a1.x.lifecycle",
        "forebay.build.event.b1.x.lifecycle",
        "forebay.action.event.a1.x",
        "forebay.api.get.b1",
        "forebay.api.list",
        "forebay.archive.list",
        "$KV.FOREBAY_QUOTA.default",
        "$KV.FOREBAY_LEASES.a1.x",
        "forebay.worker.control.w-1.0f",
    ] {
        careless.finds_none_at(subject, "{}").await;
    }
    assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, before);
    assert_eq!(enqueuer.messages("FOREBAY_EVENTS").await, 0);
}

async fn n2_a_priority_that_a_tenant_lacks_is_not_in_its_account(world: World) {
    let mut ci = world.connect("b/ci").await;
    ci.stored("forebay.build.request.b1.batch", "{}").await;
    for subject in ["forebay.build.request.b1.emergency", "forebay.api.create.b1"] {
        ci.is_denied_publish(subject).await;
    }
}

async fn n3_answers_to_tenants_arrive_in_their_own_account(world: World) {
    let worker = world.connect("worker/w-1").await;
    let mut orders = worker.subscribe("forebay.worker.control.w-1.0f").await;
    let enqueuer = world.connect("enqueuer/1").await;
    let event = format!("forebay.build.event.a1.{ID}.lifecycle");
    enqueuer.stored(&event, "order").await;
    let careless = world.careless().await;
    let mut own = careless.subscribe("forebay.worker.control.w-1.0f").await;
    let target = "forebay.worker.control.w-1.0f";
    careless.publish_with_reply("forebay.build.request.a1.batch", target, "{}").await;
    assert_eq!(json(&next(&mut own).await)["stream"], "FOREBAY_REQUESTS");
    careless.publish_with_reply(&format!("$JS.API.DIRECT.GET.FOREBAY_EVENTS.{event}"), target, "").await;
    assert_eq!(next(&mut own).await.payload, "order");
    careless.publish_with_reply("$JS.API.STREAM.INFO.FOREBAY_EVENTS", target, "").await;
    next(&mut own).await;
    enqueuer.client.publish(target, "from the enqueuer".into()).await.unwrap();
    assert_eq!(next(&mut orders).await.payload, "from the enqueuer");
    nothing(&mut orders).await;
}

async fn n4_tenants_cannot_list_or_read_streams(world: World) {
    let enqueuer = world.connect("enqueuer/1").await;
    enqueuer.stored(&format!("forebay.build.event.a1.{ID}.lifecycle"), "ours").await;
    enqueuer.stored(&format!("forebay.build.event.b1.{ID}.lifecycle"), "theirs").await;
    let careless = world.careless().await;
    let all = r#"{"seq":1,"next_by_subj":"forebay.build.event.>","batch":10}"#;
    careless.finds_none_at("$JS.API.DIRECT.GET.FOREBAY_EVENTS", all).await;
    let theirs = format!("$JS.API.DIRECT.GET.FOREBAY_EVENTS.forebay.build.event.b1.{ID}.lifecycle");
    careless.finds_none_at(&theirs, "").await;
    // A body that names other subjects than the request does.
    let ours = format!("$JS.API.DIRECT.GET.FOREBAY_EVENTS.forebay.build.event.a1.{ID}.lifecycle");
    assert_eq!(careless.ask(&ours, "").await.payload, "ours");
    let many = r#"{"multi_last":["forebay.build.event.>"],"batch":10}"#;
    let last = format!(r#"{{"last_by_subj":"forebay.build.event.b1.{ID}.lifecycle"}}"#);
    for body in [all, many, &last, r#"{"seq":2}"#] {
        let answer = careless.ask(&ours, body).await;
        assert!(answer.status.is_some() && answer.payload.is_empty(), "{body}: {:?}", answer.payload);
    }
    for (call, body) in [
        ("STREAM.INFO.FOREBAY_EVENTS", ""),
        ("STREAM.LIST", ""),
        ("STREAM.NAMES", ""),
        ("STREAM.MSG.GET.FOREBAY_EVENTS", r#"{"seq":2}"#),
        ("CONSUMER.LIST.FOREBAY_EVENTS", ""),
        ("CONSUMER.CREATE.FOREBAY_EVENTS.x", r#"{"stream_name":"FOREBAY_EVENTS","config":{"name":"x"}}"#),
        ("STREAM.PURGE.FOREBAY_EVENTS", ""),
    ] {
        let answer = json(&careless.ask(&format!("$JS.API.{call}"), body).await);
        // JetStream is not enabled for the account.
        assert_eq!(answer["error"]["err_code"], 10039, "{call}: {answer}");
    }
}

async fn n5_tenants_cannot_have_messages_delivered_to_others(world: World) {
    let enqueuer = world.connect("enqueuer/1").await;
    let careless = world.careless().await;
    let config = r#"{"stream_name":"FOREBAY_EVENTS","config":{"name":"push","deliver_subject":"forebay.build.request.b1.batch",
        "ack_policy":"none","deliver_policy":"all"}}"#;
    for call in ["CREATE.FOREBAY_EVENTS.push", "DURABLE.CREATE.FOREBAY_EVENTS.push"] {
        let answer = json(&careless.ask(&format!("$JS.API.CONSUMER.{call}"), config).await);
        assert_eq!(answer["error"]["err_code"], 10039, "{call}: {answer}");
    }
    enqueuer.stored(&format!("forebay.build.event.a1.{ID}.lifecycle"), "text").await;
    assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, 0);
}

async fn n6_tenants_cannot_receive_requests(world: World) {
    let mut ci = world.connect("a/ci").await;
    ci.stored("forebay.build.request.a1.batch", "{}").await;
    let call = "$JS.API.CONSUMER.MSG.NEXT.FOREBAY_REQUESTS.enqueuer-batch";
    ci.is_denied_publish(call).await;
    let careless = world.careless().await;
    let answer = careless.client.request(call, r#"{"batch":1,"no_wait":true}"#.into()).await;
    let received = answer.ok().filter(|answer| answer.payload == "{}");
    assert!(received.is_none(), "{received:?}");
}

async fn n12_a_tenant_cannot_use_up_connections_or_subscriptions(world: World) {
    let (key, inbox) = world.credentials("a/ci", access::Slot::Current);
    let mut held = Vec::new();
    let refused = loop {
        match world.try_connect(&key, &inbox).await {
            Ok(user) => held.push(user),
            Err(error) => break error,
        }
        assert!(held.len() <= 256, "no limit of connections");
    };
    assert!(held.len() == 256, "{} {refused}", held.len());
    // Others connect as before.
    world.connect("b/ci").await;
    world.connect("enqueuer/1").await;
    let mut one = held.pop().unwrap();
    drop(held);
    let mut subscriptions = Vec::new();
    for number in 0..10_001 {
        subscriptions.push(one.client.subscribe(format!("forebay.build.live.a1.{number}")).await.unwrap());
    }
    one.denial("maximum subscriptions exceeded").await;
    world.connect("b/ci").await.subscribe("forebay.build.live.b1.>").await;
}

async fn n8_tenants_hear_only_their_groups(world: World) {
    let mut dashboard = world.connect("a/dashboard").await;
    for subject in [
        ">",
        "_INBOX.>",
        "_INBOX_publisher.ci.>",
        "forebay.build.live.*.>",
        "forebay.build.live.a2.>",
        "$SYS.>",
        "$KV.>",
    ] {
        dashboard.is_denied_subscribe(subject).await;
    }
    let careless = world.careless().await;
    let mut everything = careless.subscribe(">").await;
    let enqueuer = world.connect("enqueuer/1").await;
    enqueuer.stored(&format!("forebay.build.event.b1.{ID}.lifecycle"), "theirs").await;
    enqueuer.stored("forebay.build.rejected.b1", "theirs").await;
    enqueuer.client.publish("forebay.worker.control.w-1.0f", "order".into()).await.unwrap();
    enqueuer.client.flush().await.unwrap();
    enqueuer.stored(&format!("forebay.build.event.a1.{ID}.lifecycle"), "ours").await;
    let first = loop {
        let message = next(&mut everything).await;
        // Its own request and the answer to it.
        if !message.subject.starts_with("$SYS.REQ.USER.INFO") && !message.subject.starts_with("_INBOX.") {
            break message;
        }
    };
    assert_eq!(first.subject.as_str(), format!("forebay.build.live.a1.{ID}.lifecycle"));
    nothing(&mut everything).await;
}

async fn n9_headers_of_requests_change_nothing_in_the_queue(world: World) {
    let (attacker, victim) = (world.connect("b/ci").await, world.connect("a/ci").await);
    let enqueuer = world.connect("enqueuer/1").await;
    victim.stored("forebay.build.request.a1.batch", "of the victim").await;
    let mut stored = 1;
    for headers in [
        vec![("Nats-Rollup", "all")],
        vec![("Nats-Rollup", "sub")],
        vec![("Nats-TTL", "1s")],
        vec![("Nats-Schedule", "@every 1s"), ("Nats-Schedule-Target", "forebay.build.request.a1.batch")],
        vec![("Nats-Batch-Id", "x"), ("Nats-Batch-Sequence", "1"), ("Nats-Batch-Commit", "1")],
        vec![("Nats-Incr", "5")],
        vec![("Nats-Expected-Last-Sequence", "999")],
        vec![("Nats-Expected-Last-Subject-Sequence", "999")],
        vec![("Nats-Expected-Last-Msg-Id", "999")],
        vec![("KV-Operation", "PURGE")],
    ] {
        let answer = json(&attacker.ask_with("forebay.build.request.b1.batch", &headers, "{}").await);
        stored += u64::from(answer.get("error").is_none());
        assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, stored, "{headers:?}: {answer}");
    }
    let mut inbox = enqueuer.subscribe("_INBOX_enqueuer.1.pull").await;
    let next_message = "$JS.API.CONSUMER.MSG.NEXT.FOREBAY_REQUESTS.enqueuer-batch";
    enqueuer.publish_with_reply(next_message, "_INBOX_enqueuer.1.pull", r#"{"batch":1}"#).await;
    assert_eq!(next(&mut inbox).await.payload, "of the victim");
}

async fn n10_a_message_id_of_another_tenant_loses_no_build(world: World) {
    let (attacker, victim) = (world.connect("b/ci").await, world.connect("a/ci").await);
    let enqueuer = world.connect("enqueuer/1").await;
    // What the attacker may guess: all forms of the id.
    for id in [ID.to_owned(), format!("a1/{ID}")] {
        attacker.ask_with("forebay.build.request.b1.batch", &[("Nats-Msg-Id", &id)], "{}").await;
    }
    let before = enqueuer.messages("FOREBAY_REQUESTS").await;
    // The id is in the request and not in the header: nats-server has nothing to compare.
    let body = format!(r#"{{"id":"{ID}","command":["true"]}}"#);
    let answer = json(&victim.ask("forebay.build.request.a1.batch", &body).await);
    assert_eq!(answer.get("duplicate"), None, "{answer}");
    assert_eq!(enqueuer.messages("FOREBAY_REQUESTS").await, before + 1);
    // With the header, the acknowledgement says that it was not stored.
    let again = format!("a1/{ID}");
    attacker.ask_with("forebay.build.request.b1.batch", &[("Nats-Msg-Id", &again)], "{}").await;
    let answer = victim.ask_with("forebay.build.request.a1.batch", &[("Nats-Msg-Id", &again)], &body).await;
    assert_eq!(json(&answer)["duplicate"], true);
}
