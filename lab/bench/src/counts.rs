//! Load of the servers per item, from their statistics.
//!
//! Redis: `total_reads_processed` of `INFO` is the number of reads from connections. A script with all its commands,
//! or a pipeline, is one round trip. `cmdstat_*` count every command, including those that scripts call.
//! JetStream: the increase of the last sequence numbers of all streams and buckets counts every stored message,
//! including those that have been replaced since.
//! Messages: what a subscriber to every subject receives.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use bus::{Bus, Patience, stream};
use credentials::Server;
use tokio::time::Instant;

use crate::{error::BenchError, farm::BenchFarm, figures::Figures, redis_info::RedisInfo};

/// Time after the last answer for messages that follow it.
const AFTER: Duration = Duration::from_millis(500);
/// Minimum messages per item of a kind that the text names.
const NAMED_MIN: f64 = 0.05;
/// Maximum length of a part of a subject that names a kind of message and not one of many ids.
const PART_MAX: usize = 20;
/// Number of parts of a subject that name a kind of message.
const PARTS_MAX: usize = 5;
const SCRIPTS: [&str; 3] = ["eval", "evalsha", "fcall"];
const STREAMS: [&str; 12] = [
    stream::REQUESTS,
    stream::EVENTS,
    stream::REJECTED,
    stream::LEASES,
    stream::ACTIONS,
    stream::EXECUTORS,
    stream::LOGS,
    stream::QUOTA,
    stream::MODELS,
    stream::SCALE,
    stream::ENVIRONMENTS,
    stream::SETTINGS,
];

/// Monotonic counters of the servers.
pub(crate) struct Counts {
    round_trips: u64,
    commands: BTreeMap<String, u64>,
    stored: u64,
}

/// Load of the servers, divided by the number of items.
#[derive(Debug, Clone)]
pub(crate) struct PerItem {
    pub(crate) round_trips: f64,
    /// Calls of Redis commands by name.
    commands: BTreeMap<String, f64>,
    pub(crate) stored: f64,
    /// Messages by kind of subject.
    messages: BTreeMap<String, f64>,
}

impl Counts {
    pub(crate) async fn read(farm: &BenchFarm) -> Result<Self, BenchError> {
        let mut stored = 0;
        for name in STREAMS {
            stored += farm.client.bus().stream(name).positions().await?.1.0;
        }
        let info = RedisInfo::read(farm).await?;
        Ok(Self { round_trips: info.value("total_reads_processed")?, commands: info.calls(), stored })
    }

    /// The load since `earlier`, in which `items` ran, without messages.
    pub(crate) fn since(&self, earlier: &Self, items: u64) -> PerItem {
        let per_item = |now: u64, before: u64| now.saturating_sub(before) as f64 / items as f64;
        let calls = self.commands.iter().map(|(name, calls)| {
            (name.clone(), per_item(*calls, earlier.commands.get(name).copied().unwrap_or_default()))
        });
        PerItem {
            round_trips: per_item(self.round_trips, earlier.round_trips),
            commands: calls.filter(|(_, calls)| *calls > 0.0).collect(),
            stored: per_item(self.stored, earlier.stored),
            messages: BTreeMap::new(),
        }
    }
}

impl PerItem {
    /// Adds the messages of `run`, in which `items` run.
    pub(crate) async fn with_messages(
        mut self,
        farm: &BenchFarm,
        items: u64,
        run: impl Future<Output = Result<(), BenchError>>,
    ) -> Result<Self, BenchError> {
        let bus = Bus::connect(Server::nats_of(&farm.endpoints), "forebay bench", Patience::None).await;
        let bus = bus.map_err(|error| BenchError::new("connecting to the farm", &error))?;
        let mut received = bus.all_messages().await?;
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        let mut run = pin!(run);
        let mut end = None;
        loop {
            tokio::select! {
                ran = &mut run, if end.is_none() => {
                    ran?;
                    end = Some(Instant::now() + AFTER);
                }
                message = received.next() => {
                    let message = message.ok_or_else(|| BenchError::plain("the connection to the bus closed"))?;
                    *counts.entry(kind(message.subject())).or_default() += 1;
                }
                () = until(end) => break,
            }
        }
        bus.close(AFTER).await;
        self.messages = counts.into_iter().map(|(kind, count)| (kind, count as f64 / items as f64)).collect();
        Ok(self)
    }

    /// All messages, stored or not.
    pub(crate) fn messages(&self) -> f64 {
        self.messages.values().sum()
    }

    pub(crate) fn redis_commands(&self) -> f64 {
        self.commands.values().sum()
    }

    fn scripts(&self) -> f64 {
        SCRIPTS.iter().filter_map(|name| self.commands.get(*name)).sum()
    }

    /// Figures of the load per `item`.
    pub(crate) fn figures(&self, item: &str) -> Figures {
        let mut figures = Figures::default();
        let name = |what: &str| format!("{what} per {item}");
        figures.figure("redis_round_trips", &name("Redis round trips"), self.round_trips, "");
        figures.figure("redis_scripts", &name("Redis scripts"), self.scripts(), "");
        let commands = name("Redis commands");
        figures.figure("redis_commands", &commands, self.redis_commands(), "");
        figures.field("redis_commands_by_name", serde_json::json!(self.commands));
        figures.figure("stored_messages", &name("stored messages"), self.stored, "");
        if self.messages.is_empty() {
            return figures;
        }
        figures.figure("messages", &name("all messages"), self.messages(), "");
        for (kind, count) in self.messages.iter().filter(|(_, count)| **count >= NAMED_MIN) {
            figures.line(&format!("  of {kind}"), *count, "");
        }
        figures.field("messages_by_subject", serde_json::json!(self.messages));
        figures
    }
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

/// The first parts of a subject, up to the first that is an id.
fn kind(subject: &str) -> String {
    let is_id = |part: &&str| part.len() > PART_MAX || part.contains(|it: char| it.is_ascii_digit());
    let parts: Vec<&str> = subject.split('.').take(PARTS_MAX).take_while(|part| !is_id(part)).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(round_trips: u64, calls: &[(&str, u64)], stored: u64) -> Counts {
        let commands = calls.iter().map(|(name, calls)| ((*name).to_owned(), *calls)).collect();
        Counts { round_trips, commands, stored }
    }

    #[test]
    fn a_load_is_what_was_added_per_item() {
        let before = counts(10, &[("evalsha", 5), ("ping", 7)], 100);
        let after = counts(30, &[("evalsha", 15), ("hget", 40), ("ping", 7)], 120);
        let load = after.since(&before, 10);
        let found = [load.round_trips, load.scripts(), load.redis_commands(), load.stored];
        let wanted = [2.0, 1.0, 5.0, 2.0];
        assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}");
        assert!(!load.commands.contains_key("ping"));
    }

    #[test]
    fn a_kind_of_message_has_no_id() {
        assert_eq!(kind("_INBOX.kdjfhgqwertzuiopasdfghjk.Ab"), "_INBOX");
        assert_eq!(kind("a.build.event.bench.0193-77"), "a.build.event.bench");
        assert_eq!(kind("a.b"), "a.b");
        assert_eq!(kind("$JS.API.DIRECT.GET.STREAM.a.b"), "$JS.API.DIRECT.GET.STREAM");
    }
}
