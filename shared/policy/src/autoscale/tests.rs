use proptest::prelude::*;

use super::*;

const TICK: u64 = 5000;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Items of 60 s, and processes of one slot.
fn seen(waiting: u64, running: u64, alive: u64) -> Observation {
    Observation {
        queued_work: secs(60 * waiting),
        waiting,
        running,
        service: secs(60),
        slots: 1,
        alive,
        busy: running.min(alive),
        ..Observation::default()
    }
}

fn settings() -> PlannerSettings {
    PlannerSettings { max: 50, ..PlannerSettings::default() }
}

fn first(seen: &Observation, settings: &PlannerSettings) -> Plan {
    plan(&PoolState::default(), seen, settings, Millis(1_000_000)).0
}

/// The plans of a pool that follows each plan immediately, under the items that each tick brings.
fn follow(settings: &PlannerSettings, alive: u64, ticks: impl Iterator<Item = (u64, u64)>) -> Vec<Plan> {
    let (mut state, mut alive, mut plans) = (PoolState::default(), alive, Vec::new());
    for (tick, (waiting, running)) in ticks.enumerate() {
        let (plan, next) = plan(&state, &seen(waiting, running, alive), settings, Millis(TICK * tick as u64));
        (state, alive) = (next, plan.desired);
        plans.push(plan);
    }
    plans
}

#[test]
fn what_waits_is_started_in_time() {
    // Forty minutes of work in a minute, but no more processes than items.
    let plan = first(&seen(40, 0, 1), &settings());
    assert_eq!((plan.desired, plan.reason), (40, Reason::Backlog));
    // Items of a second: one process that starts in 5 s does 55 of them in that time.
    let short = Observation { queued_work: secs(400), waiting: 400, service: secs(1), ..seen(0, 0, 0) };
    let none_yet = PlannerSettings { min: 0, ..settings() };
    assert_eq!(first(&short, &none_yet).desired, 8);
    // The number of slots counts.
    let slots = Observation { slots: 4, ..seen(40, 0, 1) };
    assert_eq!(first(&slots, &settings()).desired, 10);
}

#[test]
fn what_starts_counts_as_there() {
    let starting = Observation { starting: 39, ..seen(40, 0, 1) };
    let plan = first(&starting, &settings());
    assert_eq!((plan.desired, plan.reason), (40, Reason::Enough));
}

#[test]
fn what_waited_long_is_more_urgent() {
    let short = |oldest_wait| Observation {
        queued_work: secs(300),
        waiting: 300,
        service: secs(1),
        oldest_wait,
        ..seen(0, 0, 0)
    };
    let wanted = |oldest| first(&short(oldest), &settings()).desired;
    assert!(wanted(secs(0)) < wanted(secs(30)) && wanted(secs(30)) < wanted(secs(50)));
    // The urgency is limited: an item that no process can run must not fill the farm.
    assert_eq!(wanted(secs(1_000_000)), wanted(secs(60)));
}

#[test]
fn an_idle_pool_goes_down_to_its_least_after_a_while_and_in_steps() {
    let plans = follow(&settings(), 40, std::iter::repeat_n((0, 0), 400));
    let desired: Vec<u64> = plans.iter().map(|plan| plan.desired).collect();
    let after = usize::try_from(600_000 / TICK).unwrap();
    assert!(desired[..after].iter().all(|count| *count == 40), "not before it was seen for long enough");
    assert_eq!(plans[10].reason, Reason::TooSoon);
    assert_eq!((desired[after], plans[after].reason), (20, Reason::Surplus));
    assert_eq!(plans[after + 1].reason, Reason::Cooldown);
    assert_eq!(desired[after + 12], 10, "a minute later half of them");
    assert_eq!(*desired.last().unwrap(), 1);
    assert!(desired.is_sorted_by(|a, b| a >= b));
}

#[test]
fn it_goes_down_to_nothing_if_it_may() {
    let settings = PlannerSettings { min: 0, ..settings() };
    let plans = follow(&settings, 3, std::iter::repeat_n((0, 0), 400));
    assert_eq!(plans.last().unwrap().desired, 0);
    assert_eq!(first(&seen(1, 0, 0), &settings).desired, 1, "and comes back for a single item");
}

#[test]
fn what_arrived_long_ago_keeps_no_process() {
    let settings = PlannerSettings { min: 0, ..settings() };
    let burst = Observation { arrived: 40, ..seen(40, 0, 0) };
    let (mut plan_now, mut state) = plan(&PoolState::default(), &burst, &settings, Millis(0));
    let hours = |hours: u64| hours * 3_600_000 / TICK;
    for tick in 1..=hours(2) {
        let idle = seen(0, 0, plan_now.desired);
        (plan_now, state) = plan(&state, &idle, &settings, Millis(TICK * tick));
        assert!(tick > hours(1) / 4 || plan_now.desired > 0, "what came a moment ago may come again");
    }
    assert_eq!(plan_now.desired, 0, "{} arrive a second", state.arrival_rate());
}

#[test]
fn what_runs_is_never_planned_away() {
    let settings = PlannerSettings { tolerance_percent: 0, ..settings() };
    let plans = follow(&settings, 40, std::iter::repeat_n((0, 17), 400));
    assert_eq!(plans.last().unwrap().desired, 17);
    assert!(plans.iter().any(|plan| plan.reason == Reason::Busy));
}

#[test]
fn a_few_too_many_are_left() {
    let plans = follow(&settings(), 20, std::iter::repeat_n((0, 17), 400));
    assert!(plans.iter().all(|plan| plan.desired == 20));
}

#[test]
fn forty_that_come_and_go_change_its_direction_once() {
    let load = (0..600).map(|tick| match tick {
        20..30 => (40, 0),
        30..60 => (0, 40),
        // No items before and after.
        _ => (0, 0),
    });
    let plans = follow(&settings(), 1, load);
    let sizes: Vec<u64> = plans.iter().map(|plan| plan.desired).collect();
    let changes: Vec<bool> =
        sizes.windows(2).filter(|pair| pair[0] != pair[1]).map(|pair| pair[0] < pair[1]).collect();
    let turns = changes.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!((sizes[25], sizes[599], turns), (40, 1, 1), "{sizes:?}");
}

#[test]
fn what_comes_back_before_long_finds_the_pool_as_it_was() {
    // Twenty items every five minutes, for a minute.
    let plans = follow(&settings(), 1, (0..2000).map(|tick| if tick % 60 < 12 { (20, 0) } else { (0, 0) }));
    assert!(plans.iter().all(|plan| plan.desired == 20));
}

#[test]
fn a_planner_that_was_away_removes_nothing_at_first() {
    let settings = settings();
    let (_, before) = (0..200).fold(
        (Plan { desired: 40, needed: 0, reason: Reason::Enough }, PoolState::default()),
        |(_, state), tick| plan(&state, &seen(0, 40, 40), &settings, Millis(TICK * tick)),
    );
    let at = |ms| plan(&before, &seen(0, 0, 40), &settings, Millis(ms)).0;
    assert_eq!(at(TICK * 200).reason, Reason::Surplus, "forty ran, but nothing waited");
    assert_eq!(at(TICK * 200 + 3_600_000).reason, Reason::TooSoon);
    assert_eq!(at(0).reason, Reason::TooSoon, "a clock that was set back");
}

#[test]
fn usual_load_keeps_processes_ready() {
    // Ten items of 60 s per minute: ten at a time, and some spare; nothing waits at any observation.
    let (settings, mut state, mut desired) = (settings(), PoolState::default(), 20);
    for tick in 0..2000_u64 {
        let arrived = u64::from(tick % 6 < 5);
        let now = Observation { arrived, ..seen(0, 0, desired) };
        let (plan, next) = plan(&state, &now, &settings, Millis(TICK * tick));
        (state, desired) = (next, plan.desired);
    }
    assert!((state.arrival_rate() - 1.0 / 6.0).abs() < 0.01);
    assert!((13..=18).contains(&desired), "{desired}");
}

#[test]
fn what_arrives_at_once_is_no_usual_load() {
    // Forty items of ten minutes, all started at once: half as many processes, and some spare.
    let settings = PlannerSettings { max: 1000, ..settings() };
    let long = |arrived| Observation { arrived, service: secs(600), ..seen(0, 0, 0) };
    let mut state = PoolState::default();
    for tick in 0..100 {
        let (plan, next) =
            plan(&state, &long(if tick == 3 { 40 } else { 0 }), &settings, Millis(TICK * tick));
        assert!(plan.needed <= 28, "{plan:?}");
        state = next;
    }
}

#[test]
fn a_budget_bounds_it() {
    let settings = PlannerSettings { cost_per_process_hour: 0.1, budget_per_hour: Some(0.3), ..settings() };
    assert_eq!(settings.check(), Ok(()));
    let plan = first(&seen(40, 0, 1), &settings);
    assert_eq!((plan.desired, plan.needed, plan.reason), (3, 40, Reason::Budget));
    let few = PlannerSettings { max: 7, ..PlannerSettings::default() };
    let plan = first(&seen(40, 0, 1), &few);
    assert_eq!((plan.desired, plan.needed, plan.reason), (7, 40, Reason::Maximum));
    let least = PlannerSettings { min: 4, ..PlannerSettings::default() };
    assert_eq!(first(&seen(0, 0, 1), &least).reason, Reason::Minimum);
    assert_eq!(first(&seen(0, 0, 60), &self::settings()).desired, 50, "the bound was lowered");
}

#[test]
fn settings_out_of_range_are_named() {
    let wrong = PlannerSettings { min: 11, ..PlannerSettings::default() }.check().unwrap_err();
    assert_eq!(wrong.to_string(), "autoscaling setting min is 11: expected a number from 0 to 10");
    let poor = PlannerSettings { min: 3, budget_per_hour: Some(2.0), ..PlannerSettings::default() };
    assert_eq!(poor.check().unwrap_err().name, "budget_per_hour");
    let nan = PlannerSettings { budget_per_hour: Some(f64::NAN), ..PlannerSettings::default() };
    assert_eq!(nan.check().unwrap_err().name, "budget_per_hour");
    assert_eq!(PlannerSettings::default().check(), Ok(()));
}

/// The fraction that waits longer than the target, by the definition of the Erlang C formula.
fn late(places: u32, load: f64, service: f64, target: f64) -> f64 {
    let term = |n: u32| (1..=n).fold(1.0, |product, factor| product * load / f64::from(factor));
    let last = term(places) * f64::from(places) / (f64::from(places) - load);
    let waits = last / ((0..places).map(term).sum::<f64>() + last);
    waits * (-(f64::from(places) - load) * target / service).exp()
}

proptest! {
    #[test]
    fn places_are_as_few_as_start_nineteen_of_twenty_in_time(
        load in 0.01_f64..60.0,
        service in 0.1_f64..1000.0,
        target in 0.1_f64..1000.0,
    ) {
        let places = u32::try_from(erlang::places(load, service, target, 200)).unwrap();
        prop_assert!(late(places, load, service, target) <= 0.05 + 1e-9);
        let fewer = places - 1;
        prop_assert!(f64::from(fewer) <= load || late(fewer, load, service, target) >= 0.05 - 1e-9);
    }

    #[test]
    fn plans_stay_within_bounds_and_above_what_runs(
        looks in prop::collection::vec((0_u64..100, 0_u64..80, 0_u64..80, 0_u64..20, 0_u64..300, 0_u64..900), 1..60),
        bounds in (0_u64..10, 0_u64..40),
        slots in 1_u64..5,
    ) {
        let settings = PlannerSettings { min: bounds.0, max: bounds.0 + bounds.1 + 1, ..PlannerSettings::default() };
        let (mut state, mut now) = (PoolState::default(), 0);
        for (waiting, running, alive, starting, wait, seconds) in looks {
            now += 1000 * seconds;
            let busy = running.min(alive);
            let seen = Observation {
                slots, starting, busy, arrived: waiting, oldest_wait: secs(wait), ..seen(waiting, running, alive)
            };
            let (plan, next) = plan(&state, &seen, &settings, Millis(now));
            prop_assert!((settings.min..=settings.max).contains(&plan.desired), "{:?}", plan);
            prop_assert!(plan.desired >= busy.min(settings.max), "{:?}", plan);
            prop_assert!(waiting == 0 || plan.desired > 0);
            state = next;
        }
    }

    #[test]
    fn more_work_never_means_fewer_processes(
        waiting in 0_u64..100,
        more in 0_u64..100,
        running in 0_u64..50,
        alive in 0_u64..50,
        service in 1_u64..600,
        arrived in 0_u64..50,
    ) {
        let settings = settings();
        let of = |waiting: u64, arrived| {
            let queued_work = secs(service * waiting);
            let seen = Observation { queued_work, arrived, service: secs(service), ..seen(waiting, running, alive) };
            first(&seen, &settings).desired
        };
        prop_assert!(of(waiting, arrived) <= of(waiting + more, arrived));
        prop_assert!(of(waiting, arrived) <= of(waiting, arrived + more));
    }

    #[test]
    fn constant_load_settles(waiting in 0_u64..60, running in 0_u64..40, alive in 0_u64..50) {
        let plans = follow(&settings(), alive, std::iter::repeat_n((waiting, running), 600));
        let sizes: Vec<u64> = plans.iter().map(|plan| plan.desired).collect();
        let rises = sizes.windows(2).skip(1).any(|pair| pair[0] < pair[1]);
        let falls = sizes.windows(2).any(|pair| pair[0] > pair[1]);
        prop_assert!(!(rises && falls), "{:?}", sizes);
        prop_assert_eq!(sizes[500], sizes[599]);
    }
}
