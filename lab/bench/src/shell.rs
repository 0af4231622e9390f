//! Shell scripts as actions of the scenarios, and their times.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _};
use model::{BlobDigest, DigestFunction};
use policy::Random;
use reapi::{
    execution::{Action, Command, Platform, command::EnvironmentVariable, platform::Property},
    protobuf::Timestamp,
};
use remote::{Remote, Source, action_of};

use crate::{error::BenchError, farm::BenchFarm};

const FUNCTION: DigestFunction = DigestFunction::Sha256;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/bin:/bin";
const LOOK: Duration = Duration::from_millis(1);

/// Executes shell scripts as actions over several connections.
pub(crate) struct Shell {
    remotes: Vec<Remote>,
    turn: AtomicUsize,
    marks: PathBuf,
}

/// An action that ran. Times are seconds since the Unix epoch by the clock of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Ran {
    /// Time from the call to the answer, as measured by the client.
    pub(crate) took: Duration,
    pub(crate) queued: f64,
    pub(crate) started: f64,
    pub(crate) ended: f64,
    /// Seconds to prepare its inputs.
    pub(crate) fetched: f64,
    /// Executor that ran it.
    pub(crate) executor: String,
}

impl Ran {
    /// Seconds from acceptance to start.
    pub(crate) fn waited(&self) -> f64 {
        (self.started - self.queued).max(0.0)
    }

    /// Seconds that it ran between two times.
    pub(crate) fn within(&self, from: f64, to: f64) -> f64 {
        (self.ended.min(to) - self.started.max(from)).max(0.0)
    }
}

impl Shell {
    /// Opens this many connections.
    pub(crate) async fn new(farm: &BenchFarm, connections: usize) -> Result<Self, BenchError> {
        let mut remotes = Vec::with_capacity(connections);
        for _ in 0..connections {
            remotes.push(farm.remote().await?);
        }
        Ok(Self { remotes, turn: AtomicUsize::new(0), marks: farm.open_folder("marks")? })
    }

    /// A folder that the scripts can write to.
    pub(crate) fn marks(&self) -> &Path {
        &self.marks
    }

    /// Lines of a file that the scripts write.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.marks.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Creates a file that the scripts wait for.
    pub(crate) fn mark(&self, file: &str) -> Result<(), BenchError> {
        let path = self.marks.join(file);
        std::fs::write(&path, "").map_err(|error| BenchError::new(format!("{}", path.display()), &error))
    }

    /// One of the connections, in turn.
    pub(crate) fn remote(&self) -> Result<&Remote, BenchError> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let remote = self.remotes.get(turn % self.remotes.len().max(1));
        remote.ok_or_else(|| BenchError::plain("no connection to the gateway"))
    }

    /// Uploads an action of `script` with these platform properties.
    pub(crate) async fn upload(&self, script: &str, asks: &[(&str, &str)]) -> Result<BlobDigest, BenchError> {
        let all = self.upload_many(script, asks, 1).await?;
        all.first().copied().ok_or_else(|| BenchError::plain("nothing was uploaded"))
    }

    /// Uploads `count` unique actions of the same command.
    pub(crate) async fn upload_many(
        &self,
        script: &str,
        asks: &[(&str, &str)],
        count: usize,
    ) -> Result<Vec<BlobDigest>, BenchError> {
        let (command, platform) = (sh(script), platform(asks));
        let mut blobs: HashMap<BlobDigest, Source> = HashMap::new();
        let actions = (0..count).map(|_| {
            let salt = uuid::Uuid::new_v4().as_bytes().to_vec();
            let action = Action { salt, platform: platform.clone(), ..Action::default() };
            let (digest, parts) = action_of(FUNCTION, &command, action, &FUNCTION.empty());
            blobs.extend(parts);
            digest
        });
        let actions = actions.collect();
        self.remote()?.upload(&blobs).await?;
        Ok(actions)
    }

    /// Executes an action. It is an error if the action fails.
    pub(crate) async fn execute(&self, action: &BlobDigest) -> Result<Ran, BenchError> {
        self.execute_urgently(action, 0).await
    }

    /// Executes an action with a priority; lower values start sooner.
    pub(crate) async fn execute_urgently(
        &self,
        action: &BlobDigest,
        priority: i32,
    ) -> Result<Ran, BenchError> {
        let remote = self.remote()?.clone();
        run(&remote, action, priority, &AtomicUsize::new(0)).await
    }

    /// Executes an action in an instance; increments `accepted` when it is accepted.
    pub(crate) async fn execute_as(
        &self,
        instance: &str,
        action: &BlobDigest,
        accepted: &AtomicUsize,
    ) -> Result<Ran, BenchError> {
        run(&self.remote()?.with_instance(instance), action, 0, accepted).await
    }

    /// Executes all actions concurrently; increments `accepted` as they are accepted.
    pub(crate) async fn execute_all(
        &self,
        instance: &str,
        actions: &[BlobDigest],
        accepted: &AtomicUsize,
    ) -> Result<Vec<Ran>, BenchError> {
        let all = futures::stream::iter(actions).map(|action| self.execute_as(instance, action, accepted));
        all.buffer_unordered(actions.len().max(1)).try_collect().await
    }
}

async fn run(
    remote: &Remote,
    action: &BlobDigest,
    priority: i32,
    accepted: &AtomicUsize,
) -> Result<Ran, BenchError> {
    let (begun, mut first) = (Instant::now(), true);
    let executed = remote
        .execute(action, false, priority, |_, _| {
            if std::mem::take(&mut first) {
                accepted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .await?;
    let took = begun.elapsed();
    let status = executed.response.status.unwrap_or_default();
    let result = executed.response.result.filter(|result| status.code == 0 && result.exit_code == 0);
    let Some(result) = result else {
        let what = format!("an action failed: status {} {}", status.code, status.message);
        return Err(BenchError::plain(what));
    };
    let times = result.execution_metadata.unwrap_or_default();
    Ok(Ran {
        took,
        queued: seconds(times.queued_timestamp),
        started: seconds(times.execution_start_timestamp),
        ended: seconds(times.execution_completed_timestamp),
        fetched: seconds(times.input_fetch_completed_timestamp) - seconds(times.input_fetch_start_timestamp),
        executor: times.worker,
    })
}

/// A command that runs a shell script.
fn sh(script: &str) -> Command {
    let path = EnvironmentVariable { name: "PATH".to_owned(), value: PATH.to_owned() };
    Command {
        arguments: vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()],
        environment_variables: vec![path],
        ..Command::default()
    }
}

fn platform(asks: &[(&str, &str)]) -> Option<Platform> {
    let property =
        |(name, value): &(&str, &str)| Property { name: (*name).to_owned(), value: (*value).to_owned() };
    (!asks.is_empty()).then(|| Platform { properties: asks.iter().map(property).collect() })
}

fn seconds(at: Option<Timestamp>) -> f64 {
    at.map_or(0.0, |at| at.seconds as f64 + f64::from(at.nanos) / 1e9)
}

/// Waits until `condition` holds; fails after `limit`.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> bool,
) -> Result<Duration, BenchError> {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > limit {
            return Err(BenchError::plain(format!("timed out after {limit:?}: {what}")));
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(begun.elapsed())
}

/// Times of a Poisson process: independent arrivals, on average `rate` per second over `span`.
pub(crate) fn arrivals(rate: f64, span: Duration, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let (mut at, mut all) = (0.0, Vec::new());
    loop {
        // In (0, 1], since the logarithm of 0 is infinite.
        at += -(1.0 - random.unit()).ln() / rate;
        if at >= span.as_secs_f64() {
            return all;
        }
        all.push(Duration::from_secs_f64(at));
    }
}
