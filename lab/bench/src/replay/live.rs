//! The jobs of a replay on a farm: real servers and schedulers, and light executors with one slot for each worker.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use bus::millis;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::{Execution, ExecutionId, Pool, Requirements};
use replay::{Job, Stream};
use tokio::time::Instant;

use super::{case::Case, outcome::Outcome};
use crate::{
    accepted,
    error::BenchError,
    farm::BenchFarm,
    index_wait::index_shows,
    ledger::{Ledger, Tally},
    light_executors::{self, Fleet, LightExecutors, RunTimes},
};

/// Slots of an executor, because a worker runs one job at a time.
const SLOTS: u16 = 1;
/// Number of concurrent writes of records.
const WRITES: usize = 256;
/// Time that the farm may take in addition to twice the simulated time.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs the stream of `case` on a farm. Its times, multiplied by the speed, are the outcome.
pub(super) async fn run(case: &Case<'_>, simulated: &Outcome) -> Result<(Outcome, Tally), BenchError> {
    let Case { stream, order, schedulers, speed } = case;
    let mut farm = BenchFarm::of_servers().await?;
    let order = order.to_string();
    for number in 1..=*schedulers {
        farm.scheduler(&format!("scheduler-{number}"), &[("FOREBAY_ACTION_ORDER", &order)]).await?;
    }
    let ids: Vec<ExecutionId> = stream.jobs.iter().map(|_| ExecutionId::generate()).collect();
    let pools = pools(stream)?;
    let run_time = |(id, job): (&ExecutionId, &Job)| (*id, scaled(job.duration_ms, *speed));
    let run = RunTimes::Each(ids.iter().zip(&stream.jobs).map(run_time).collect());
    let ledger = Arc::new(Ledger::new(0));
    let fleet = Fleet { pools: pools.clone(), slots: SLOTS, run };
    let executors = LightExecutors::start(&farm, fleet, ledger.clone()).await?;
    let replay = Replay {
        farm: &farm,
        case,
        ids: &ids,
        limit: Duration::from_secs_f64(simulated.makespan_ms / 1000.0 / speed) * 2 + LIMIT,
        ledger: &ledger,
    };
    let replayed = async {
        replay.known(&pools).await?;
        executors.open().await;
        replay.run().await
    };
    let outcome = tokio::select! {
        outcome = replayed => outcome,
        error = executors.failed() => Err(error),
    };
    executors.end().await;
    let outcome = outcome?;
    farm.stop().await;
    Ok((outcome, ledger.tally()))
}

/// A time of the stream on the farm.
fn scaled(stream_ms: u64, speed: f64) -> Duration {
    Duration::from_millis(stream_ms).div_f64(speed)
}

/// The pool of each worker: workers that offer the same are in the same pool.
fn pools(stream: &Stream) -> Result<Vec<Arc<Pool>>, BenchError> {
    let mut kinds: BTreeMap<&BTreeMap<String, BTreeSet<String>>, Arc<Pool>> = BTreeMap::new();
    let mut pools = Vec::new();
    for worker in &stream.workers {
        let next = format!("kind-{}", kinds.len() + 1).parse();
        let name = next.map_err(|error: model::ParseIdError| BenchError::new("naming a pool", &error))?;
        let pool = kinds.entry(&worker.offers).or_insert_with(|| {
            let offers = worker.offers.iter();
            let properties = offers.map(|(name, values)| (name.clone(), values.iter().cloned().collect()));
            Arc::new(light_executors::pool(name, SLOTS, properties.collect()))
        });
        pools.push(pool.clone());
    }
    Ok(pools)
}

/// A farm with executors, and the jobs for them.
struct Replay<'a> {
    farm: &'a BenchFarm,
    case: &'a Case<'a>,
    /// Id of the execution of each job.
    ids: &'a [ExecutionId],
    /// Time limit of the whole replay.
    limit: Duration,
    ledger: &'a Ledger,
}

impl Replay<'_> {
    /// Waits until all executors are known.
    async fn known(&self, pools: &[Arc<Pool>]) -> Result<(), BenchError> {
        let names: BTreeSet<_> = pools.iter().map(|pool| &pool.name).collect();
        let executors = pools.len() as u64;
        let known = |queue: &index::actions::Queue| (queue.executors, executors);
        index_shows(self.farm, names.iter().copied(), "the executors are known", known).await
    }

    /// Accepts each job at its time, and waits until all have ended.
    async fn run(&self) -> Result<Outcome, BenchError> {
        let Case { stream, speed, .. } = *self.case;
        let begun = Instant::now();
        let jobs = stream.jobs.iter().zip(self.ids.iter().copied());
        let arrivals = stream::iter(jobs).then(|(job, id)| async move {
            tokio::time::sleep_until(begun + scaled(job.arrival_ms, speed)).await;
            (job, id)
        });
        let write = |(job, id)| async move {
            let execution = self.execution(job, id);
            self.ledger.accepted(id);
            accepted::write(self.farm.client.bus(), execution).await
        };
        let accept = arrivals.map(write).buffer_unordered(WRITES).try_collect::<()>();
        let all = async {
            accept.await?;
            self.ledger.until_ended(self.ids.len() as u64).await;
            Ok::<_, BenchError>(begun.elapsed())
        };
        let all = tokio::time::timeout(self.limit, all).await;
        let took = all.map_err(|error| BenchError::new("the jobs did not end", &error))??;
        let waits: HashMap<ExecutionId, f64> = self.ledger.waits();
        let wait = |id: &ExecutionId| waits.get(id).map(|wait| wait * speed);
        let waits_ms: Option<Vec<f64>> = self.ids.iter().map(wait).collect();
        let waits_ms = waits_ms.ok_or_else(|| BenchError::plain("a job ended without a grant"))?;
        Ok(Outcome { waits_ms, makespan_ms: took.as_secs_f64() * 1000.0 * speed })
    }

    /// The execution of a job, which does not time out before the replay.
    fn execution(&self, job: &Job, id: ExecutionId) -> Execution {
        let now = self.farm.client.bus().now();
        let asked = self.case.stream.requirements.get(job.requirements as usize).into_iter().flatten();
        let requirements = Requirements::of(asked.map(|(name, value)| (name.as_str(), value.as_str())));
        let (band, group) = (job.priority, &self.farm.group);
        let (timeout_ms, expires_at_ms) = (millis(self.limit), now.after(self.limit));
        let new = accepted::execution(group, now);
        Execution { id, band, requirements, timeout_ms, expires_at_ms, ..new }
    }
}
