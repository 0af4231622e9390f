use proptest::prelude::*;

use super::*;

fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![Just(Signal::Green), Just(Signal::Hold), Just(Signal::Easing), Just(Signal::Red)]
}

/// A window that starts with all of its slots.
fn open(slots: u16) -> Window {
    Window::new(WindowRules { start: u32::MAX, ..WindowRules::default() }, slots)
}

/// Resources that `actions` hold on a machine with one GB of memory per slot.
fn held(actions: u16, cpu_millis: u64, memory_bytes: u64) -> Resources {
    Resources::new(u64::from(actions) * cpu_millis, u64::from(actions) * memory_bytes)
}

fn machine(slots: u16) -> Resources {
    held(slots, 1000, 1_000_000_000)
}

#[test]
fn an_action_costs_five_points_and_five_for_each_slot() {
    let machine = machine(8);
    assert_eq!(points(0, &Resources::default(), &machine, 8), 0);
    assert_eq!(points(1, &held(1, 1000, 0), &machine, 8), 10);
    assert_eq!(points(1, &held(1, 4000, 0), &machine, 8), 25);
    // The scarcer resource counts: its memory is that of four slots.
    assert_eq!(points(1, &held(1, 1000, 4_000_000_000), &machine, 8), 25);
    assert_eq!(points(8, &machine, &machine, 8), 80);
}

#[test]
fn it_starts_with_a_quarter_of_all_slots_where_nothing_is_set() {
    let room = |slots| Window::new(WindowRules::default(), slots).room(0);
    assert_eq!([1, 2, 4, 5, 16].map(room), [1, 1, 1, 2, 4]);
    let window = open(16);
    assert!(window.is_open() && window.admits(160, false));
    assert_eq!(window.room(0), 16);
}

#[test]
fn growth_cut_threshold_and_pace_follow_the_rules() {
    let rules = WindowRules {
        start: 40,
        growth_percent: 50,
        cut_percent: 50,
        threshold_percent: 50,
        green_ticks: 2,
        ..WindowRules::default()
    };
    let mut window = Window::new(rules, 16);
    let mut sizes = Vec::new();
    for (used, signal) in [
        (20, Signal::Green),
        (20, Signal::Green),
        (29, Signal::Green),
        (30, Signal::Green),
        (30, Signal::Hold),
        (30, Signal::Green),
        (30, Signal::Green),
        (80, Signal::Red),
    ] {
        window.tick(used, [signal]);
        sizes.push(window.size());
    }
    // Used less than half, it does not count as green; a resource that suffices only just starts the count again.
    assert_eq!(sizes, [40, 60, 60, 60, 60, 60, 90, 40]);
}

#[test]
fn it_doubles_until_the_first_shortage_and_then_grows_by_one_action() {
    let mut window = Window::new(WindowRules { start: 10, ..WindowRules::default() }, 16);
    let mut sizes = Vec::new();
    for signal in [Signal::Green, Signal::Green, Signal::Red, Signal::Green, Signal::Green] {
        window.tick(window.size(), [signal, Signal::Green]);
        sizes.push(window.size());
    }
    assert_eq!(sizes, [20, 40, 30, 40, 50]);
}

#[test]
fn a_shortage_that_eases_off_is_not_answered_twice() {
    let mut window = open(16);
    window.tick(160, [Signal::Red]);
    let size = window.size();
    window.tick(160, [Signal::Easing]);
    assert_eq!(window.size(), size);
    // The points in use are still in use: the first cut has to take effect before another one.
    window.tick(160, [Signal::Red]);
    assert_eq!(window.size(), size);
}

#[test]
fn a_large_action_runs_alone_in_the_smallest_window() {
    let mut window = open(16);
    for _ in 0..100 {
        window.tick(0, [Signal::Red]);
    }
    assert_eq!(window.size(), 10);
    assert!(window.admits(85, true) && !window.admits(85, false));
    assert_eq!((window.room(0), window.room(10)), (1, 0));
}

#[test]
fn a_window_counts_as_fewer_slots_only_while_a_sensor_is_red() {
    let state = |size, red: &[&str]| WindowState {
        size,
        used: 0,
        red: red.iter().map(|why| (*why).to_owned()).collect(),
    };
    assert_eq!(counted_slots(&state(20, &[]), 8), 8);
    assert_eq!(counted_slots(&state(35, &["hot"]), 8), 3);
    assert_eq!(counted_slots(&state(0, &["paused"]), 8), 8);
    assert_eq!(counted_slots(&state(500, &["hot"]), 8), 8);
}

proptest! {
    #[test]
    fn it_stays_between_one_action_and_its_maximum(
        start in 0_u32..500, max in 0_u32..500, slots in 1_u16..64,
        ticks in prop::collection::vec((0_u32..1000, signal()), 0..200),
    ) {
        let mut window = Window::new(WindowRules { start, max, ..WindowRules::default() }, slots);
        let top = if max == 0 { u32::from(slots) * 10 } else { max.max(10) };
        for (used, signal) in ticks {
            let before = window.size();
            window.tick(used, [Signal::Green, signal]);
            let after = window.size();
            prop_assert!((10..=top).contains(&after));
            match signal {
                Signal::Red => prop_assert!(after <= before && (after < used || after == 10)),
                Signal::Hold | Signal::Easing => prop_assert_eq!(after, before),
                Signal::Green => prop_assert!(after >= before),
            }
        }
    }

    #[test]
    fn it_never_stays_shut_while_all_is_green(slots in 1_u16..64, reds in 0_u32..100, used in 1_u32..640) {
        let mut window = open(slots);
        for _ in 0..reds {
            window.tick(used, [Signal::Red]);
        }
        // The window is fully used, so after as many ticks as there are slots it has its maximum size again.
        for _ in 0..slots {
            let in_use = window.size();
            window.tick(in_use, [Signal::Green]);
        }
        prop_assert!(window.is_open());
    }

    #[test]
    fn it_grows_when_it_keeps_an_action_out_and_not_when_hardly_used(used in 10_u32..600, slots in 8_u16..64) {
        let mut window = open(slots);
        window.tick(used, [Signal::Red]);
        let size = window.size();
        prop_assume!(!window.is_open());
        let mut kept_out = window.clone();
        kept_out.tick(size.saturating_sub(9), [Signal::Green]);
        prop_assert!(kept_out.size() > size);
        window.tick(size / 2, [Signal::Green]);
        prop_assert!(size < 20 || window.size() == size);
    }

    #[test]
    fn what_runs_together_never_costs_more_than_all_slots(
        slots in 1_u16..64, sizes in prop::collection::vec((0_u64..4000, 0_u64..4_000_000_000), 0..64),
    ) {
        let machine = machine(slots);
        let (mut all, mut actions) = (Resources::default(), 0);
        for (cpu, memory) in sizes.into_iter().take(usize::from(slots)) {
            let mut more = all.clone();
            more.add(&Resources::new(cpu, memory));
            if more.fits(&machine) {
                (all, actions) = (more, actions + 1);
            }
        }
        prop_assert!(open(slots).admits(points(actions, &all, &machine, slots), false));
    }
}
