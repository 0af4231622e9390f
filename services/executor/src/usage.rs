//! Resource usage of actions: reported to the worker of the build that sent them, and to the
//! governors while any runs.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use bus::Bus;
use invariant::impossible;
use model::{ActionUsage, Esu, Execution, ExecutionKey, ExecutorType, Group, Occupancy, Resources};
use parking_lot::Mutex;
use policy::actions::occupancy;
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
    /// Resources that it was granted; more memory if its command used more.
    held: Resources,
    /// ESU-seconds that were already reported.
    reported: f64,
}

impl RunningAction {
    /// ESU-seconds until `now`: what it holds for all of the time, because no other action can have it.
    fn until(&self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.since).as_secs_f64();
        occupancy(&self.held).units() * seconds
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

    /// Records that an action occupies a slot, with the resources that it was granted.
    pub(crate) fn begin(&self, key: &ExecutionKey, size: &Resources) {
        let action = RunningAction { since: Instant::now(), held: size.clone(), reported: 0.0 };
        self.state.lock().running.insert(key.clone(), action);
        self.begun.notify_one();
    }

    /// Records the peak memory of its command, which counts if it is more than the action was granted.
    pub(crate) fn set_memory(&self, key: &ExecutionKey, bytes: u64) {
        match self.state.lock().running.get_mut(key) {
            Some(action) => action.held.memory_bytes = action.held.memory_bytes.max(bytes),
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
    const ON_EXECUTOR: bool = true;

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
    use proptest::prelude::*;

    use super::*;

    fn key(group: &str) -> ExecutionKey {
        ExecutionKey { group: group.parse().unwrap(), id: ExecutionId::generate() }
    }

    fn slot() -> Resources {
        Resources::new(1000, 1 << 20)
    }

    fn begun(usage: &Usage, group: &str, seconds: u64, size: &Resources) -> ExecutionKey {
        let key = key(group);
        usage.begin(&key, size);
        let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        usage.state.lock().running.get_mut(&key).unwrap().since = since;
        key
    }

    #[test]
    fn an_action_uses_what_it_was_granted_or_more_if_its_memory_grew() {
        let usage = Usage::new(ExecutorType::x86());
        // Checks that an action that began 3 seconds ago, and ran on while the test did, used that many units.
        let uses = |size: &Resources, seen: u64, units: f64| {
            let start = Instant::now();
            let key = begun(&usage, "g", 3, size);
            usage.set_memory(&key, seen);
            let used = usage.end(&key).units() / units;
            let most = 3.15 + start.elapsed().as_secs_f64();
            assert!((2.85..most).contains(&used), "{used} instead of 3 to {most} s of {units} units");
            key
        };
        uses(&slot(), 1 << 20, 1.0);
        uses(&Resources::new(4000, 1 << 20), 0, 4.0);
        uses(&Resources::new(1000, 5_000_000_000), 0, 2.0);
        let grown = uses(&slot(), 5_000_000_000, 2.0);
        assert_eq!(usage.end(&grown), Esu::ZERO);
    }

    #[test]
    fn reports_count_each_second_once_and_end_with_zero() {
        let usage = Usage::new(ExecutorType::x86());
        let start = Instant::now();
        let (a, b) = (begun(&usage, "a", 2, &slot()), begun(&usage, "b", 1, &slot()));
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
        // Both ran on while the test did.
        let most = 5.1 + 3.0 * start.elapsed().as_secs_f64();
        assert!((4.9..most).contains(&total), "{total}, at most {most}");
    }

    proptest! {
        #[test]
        fn reports_and_the_end_count_the_same(cpus in 1_u64..64, gigabytes in 0_u64..100, seconds in 1_u64..50) {
            let usage = Usage::new(ExecutorType::x86());
            let size = Resources::new(cpus * 1000, gigabytes * 1_000_000_000);
            let key = begun(&usage, "g", seconds, &size);
            let early = usage.take_report(1.0);
            let all = usage.end(&key).units();
            let late = usage.take_report(1.0);
            let reported: f64 =
                early.values().chain(late.values()).map(|held| held.get(&ExecutorType::x86()).units()).sum();
            prop_assert!((all - reported).abs() < 1e-3 * all.max(1.0), "{all} and {reported}");
            let wide = (cpus as f64).max(gigabytes as f64 / 2.5) * seconds as f64;
            prop_assert!(all >= wide - 1e-3 && all < wide * 1.5 + 1.0, "{all} of {wide}");
        }
    }
}
