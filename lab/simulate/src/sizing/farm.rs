//! The executors, in virtual time.

use std::collections::BTreeMap;

use model::{
    Attempt, BlobDigest, ClientTool, DigestFunction, Execution, ExecutionId, ExecutionOutcome,
    ExecutionRecord, ExecutorId, Group, Measured, Millis, Requirements, Resources, Sequence,
};
use policy::actions::{AfterCopy, CopyEnd, History, Learned, after_copy, packing};

use super::{ATTEMPTS, LOOK_AHEAD, Sizes, SizingFigures, SizingScenario, workload::Job};
use crate::statistics::whole;

/// Number of `RESOURCE_EXHAUSTED` in `google.rpc.Code`.
const OUT_OF_MEMORY: i32 = 8;

struct Farm<'a> {
    jobs: &'a [Job],
    sizes: Sizes,
    capacity: Resources,
    slots: usize,
    processors: f64,
    /// Waiting executions, in the order of their positions.
    waiting: BTreeMap<usize, ExecutionRecord>,
    machines: Vec<Machine>,
    history: History,
    now: f64,
    useful: f64,
    /// Byte-seconds of peak memory; `held` are those of reserved memory.
    used: f64,
    held: f64,
    figures: SizingFigures,
}

struct Machine {
    id: ExecutorId,
    free: Resources,
    running: Vec<Running>,
    /// Time up to which the progress of running actions is accounted.
    at: f64,
}

struct Running {
    job: usize,
    record: ExecutionRecord,
    size: Resources,
    /// Remaining seconds, with all processors that the action uses, until its end or its kill.
    left: f64,
    is_killed: bool,
    since: f64,
}

/// Runs `jobs` on the farm.
pub(crate) fn simulate(scenario: &SizingScenario, jobs: &[Job], sizes: Sizes) -> SizingFigures {
    let Some(mut farm) = Farm::new(scenario, jobs, sizes) else {
        unreachable!("an identifier of the simulated farm is invalid");
    };
    for machine in 0..farm.machines.len() {
        farm.fill(machine);
    }
    while let Some((machine, at)) = farm.next() {
        farm.now = at;
        farm.end_at(machine);
        farm.fill(machine);
    }
    let processors = f64::from(scenario.executors) * f64::from(scenario.processors);
    SizingFigures {
        makespan_seconds: farm.now,
        utilisation: farm.useful / (processors * farm.now).max(f64::MIN_POSITIVE),
        memory_used_of_held: farm.used / farm.held.max(f64::MIN_POSITIVE),
        ..farm.figures
    }
}

impl<'a> Farm<'a> {
    fn new(scenario: &SizingScenario, jobs: &'a [Job], sizes: Sizes) -> Option<Self> {
        let capacity = Resources::new(u64::from(scenario.processors) * 1000, scenario.memory_bytes);
        let machine = |number: u32| {
            let id = format!("machine-{number}").parse().ok()?;
            Some(Machine { id, free: capacity.clone(), running: Vec::new(), at: 0.0 })
        };
        let waiting = jobs.iter().enumerate().map(|(at, job)| Some((at, accepted_record(job)?)));
        Some(Self {
            jobs,
            sizes,
            slots: usize::try_from(scenario.slots).ok()?,
            processors: f64::from(scenario.processors),
            waiting: waiting.collect::<Option<_>>()?,
            machines: (0..scenario.executors).map(machine).collect::<Option<_>>()?,
            capacity,
            history: History::default(),
            now: 0.0,
            useful: 0.0,
            used: 0.0,
            held: 0.0,
            figures: SizingFigures::default(),
        })
    }

    /// Starts all actions on `machine` that fit there.
    fn fill(&mut self, machine: usize) {
        let window: Vec<usize> = self.waiting.keys().copied().take(LOOK_AHEAD).collect();
        for job in window {
            let (Some(record), Some(to)) = (self.waiting.get(&job), self.machines.get(machine)) else {
                unreachable!("action {job} does not wait, or machine {machine} does not exist");
            };
            if to.running.len() >= self.slots {
                return;
            }
            let size = self.size(job, record);
            if size.fits(&to.free) {
                self.start(machine, job, size);
            }
        }
    }

    /// Returns the size that the scheduler would choose.
    fn size(&self, job: usize, record: &ExecutionRecord) -> Resources {
        let action = job_at(self.jobs, job);
        let learned = match self.sizes {
            Sizes::Declared => None,
            Sizes::Learned => self.history.size(&action.keys),
            Sizes::Known => Some(Learned {
                cpu_millis: Some(millis(action.processors)),
                memory_bytes: Some(action.peak),
                at_least: false,
            }),
        };
        packing(&action.needs, learned, record.so_far.memory_bytes, &self.capacity)
    }

    fn start(&mut self, machine: usize, job: usize, size: Resources) {
        let action = job_at(self.jobs, job);
        let (Some(record), Some(to)) = (self.waiting.remove(&job), self.machines.get_mut(machine)) else {
            unreachable!("action {job} does not wait, or machine {machine} does not exist");
        };
        to.advance(self.now, self.processors, self.jobs);
        to.free.take(&size);
        let is_killed = action.peak > size.memory_bytes;
        let left = if is_killed { action.seconds * action.peaks_at } else { action.seconds };
        to.running.push(Running { job, record, size, left, is_killed, since: self.now });
    }

    /// Returns the machine on which an action ends next, and the time of that end.
    fn next(&self) -> Option<(usize, f64)> {
        let ends = self.machines.iter().map(|machine| machine.next_end(self.processors, self.jobs));
        let soonest = ends.enumerate().filter_map(|(machine, at)| Some((machine, at?)));
        soonest.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// Ends the actions on `machine` that end now.
    fn end_at(&mut self, machine: usize) {
        let Some(on) = self.machines.get_mut(machine) else {
            unreachable!("machine {machine} does not exist");
        };
        on.advance(self.now, self.processors, self.jobs);
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut on.running).into_iter().partition(|running| running.left <= 1e-9);
        on.running = running;
        for running in &ended {
            on.free.add(&running.size);
        }
        let id = on.id.clone();
        for running in ended {
            self.ended(&id, &running);
        }
    }

    fn ended(&mut self, executor: &ExecutorId, run: &Running) {
        let job = job_at(self.jobs, run.job);
        let seconds = self.now - run.since;
        self.used += job.peak.min(run.size.memory_bytes) as f64 * seconds;
        self.held += run.size.memory_bytes as f64 * seconds;
        let end = if run.is_killed {
            self.figures.kills += 1;
            self.figures.kills_in_first_build += u64::from(job.build == 0);
            if self.sizes == Sizes::Learned {
                self.history.learn_out_of_memory(&job.keys, run.size.memory_bytes);
            }
            let message = "it ran out of memory".to_owned();
            let outcome = ExecutionOutcome::without_run(OUT_OF_MEMORY, message);
            CopyEnd::OutOfMemory { outcome, had: run.size.memory_bytes, most: self.capacity.memory_bytes }
        } else {
            self.useful += job.processors * job.seconds;
            let measured = Measured {
                wall_ms: millis(seconds),
                cpu_ms: millis(job.processors * job.seconds),
                memory_bytes: job.peak,
                ..Measured::default()
            };
            if self.sizes == Sizes::Learned {
                self.history.learn(&job.keys, &measured);
            }
            let ran = ExecutionOutcome::without_run(0, String::new());
            CopyEnd::Outcome(ExecutionOutcome { exit_code: Some(0), measured: Some(measured), ..ran })
        };
        let place = Sequence(run.job as u64 + 1);
        match after_copy(&run.record, place, executor, end, Millis(millis(self.now))) {
            Some(AfterCopy::Requeue(next)) => {
                self.waiting.insert(run.job, *next);
            }
            Some(AfterCopy::Finish(last)) if last.outcome().is_some_and(ExecutionOutcome::is_success) => {
                self.figures.succeeded += 1;
            }
            Some(AfterCopy::Finish(_) | AfterCopy::GoOn(_) | AfterCopy::GiveUp(_)) | None => {
                self.figures.failed += 1;
            }
        }
    }
}

impl Machine {
    /// Speed of all runs that share the machine's processors evenly: 1 when there are enough.
    fn speed(&self, processors: f64, jobs: &[Job]) -> f64 {
        let all: f64 = self.running.iter().map(|running| job_at(jobs, running.job).processors).sum();
        (processors / all.max(f64::MIN_POSITIVE)).min(1.0)
    }

    fn advance(&mut self, now: f64, processors: f64, jobs: &[Job]) {
        let done = (now - self.at) * self.speed(processors, jobs);
        self.running.iter_mut().for_each(|running| running.left -= done);
        self.at = now;
    }

    fn next_end(&self, processors: f64, jobs: &[Job]) -> Option<f64> {
        let left = self.running.iter().map(|running| running.left).min_by(f64::total_cmp)?;
        Some(self.at + left.max(0.0) / self.speed(processors, jobs))
    }
}

fn job_at(jobs: &[Job], number: usize) -> &Job {
    let Some(job) = jobs.get(number) else {
        unreachable!("action {number} is not in the workload");
    };
    job
}

/// Creates the record of a waiting action.
fn accepted_record(job: &Job) -> Option<ExecutionRecord> {
    let group: Group = "sizing".parse().ok()?;
    let action = BlobDigest::from_parts(DigestFunction::Sha256, &"0".repeat(64), 0).ok()?;
    Some(ExecutionRecord::accepted(Execution {
        id: ExecutionId::generate(),
        group,
        instance: String::new(),
        action,
        band: model::Priority::default(),
        priority: 0,
        requirements: Requirements::default(),
        timeout_ms: 3_600_000,
        image: None,
        do_not_cache: false,
        zone: None,
        caller: String::new(),
        accepted_at_ms: Millis(0),
        expires_at_ms: Millis(u64::MAX),
        max_attempts: Attempt(ATTEMPTS),
        traceparent: None,
        client: ClientTool::default(),
        build: None,
        needs: job.needs.clone(),
        keys: job.keys.clone(),
    }))
}

/// Converts to thousandths, rounded.
fn millis(units: f64) -> u64 {
    whole((units * 1000.0).round())
}
