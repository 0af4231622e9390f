//! The capacity of the farm's executors in ESU, by executor type.

use std::collections::BTreeMap;

use model::{Esu, ExecutorHeartbeat, ExecutorStatus, ExecutorType, Occupancy, PoolName, Resources};

use crate::{actions::occupancy, window_share};

/// A pool of executors that is scaled: processes up to `max` may still be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaledExecutors {
    /// Name of the pool.
    pub pool: PoolName,
    /// Executor type of its executors.
    pub executor_type: ExecutorType,
    /// Resources of one executor.
    pub each: Resources,
    /// Maximum number of executors.
    pub max: u16,
}

/// ESU that an executor carries now: what it holds when it is full, in proportion to its congestion window. A closed
/// executor carries only what it holds, and a draining one accepts nothing.
pub fn executor_capacity(heartbeat: &ExecutorHeartbeat) -> Esu {
    let carries = occupancy(&heartbeat.capacity).times(window_share(&heartbeat.window, heartbeat.slots));
    match heartbeat.status {
        ExecutorStatus::Ready => carries,
        ExecutorStatus::Closed => carries.min(occupancy(&heartbeat.held)),
        ExecutorStatus::Draining | ExecutorStatus::Gone => Esu::ZERO,
    }
}

/// ESU that the executors carry: the `live` ones, and those that `scaled` pools may still start; at most `cap` of each
/// type that it names. A type without any of both is missing in the result.
///
/// Executors that may still be started count because only actions that wait make a pool grow: builds that waited for
/// executors would never send them.
pub fn capacity<'a>(
    live: impl IntoIterator<Item = &'a ExecutorHeartbeat>,
    scaled: &[ScaledExecutors],
    cap: &Occupancy,
) -> Occupancy {
    let mut all = Occupancy::default();
    let mut processes: BTreeMap<&PoolName, u16> = BTreeMap::new();
    let live = live.into_iter().filter(|heartbeat| heartbeat.status != ExecutorStatus::Gone);
    for heartbeat in live {
        // A type is known even while its executors carry nothing.
        let sum = all.0.entry(heartbeat.executor_type.clone()).or_default();
        *sum = *sum + executor_capacity(heartbeat);
        let count = processes.entry(&heartbeat.pool).or_default();
        *count = count.saturating_add(1);
    }
    for pool in scaled {
        let started = processes.get(&pool.pool).copied().unwrap_or_default();
        let more = occupancy(&pool.each).times(f64::from(pool.max.saturating_sub(started)));
        let sum = all.0.entry(pool.executor_type.clone()).or_default();
        *sum = *sum + more;
    }
    for (kind, most) in cap.iter() {
        if let Some(sum) = all.0.get_mut(kind) {
            *sum = most.min(*sum);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use model::{Millis, WindowState};
    use proptest::prelude::*;

    use super::*;

    fn heartbeat(status: ExecutorStatus, slots: u16, window: u32, held: u64) -> ExecutorHeartbeat {
        ExecutorHeartbeat {
            executor: "x".parse().unwrap(),
            pool: "default".parse().unwrap(),
            host: String::new(),
            home: "x".parse().unwrap(),
            pid: 1,
            started_at_ms: Millis(0),
            status,
            executor_type: ExecutorType::x86(),
            slots,
            properties: BTreeMap::new(),
            root_is_input: false,
            capacity: Resources::new(u64::from(slots) * 1000, 1),
            held: Resources::new(held * 1000, 0),
            running: Vec::new(),
            room: model::Room::default(),
            window: WindowState { size: window, ..WindowState::default() },
            images: Vec::new(),
            image_names: Vec::new(),
            shared_services: Vec::new(),
            ttl_ms: 1,
            clock_skew_ms: None,
        }
    }

    fn esu(units: f64) -> Esu {
        Esu::new(units).unwrap()
    }

    fn x86(units: f64) -> Occupancy {
        Occupancy::of_each([ExecutorType::x86()], Esu::new(units).unwrap())
    }

    fn scaled(max: u16) -> ScaledExecutors {
        let each = Resources::new(4000, 1);
        ScaledExecutors { pool: "default".parse().unwrap(), executor_type: ExecutorType::x86(), each, max }
    }

    #[test]
    fn an_executor_carries_what_its_state_and_its_window_admit() {
        let of = |status, window, held| executor_capacity(&heartbeat(status, 8, window, held));
        assert_eq!([of(ExecutorStatus::Ready, 0, 0), of(ExecutorStatus::Ready, 80, 0)], [esu(8.0), esu(8.0)]);
        assert_eq!(of(ExecutorStatus::Ready, 20, 8), esu(2.0), "the window was cut");
        assert_eq!(
            [of(ExecutorStatus::Closed, 80, 3), of(ExecutorStatus::Closed, 20, 3)],
            [esu(3.0), esu(2.0)]
        );
        assert_eq!([of(ExecutorStatus::Draining, 80, 8), of(ExecutorStatus::Gone, 80, 8)], [Esu::ZERO; 2]);
        let memory = Resources::new(8000, 40 * Esu::BYTES);
        let large = ExecutorHeartbeat { capacity: memory, ..heartbeat(ExecutorStatus::Ready, 8, 0, 0) };
        assert_eq!(executor_capacity(&large), esu(40.0), "its memory is more than its processors");
    }

    #[test]
    fn what_may_still_be_started_counts_and_the_cap_applies() {
        let none = Occupancy::default();
        let live = [heartbeat(ExecutorStatus::Ready, 8, 0, 0)];
        assert_eq!(capacity([], &[], &x86(5.0)), none, "no executor of any type");
        assert_eq!(capacity(&live, &[], &none), x86(8.0));
        assert_eq!(capacity(&live, &[], &x86(5.0)), x86(5.0));
        assert_eq!(capacity([], &[scaled(3)], &none), x86(12.0));
        assert_eq!(capacity(&live, &[scaled(3)], &none), x86(16.0), "two more of 4");
        assert_eq!(capacity(&live, &[scaled(1)], &none), x86(8.0));
        let draining = [heartbeat(ExecutorStatus::Draining, 8, 0, 8)];
        assert_eq!(capacity(&draining, &[], &none), x86(0.0), "the type is known");
    }

    proptest! {
        #[test]
        fn an_executor_that_goes_takes_its_part_with_it(
            slots in prop::collection::vec((1_u16..64, 0_u32..700), 1..8), max in 0_u16..4,
        ) {
            let all: Vec<ExecutorHeartbeat> = slots
                .iter()
                .map(|(slots, window)| heartbeat(ExecutorStatus::Ready, *slots, *window, 0))
                .collect();
            let of = |live: &[ExecutorHeartbeat], scaled: &[ScaledExecutors]| {
                capacity(live, scaled, &Occupancy::default()).get(&ExecutorType::x86())
            };
            let without = of(&all[1..], &[]);
            prop_assert_eq!(of(&all, &[]), without + executor_capacity(&all[0]));
            prop_assert!(of(&all, &[scaled(max)]) >= of(&all, &[]));
        }
    }
}
