//! Three nats-servers, every stream on each: one may die at any moment.

use std::time::Duration;

use farm::{Farm, SOON};
use model::{Outcome, Priority};

use crate::check::{ended_within, request, until};

const BOUND: Duration = Duration::from_secs(30);

#[tokio::test]
async fn builds_end_once_though_a_node_of_the_cluster_is_killed() {
    let farm = Farm::builder().without("gateway").cluster(3).lease_ttl(10).start().await;
    let mut keys = Vec::new();
    for number in 0..10 {
        let request = request(&farm.effects().command("echo out; sleep 0.5; echo more"));
        keys.push(if number % 2 == 0 {
            farm.submit("g", request).await
        } else {
            farm.publish("g", Priority::Automated, &request).await
        });
    }
    let starts = || farm.effects().all().iter().filter(|effect| effect.what == "start").count();
    until("builds run", SOON, || starts() >= 2).await;
    // Kill the leader of the event stream, so that an election is necessary.
    let mut events = farm.bus().jetstream().get_stream("FOREBAY_EVENTS").await.unwrap();
    let leader = events.info().await.unwrap().cluster.clone().unwrap().leader.unwrap();
    let node: usize = leader.trim_start_matches("node-").parse().unwrap();
    farm.servers.kill_node(node);
    until("builds run on", BOUND, || starts() >= 6).await;
    farm.servers.start_node(node).await;
    for key in &keys {
        let record = ended_within(&farm, key, BOUND).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
    }
    farm.effects().assert_sound();
}

#[tokio::test]
async fn a_build_on_a_cluster_whose_worker_dies_ends_once() {
    let farm = Farm::builder().without("gateway").cluster(3).start().await;
    let body = r#"echo out; [ "$FOREBAY_ATTEMPT" != 1 ] || sleep 1000"#;
    let key = farm.submit("g", request(&farm.effects().command(body))).await;
    until("it runs", SOON, || !farm.effects().all().is_empty()).await;
    drop(farm.take("worker"));
    farm.keep(farm.spawn("worker").await);
    let record = ended_within(&farm, &key, BOUND).await;
    assert_eq!((record.result().unwrap().outcome, record.attempt.0), (Outcome::Succeeded, 2));
    farm.effects().assert_sound();
}
