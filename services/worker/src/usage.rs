//! Executor usage of builds: their own processes here, and their actions elsewhere. It is part of each result, and is
//! reported to the governors while builds run.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use bus::Bus;
use command_services::Used;
use invariant::impossible;
use model::{
    ActionUsage, Attempt, BuildId, BuildRecord, BuildUse, Esu, ExecutorType, Group, Occupancy, WorkerId,
};
use parking_lot::Mutex;
use policy::{MemoryHistory, MemoryUse};
use sandbox::WorkspaceLimits;
use service::{ServiceError, Subscription, UsageSource, report_usage};
use shim::{Control, Exit, Measured};
use tokio::sync::Notify;
use tracing::debug;

/// Maximum wait for a shim's answer; a later answer is read at the next measurement.
const ANSWER: Duration = Duration::from_millis(50);
/// Maximum number of characters of a build's command that its memory is remembered by.
const KIND_CHARS: usize = 1000;
/// Minimum run time that is counted: usage is divided by it.
const LEAST: Duration = Duration::from_millis(1);

/// Executor usage of this worker's builds.
pub(crate) struct Usage {
    /// The executor type of this machine's processors.
    kind: ExecutorType,
    state: Mutex<State>,
    /// Signalled when a run begins.
    begun: Notify,
}

#[derive(Default)]
struct State {
    runs: HashMap<u16, RunUse>,
    /// Tool servers that builds left in workspaces.
    tools: HashMap<u16, ToolUse>,
    /// What builds that ended needed.
    memory: MemoryHistory,
    /// ESU-seconds in use since the last report, by group.
    unreported: BTreeMap<Group, f64>,
}

/// Average ESU that a run used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct UsedEsu {
    /// ESU of its own processes and of its actions.
    pub(crate) all: Occupancy,
    /// Part of `all` that its actions held on executors.
    pub(crate) on_executors: Occupancy,
}

/// Processor time of tool servers between two builds.
struct ToolUse {
    /// Group of the build that left them.
    group: Group,
    limits: Arc<WorkspaceLimits>,
    /// Processor time of the workspace that is counted.
    counted: Duration,
}

impl ToolUse {
    /// Counts usage since the last call.
    fn count(&mut self, unreported: &mut BTreeMap<Group, f64>) {
        let Some(cpu) = self.limits.cpu() else { return };
        let used = cpu.saturating_sub(self.counted);
        if used >= LEAST {
            self.counted = cpu;
            *unreported.entry(self.group.clone()).or_default() += used.as_secs_f64();
        }
    }
}

/// Executor usage of one run.
struct RunUse {
    group: Group,
    build: BuildId,
    attempt: Attempt,
    begun_at: Instant,
    /// The command that is running.
    command: Option<Control>,
    /// Processor time of the commands that have ended.
    ended_cpu: Duration,
    /// Time up to which the reports count this run.
    counted_at: Instant,
    counted_cpu: Duration,
    /// For the current command: sum and number of memory samples, and after its end their average.
    samples: (u64, u64),
    memory_bytes: u64,
    /// Maximum memory of its commands so far.
    peak_memory_bytes: u64,
    /// What the build is known by in the history of memory.
    kind: String,
    /// ESU-seconds held by its actions.
    actions: Occupancy,
}

impl RunUse {
    /// Counts usage since the last call.
    fn count(&mut self, now: Instant, cpu: Duration, unreported: &mut BTreeMap<Group, f64>) {
        let seconds = now.saturating_duration_since(self.counted_at).as_secs_f64();
        let used = cpu.saturating_sub(self.counted_cpu).as_secs_f64();
        self.counted_at = now;
        self.counted_cpu = self.counted_cpu.max(cpu);
        if seconds > 0.0 {
            let held = Esu::of_use(used / seconds, self.memory_bytes as f64).units() * seconds;
            *unreported.entry(self.group.clone()).or_default() += held;
        }
    }

    fn add_sample(&mut self, measured: Measured) {
        self.samples = (self.samples.0.saturating_add(measured.memory_bytes), self.samples.1 + 1);
        self.memory_bytes = measured.memory_bytes;
        self.peak_memory_bytes = self.peak_memory_bytes.max(measured.memory_bytes);
    }

    /// Average usage over `wall`.
    fn average(&self, wall: Duration, cpu: Duration, kind: &ExecutorType) -> UsedEsu {
        let seconds = wall.max(LEAST).as_secs_f64();
        let own = Esu::of_use(cpu.as_secs_f64() / seconds, self.memory_bytes as f64);
        let on_executors: Occupancy =
            self.actions.iter().map(|(kind, held)| (kind.clone(), held.times(1.0 / seconds))).collect();
        let mut all = Occupancy::of_each([kind.clone()], own);
        for (kind, held) in on_executors.iter() {
            all.add(kind, held);
        }
        UsedEsu { all, on_executors }
    }
}

/// Builds of a group with the same command need about the same memory.
fn kind_of(record: &BuildRecord) -> String {
    let job = record.build.job.as_ref().map(|job| job.digest.to_string()).unwrap_or_default();
    let text = format!("{}\0{}\0{job}", record.build.group, record.build.command.join("\0"));
    text.chars().take(KIND_CHARS).collect()
}

impl Usage {
    pub(crate) fn new(kind: ExecutorType) -> Self {
        Self { kind, state: Mutex::default(), begun: Notify::new() }
    }

    /// Begins to count a run in workspace `number`.
    pub(crate) fn begin(&self, number: u16, record: &BuildRecord) {
        self.end_tools(number);
        let now = Instant::now();
        let run = RunUse {
            group: record.build.group.clone(),
            build: record.build.id,
            attempt: record.attempt,
            begun_at: now,
            command: None,
            ended_cpu: Duration::ZERO,
            counted_at: now,
            counted_cpu: Duration::ZERO,
            samples: (0, 0),
            memory_bytes: 0,
            peak_memory_bytes: 0,
            kind: kind_of(record),
            actions: Occupancy::default(),
        };
        self.state.lock().runs.insert(number, run);
        self.begun.notify_one();
    }

    /// Counts what tool servers in workspace `number` use from now on for `group`, if control groups measure it: at the
    /// next measurement of builds, or at the latest when the workspace is used again.
    pub(crate) fn leave_tools(&self, number: u16, group: &Group, limits: &Arc<WorkspaceLimits>) {
        if let Some(counted) = limits.cpu() {
            let tools = ToolUse { group: group.clone(), limits: Arc::clone(limits), counted };
            self.state.lock().tools.entry(number).or_insert(tools);
        }
    }

    /// The tool servers of workspace `number` end, or a build uses them.
    pub(crate) fn end_tools(&self, number: u16) {
        let mut state = self.state.lock();
        let State { tools, unreported, .. } = &mut *state;
        if let Some(mut ended) = tools.remove(&number) {
            ended.count(unreported);
        }
    }

    /// A command of the run in workspace `number` started.
    pub(crate) fn command_started(&self, number: u16, control: Control) {
        if let Some(run) = self.state.lock().runs.get_mut(&number) {
            run.command = Some(control);
            run.samples = (0, 0);
        } else {
            impossible!("a command started in workspace {number}, which has no run");
        }
    }

    /// The current command of workspace `number` ended.
    pub(crate) fn command_ended(&self, number: u16, exit: &Exit) {
        if let Some(run) = self.state.lock().runs.get_mut(&number) {
            run.command = None;
            run.ended_cpu += exit.cpu;
            // A command without samples was short: use the peak memory of its largest process.
            run.memory_bytes = run.samples.0.checked_div(run.samples.1).unwrap_or(exit.peak_memory_bytes);
            run.peak_memory_bytes = run.peak_memory_bytes.max(exit.peak_memory_bytes);
        } else {
            impossible!("a command ended in workspace {number}, which has no run");
        }
    }

    /// The services of the build in workspace `number` ended.
    pub(crate) fn services_ended(&self, number: u16, used: &[Used]) {
        if let Some(run) = self.state.lock().runs.get_mut(&number) {
            for used in used {
                run.ended_cpu += used.cpu;
                run.memory_bytes = run.memory_bytes.saturating_add(used.peak_memory_bytes);
                run.peak_memory_bytes = run.peak_memory_bytes.saturating_add(used.peak_memory_bytes);
            }
        } else {
            impossible!("services ended in workspace {number}, which has no run");
        }
    }

    /// Ends a run; returns its average usage over its command, or over the whole run if it ran actions only.
    pub(crate) fn end(&self, number: u16, exit: Option<&Exit>) -> UsedEsu {
        let mut state = self.state.lock();
        let Some(mut run) = state.runs.remove(&number) else {
            impossible!("a run ended in workspace {number}, which has none");
            return UsedEsu::default();
        };
        run.count(Instant::now(), run.ended_cpu, &mut state.unreported);
        if exit.is_some() {
            state.memory.note(&run.kind, run.peak_memory_bytes);
        }
        match exit {
            Some(exit) => run.average(exit.wall, exit.cpu, &self.kind),
            None if run.actions.is_empty() => UsedEsu::default(),
            None => run.average(run.begun_at.elapsed(), run.ended_cpu, &self.kind),
        }
    }

    /// Memory of the runs, and the memory that one more is expected to need; 0 before the first end of a build.
    pub(crate) fn memory(&self) -> (Vec<MemoryUse>, u64) {
        let state = self.state.lock();
        let of = |run: &RunUse| {
            let measured = run.command.as_ref().and_then(Control::measured);
            let now = measured.map_or(run.memory_bytes, |measured| measured.memory_bytes);
            MemoryUse { now, expected: state.memory.of(&run.kind) }
        };
        (state.runs.values().map(of).collect(), state.memory.typical())
    }

    /// Asks for the memory of all runs, which [`Usage::memory`] knows a moment later.
    pub(crate) async fn ask_for_memory(&self) {
        let commands: Vec<Control> =
            self.state.lock().runs.values().filter_map(|run| run.command.clone()).collect();
        for command in commands {
            // A stopped process must not delay the others.
            let _ = tokio::time::timeout(ANSWER, command.measure()).await;
        }
    }

    /// Counts an action that ended and belongs to a build that runs here.
    fn action(&self, used: &ActionUsage) {
        let mut state = self.state.lock();
        // The sender names the build, but may only charge its own group.
        let of = |run: &&mut RunUse| {
            run.build == used.build.id && run.attempt == used.build.attempt && run.group == used.group
        };
        if let Some(run) = state.runs.values_mut().find(of) {
            run.actions.add(&used.executor_type, used.esu_seconds.or_zero());
        } else {
            debug!(build = %used.build, "usage reported for a build that does not run here");
        }
    }

    /// Usage of this run so far; `None` if it does not run here.
    pub(crate) async fn of_now(&self, group: &Group, build: BuildId, attempt: Attempt) -> Option<BuildUse> {
        let is = |run: &RunUse| run.build == build && run.attempt == attempt && run.group == *group;
        let command = self.state.lock().runs.values().find(|run| is(run))?.command.clone();
        if let Some(command) = &command {
            // Without an answer, the last measurement counts.
            let _ = tokio::time::timeout(ANSWER, command.measure()).await;
            tokio::time::sleep(ANSWER / 5).await;
        }
        let mut state = self.state.lock();
        let run = state.runs.values_mut().find(|run| is(run))?;
        let measured = command.as_ref().and_then(Control::measured);
        if let Some(measured) = measured {
            run.memory_bytes = measured.memory_bytes;
        }
        let (wall, cpu) =
            (run.begun_at.elapsed(), run.ended_cpu + measured.map_or(Duration::ZERO, |it| it.cpu));
        Some(BuildUse {
            wall_seconds: wall.as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            usage: run.average(wall, cpu, &self.kind).all,
        })
    }

    /// Counts actions of the builds that run here, and reports until the worker ends.
    pub(crate) async fn serve(&self, bus: &Bus, worker: &WorkerId) -> Result<(), ServiceError> {
        tokio::select! {
            ended = self.count_actions(bus, worker) => ended,
            ended = report_usage(self, bus, worker.as_str()) => ended,
        }
    }

    async fn count_actions(&self, bus: &Bus, worker: &WorkerId) -> Result<(), ServiceError> {
        let mut actions = Subscription::<ActionUsage>::new(bus, worker).await?;
        loop {
            self.action(&actions.next().await?.content);
        }
    }
}

impl UsageSource for Usage {
    const MEASURED_EVERY: Duration = Duration::from_secs(1);
    const ON_EXECUTOR: bool = false;

    fn begun(&self) -> &Notify {
        &self.begun
    }

    fn is_used(&self) -> bool {
        let state = self.state.lock();
        !state.runs.is_empty() || !state.unreported.is_empty()
    }

    async fn measure(&self) {
        let runs = |state: &State| -> Vec<(u16, Control)> {
            let long = state.runs.iter().filter(|(_, run)| run.begun_at.elapsed() >= Self::MEASURED_EVERY);
            long.filter_map(|(number, run)| Some((*number, run.command.clone()?))).collect()
        };
        let asked = runs(&self.state.lock());
        for (_, command) in &asked {
            // A stopped process must not delay the others.
            let _ = tokio::time::timeout(ANSWER, command.measure()).await;
        }
        if !asked.is_empty() {
            tokio::time::sleep(ANSWER).await;
        }
        let mut state = self.state.lock();
        let State { runs, tools, unreported, memory: _ } = &mut *state;
        for tools in tools.values_mut() {
            tools.count(unreported);
        }
        for (number, _) in &asked {
            let Some(run) = runs.get_mut(number) else { continue };
            // By now the workspace may run another command, or none.
            if let Some(measured) = run.command.as_ref().and_then(Control::measured) {
                run.add_sample(measured);
                run.count(Instant::now(), run.ended_cpu + measured.cpu, unreported);
            }
        }
    }

    fn take_report(&self, seconds: f64) -> BTreeMap<Group, Occupancy> {
        let unreported = std::mem::take(&mut self.state.lock().unreported);
        let of = |held: f64| Occupancy::of_each([self.kind.clone()], Esu::clamped(held / seconds));
        unreported.into_iter().map(|(group, held)| (group, of(held))).collect()
    }
}

#[cfg(test)]
mod tests;
