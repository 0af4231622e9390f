//! Memory and time of many clients, each waiting for its own execution.

use std::time::Instant;

use crate::support::{Farm, Operations, request};
use futures::StreamExt as _;
use model::BlobDigest;
use reapi::execution::execution_client::ExecutionClient;
use tonic::transport::Channel;

/// Number of waiters; 20,000 with `FOREBAY_LONG=1`.
const COUNT: usize = 2000;
/// Number of HTTP/2 connections that they share.
const CONNECTIONS: usize = 4;
/// Maximum number of concurrent requests.
const IN_FLIGHT: usize = 256;
/// Maximum memory of one waiter in bytes, for both ends of its stream, which are in this process.
const EACH_MAX: u64 = 64 << 10;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

async fn redis_clients(farm: &Farm) -> u64 {
    let info = farm.redis_info("clients").await;
    let line = info.lines().find_map(|line| line.strip_prefix("connected_clients:")).unwrap();
    line.trim().parse().unwrap()
}

/// A client whose execution was accepted.
async fn begun(channel: &Channel, action: &BlobDigest) -> Operations {
    let mut client = ExecutionClient::new(channel.clone());
    let mut stream = Operations(client.execute(request(action)).await.unwrap().into_inner());
    stream.next().await;
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_wait_without_a_connection_each() {
    let count = if std::env::var_os("FOREBAY_LONG").is_some() { 20_000 } else { COUNT };
    let farm = Farm::start().await;
    let mut executor = farm.executor().await;
    let gateway = farm.gateway().await;
    let endpoint = Channel::from_shared(format!("http://{}", gateway.address)).unwrap();
    let channels = futures::future::join_all((0..CONNECTIONS).map(|_| endpoint.connect())).await;
    let channels: Vec<Channel> = channels.into_iter().map(Result::unwrap).collect();
    let mut actions = Vec::with_capacity(count);
    for number in 0..count {
        actions.push(farm.action(&number.to_string()).await);
    }

    let (before, start) = (resident(), Instant::now());
    let streams: Vec<Operations> = futures::stream::iter(actions.iter().zip(channels.iter().cycle()))
        .map(|(action, channel)| begun(channel, action))
        .buffer_unordered(IN_FLIGHT)
        .collect()
        .await;
    let (took, each) = (start.elapsed(), (resident() - before) / count as u64);
    let connections = redis_clients(&farm).await;
    println!("{count} wait after {took:?}, {each} bytes each, {connections} clients of Redis");
    assert!(connections < 10, "{connections} clients of Redis");
    assert!(each < EACH_MAX, "{each} bytes for each");

    // All of them receive the result.
    let outcome = executor.outcome(0, Some(&executor.result("x").await));
    let mut offers = Vec::with_capacity(count);
    while offers.len() < count {
        offers.push(executor.offer().await);
    }
    let start = Instant::now();
    let executor = &executor;
    let ending = futures::stream::iter(offers)
        .for_each_concurrent(IN_FLIGHT, |offer| executor.finish(offer, outcome.clone()));
    let telling = futures::stream::iter(streams).for_each_concurrent(None, async |stream| {
        assert_eq!(stream.response().await.status.unwrap().code, 0);
    });
    tokio::join!(ending, telling);
    println!("all received the result after {:?}", start.elapsed());
}
