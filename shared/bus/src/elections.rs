//! Elections of leaders in a cluster of nats-servers: what was requested from an earlier leader is never answered.

use std::time::Duration;

use async_nats::Subscriber;
use futures::{StreamExt as _, stream::select_all};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tracing::warn;

use crate::{Bus, BusError};

const CONSUMERS: &str = "$JS.EVENT.ADVISORY.CONSUMER.LEADER_ELECTED";
const STREAMS: &str = "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED";
/// Elections come in groups when a server dies: a signal follows the last of them by this time.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum time from the first election of a group to its signal.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The elections of one durable consumer. A single server holds none.
#[derive(Debug)]
pub(crate) struct ConsumerElections(Subscriber);

impl ConsumerElections {
    /// Returns at the next election. May be dropped and repeated without losing one.
    pub(crate) async fn next(&mut self) {
        if self.0.next().await.is_none() {
            // The connection is closed for good; callers end by other means.
            std::future::pending::<()>().await;
        }
    }
}

/// Signals elections of any stream or consumer. A consumer that only one server has dies with it without an election;
/// those that this server led are elected then.
#[derive(Clone, Debug)]
pub(crate) struct Elections(watch::Receiver<u64>);

impl Elections {
    /// Returns at the next elections. May be dropped and repeated without losing one.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // They cannot be observed, or the connection is closed for good.
            std::future::pending::<()>().await;
        }
    }
}

impl Bus {
    /// Signals every election from now on; subscribes at the first call.
    pub(crate) fn elections(&self) -> Elections {
        let start = || {
            let (sender, receiver) = watch::channel(0);
            tokio::spawn(report(self.client.clone(), sender));
            receiver
        };
        let mut receiver = self.elections.get_or_init(start).clone();
        receiver.mark_unchanged();
        Elections(receiver)
    }

    /// The elections of consumer `name` of `stream` from now on. Without the permission to subscribe there are none.
    pub(crate) async fn consumer_elections(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<ConsumerElections, BusError> {
        let subject = format!("{CONSUMERS}.{stream}.{name}");
        let subscribed = self.client.subscribe(subject.clone()).await;
        let elections = subscribed.map_err(BusError::failed(format!("subscribing to {subject}")))?;
        Ok(ConsumerElections(elections))
    }
}

async fn report(client: async_nats::Client, elected: watch::Sender<u64>) {
    let mut subscribed = Vec::new();
    for subject in [format!("{STREAMS}.*"), format!("{CONSUMERS}.*.*")] {
        match client.subscribe(subject.clone()).await {
            Ok(elections) => subscribed.push(elections),
            Err(error) => warn!(subject, %error, "elections in the cluster are not noticed"),
        }
    }
    let mut elections = select_all(subscribed);
    while elections.next().await.is_some() {
        let until = Instant::now() + PAUSE_MAX;
        while let Ok(Some(_)) = timeout_at(until.min(Instant::now() + PAUSE), elections.next()).await {}
        elected.send_modify(|count| *count += 1);
    }
}
