//! Resource usage of actions: reported to the worker of the build that sent them, and to the
//! governors while any runs.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use bus::Bus;
use invariant::impossible;
use model::{ActionUsage, Esu, Execution, ExecutionKey, ExecutorType, Group, Occupancy};
use parking_lot::Mutex;
use service::{USAGE_REPORT_INTERVAL, UsageSource};
use tokio::sync::Notify;

/// Running actions and their unreported usage.
pub(crate) struct Usage {
    kind: ExecutorType,
    state: Mutex<State>,
    /// Notified when an action has started.
    begun: Notify,
}

#[derive(Default)]
struct State {
    running: HashMap<ExecutionKey, RunningAction>,
    /// ESU-seconds since the last report.
    unreported: BTreeMap<Group, f64>,
}

/// An action that occupies a slot.
struct RunningAction {
    since: Instant,
    memory_bytes: u64,
    /// ESU-seconds that were already reported.
    reported: f64,
}

impl RunningAction {
    /// ESU-seconds until `now`: for one executor, or more if its memory is larger.
    fn until(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        Esu::of_use(1.0, self.memory_bytes as f64).units() * seconds
    }
}

impl State {
    fn report(&mut self, group: &Group, held: f64) {
        *self.unreported.entry(group.clone()).or_default() += held;
    }
}

impl Usage {
    /// Starts without running actions.
    pub(crate) fn new(kind: ExecutorType) -> Self {
        Self { kind, state: Mutex::default(), begun: Notify::new() }
    }

    /// Records that an action occupies a slot.
    pub(crate) fn begin(&self, key: &ExecutionKey) {
        let held = RunningAction { since: Instant::now(), memory_bytes: 0, reported: 0.0 };
        self.state.lock().running.insert(key.clone(), held);
        self.begun.notify_one();
    }

    /// Records the peak memory of its command.
    pub(crate) fn set_memory(&self, key: &ExecutionKey, bytes: u64) {
        match self.state.lock().running.get_mut(key) {
            Some(held) => held.memory_bytes = bytes,
            None => impossible!("the command of {key} ran outside of a slot"),
        }
    }

    /// Records that it left the slot; returns the ESU-seconds that it used.
    pub(crate) fn end(&self, key: &ExecutionKey) -> Esu {
        let mut state = self.state.lock();
        let Some(held) = state.running.remove(key) else { return Esu::ZERO };
        let all = held.until(Instant::now());
        state.report(&key.group, (all - held.reported).max(0.0));
        Esu::clamped(all)
    }

    /// Reports the usage of an action to the worker of the build that sent it. This precedes the result, which
    /// may end the build.
    pub(crate) async fn report_to_build(&self, bus: &Bus, execution: &Execution, esu_seconds: Esu) {
        let Some(build) = &execution.build else { return };
        let used = ActionUsage {
            group: execution.group.clone(),
            build: build.clone(),
            executor_type: self.kind.clone(),
            esu_seconds,
        };
        bus.send_or_log(&build.worker, &used).await;
    }
}

impl UsageSource for Usage {
    const MEASURED_EVERY: Duration = USAGE_REPORT_INTERVAL;

    fn begun(&self) -> &Notify {
        &self.begun
    }

    fn is_used(&self) -> bool {
        let state = self.state.lock();
        !state.running.is_empty() || !state.unreported.is_empty()
    }

    fn take_report(&self, seconds: f64) -> BTreeMap<Group, Occupancy> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let State { running, unreported } = &mut *state;
        for (key, held) in running {
            let until = held.until(now);
            *unreported.entry(key.group.clone()).or_default() += (until - held.reported).max(0.0);
            held.reported = until;
        }
        let unreported = std::mem::take(unreported);
        drop(state);
        let average = |held: f64| Occupancy::of_each([self.kind.clone()], Esu::clamped(held / seconds));
        unreported.into_iter().map(|(group, held)| (group, average(held))).collect()
    }
}

#[cfg(test)]
mod tests {
    use model::ExecutionId;

    use super::*;

    fn key(group: &str) -> ExecutionKey {
        ExecutionKey { group: group.parse().unwrap(), id: ExecutionId::generate() }
    }

    fn begun(usage: &Usage, group: &str, seconds: u64) -> ExecutionKey {
        let key = key(group);
        usage.begin(&key);
        let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        usage.state.lock().running.get_mut(&key).unwrap().since = since;
        key
    }

    #[test]
    fn an_action_holds_an_executor_or_more_for_its_memory() {
        let usage = Usage::new(ExecutorType::x86());
        let small = begun(&usage, "g", 3);
        usage.set_memory(&small, 1 << 20);
        assert!((usage.end(&small).units() - 3.0).abs() < 0.1);
        let large = begun(&usage, "g", 3);
        usage.set_memory(&large, 5_000_000_000);
        assert!((usage.end(&large).units() - 6.0).abs() < 0.1);
        assert_eq!(usage.end(&large), Esu::ZERO);
    }

    #[test]
    fn reports_count_each_second_once_and_end_with_zero() {
        let usage = Usage::new(ExecutorType::x86());
        let (a, b) = (begun(&usage, "a", 2), begun(&usage, "b", 1));
        let mut total = 0.0;
        let mut report = || {
            let groups = usage.take_report(2.0);
            total += groups.values().map(|held| held.get(&ExecutorType::x86()).units() * 2.0).sum::<f64>();
            !groups.is_empty()
        };
        assert!(report());
        assert!(report(), "they still run");
        usage.set_memory(&a, 5_000_000_000);
        usage.end(&a);
        usage.end(&b);
        assert!(report());
        assert!(!report());
        assert!((total - 5.0).abs() < 0.1, "{total}");
    }
}
