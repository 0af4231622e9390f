use super::*;
use crate::plot_scaling;

fn run(scenario: &ScalingScenario) -> ScalingRun {
    scale(scenario, None).unwrap()
}

fn of(run: &ScalingRun, sized: PoolSize) -> ScalingFigures {
    *run.figures.iter().find(|figures| figures.sized == sized).unwrap()
}

#[test]
fn a_day_costs_less_than_half_and_nobody_waits_longer_than_asked_for() {
    let run = run(&ScalingScenario::default());
    let (planned, largest) = (of(&run, PoolSize::Planned), of(&run, PoolSize::FixedMax));
    assert!(planned.cost < 0.5 * largest.cost, "{planned:?} {largest:?}");
    assert!(planned.in_time_pct >= 95.0, "{planned:?}");
    // The same money spent on a pool of constant size.
    let mean = of(&run, PoolSize::FixedMean);
    assert!(mean.in_time_pct < 60.0 && mean.wait_mean_s > 20.0 * planned.wait_mean_s, "{mean:?}");
    assert!(planned.over_provisioned_s < 0.3 * largest.over_provisioned_s);
    assert_eq!((planned.ended, planned.killed), (largest.ended, 0));
}

#[test]
fn constant_load_is_served_for_about_the_price_of_a_fixed_pool() {
    for (per_hour, service_seconds) in [(400.0, 120.0), (60.0, 600.0), (3600.0, 5.0)] {
        let base = ScalingScenario {
            pattern: Pattern::Steady,
            hours: 12.0,
            per_hour,
            service_seconds,
            ..ScalingScenario::default()
        };
        let planned = of(&run(&base), PoolSize::Planned);
        let load = per_hour * service_seconds / 3600.0;
        assert!(planned.in_time_pct >= 95.0, "{planned:?}");
        assert!(planned.processes_mean < 2.0 * load + 3.0, "{planned:?}");
        // At random it lacks one now and then; that causes only a few turns per hour.
        assert!(planned.turns < 50, "{planned:?}");
    }
}

/// Forty items at once after two quiet hours, and two more quiet hours.
fn burst(slots: u32) -> ScalingScenario {
    ScalingScenario {
        pattern: Pattern::Bursts(40),
        hours: 3.9,
        per_hour: 20.0,
        slots,
        ..ScalingScenario::default()
    }
}

#[test]
fn forty_that_come_at_once_turn_it_once_and_none_is_killed() {
    for slots in [1, 4] {
        let run = run(&burst(slots));
        let planned = of(&run, PoolSize::Planned);
        assert_eq!((planned.ended, planned.killed, planned.turns), (40, 0, 1), "{planned:?}");
        assert_eq!(planned.processes_max, 40_u64.div_ceil(u64::from(slots)));
        assert_eq!((run.processes.first(), run.processes.last()), (Some(&1), Some(&1)));
        assert!(planned.wait_max_s <= 60.0);
    }
}

#[test]
fn without_warning_the_wait_is_what_a_process_needs_to_start() {
    let mut scenario = burst(1);
    scenario.tick_seconds = 1.0;
    scenario.autoscale.min = 0;
    scenario.autoscale.start_up_seconds = 45.0;
    let planned = of(&run(&scenario), PoolSize::Planned);
    assert!((45.0..=46.0).contains(&planned.wait_max_s), "{planned:?}");
}

#[test]
fn what_is_provisioned_is_counted() {
    let mut scenario = ScalingScenario { hours: 1.0, ..ScalingScenario::default() };
    (scenario.autoscale.max, scenario.autoscale.cost_per_process_hour) = (2, 0.25);
    let item = |arrival_ms| ScalingItem { arrival_ms, duration_ms: 600_000, estimate_ms: 600_000 };
    let run = scale(&scenario, Some(&[item(0), item(0), item(0)])).unwrap();
    let largest = of(&run, PoolSize::FixedMax);
    // Two run at once, the third after them.
    assert_eq!((largest.under_provisioned_s, largest.over_provisioned_s), (600.0, 7200.0 - 1800.0));
    assert_eq!((largest.wait_mean_s, largest.wait_p95_s, largest.wait_max_s), (200.0, 600.0, 600.0));
    assert_eq!((largest.process_hours, largest.cost, largest.processes_mean), (2.0, 0.5, 2.0));
    assert_eq!((largest.ended, largest.changes), (3, 0));
}

#[test]
fn what_drains_is_paid_for_and_runs_to_its_end() {
    // Two slots per process: the long item keeps its process until the item ends.
    let mut scenario = ScalingScenario { slots: 2, hours: 3.0, ..ScalingScenario::default() };
    scenario.autoscale.max = 4;
    let mut items = vec![ScalingItem { arrival_ms: 0, duration_ms: 8_000_000, estimate_ms: 60_000 }];
    items.extend([ScalingItem { arrival_ms: 1000, duration_ms: 60_000, estimate_ms: 60_000 }; 7]);
    let planned = of(&scale(&scenario, Some(&items)).unwrap(), PoolSize::Planned);
    assert_eq!((planned.ended, planned.killed), (8, 0));
    assert!(planned.process_hours > 8_000.0 / 3600.0);
}

#[test]
fn a_budget_is_kept() {
    let mut scenario = ScalingScenario { hours: 6.0, ..ScalingScenario::default() };
    scenario.autoscale.budget_per_hour = Some(5.0);
    let planned = of(&run(&scenario), PoolSize::Planned);
    assert!(planned.processes_max <= 5, "{planned:?}");
}

#[test]
fn equal_scenarios_give_equal_runs() {
    let scenario = ScalingScenario { hours: 2.0, ..ScalingScenario::default() };
    assert_eq!(run(&scenario), run(&scenario));
    assert_ne!(run(&scenario).figures, run(&ScalingScenario { seed: 2, ..scenario }).figures);
}

#[test]
fn scenarios_that_make_no_sense_are_refused() {
    let wrong = ScalingScenario { hours: -1.0, ..ScalingScenario::default() };
    assert_eq!(wrong.check().unwrap_err().to_string(), "hours is -1: expected 0.01 to 1000");
    let mut bounds = ScalingScenario::default();
    bounds.autoscale.min = 41;
    assert_eq!(
        bounds.check().unwrap_err().to_string(),
        "autoscaling setting min is 41: expected a number from 0 to 40"
    );
}

#[test]
fn a_planner_that_looks_too_seldom_to_remove_anything_is_refused() {
    let mut scenario = ScalingScenario { tick_seconds: 150.0, ..ScalingScenario::default() };
    scenario.check().unwrap();
    scenario.tick_seconds = 151.0;
    assert_eq!(
        scenario.check().unwrap_err().to_string(),
        "tick_seconds is 151, more than a quarter of scale_in_after_seconds (600): the planner would see too little of that \
         time ever to remove a process"
    );
    // With a time of 0, the planner has no observations.
    scenario.autoscale.scale_in_after_seconds = 0.0;
    scenario.check().unwrap();
}

#[test]
fn recorded_work_that_takes_longer_than_a_month_is_refused_with_its_line() {
    let line = |duration: &str| format!("{{\"arrival_ms\": 0, \"duration_ms\": {duration}}}\n\n");
    let month = line("2592000000");
    assert_eq!(read_scaling_items(&month).unwrap()[0].duration_ms, 2_592_000_000);
    assert_eq!(
        read_scaling_items(&(month + &line("1e13"))).unwrap_err().to_string(),
        "line 3: duration_ms is 10000000000000, but must be at most 2592000000 (30 days)"
    );
}

#[test]
fn work_that_the_pool_never_gets_done_is_refused_and_not_run_for_ever() {
    let mut scenario = ScalingScenario { hours: 1.0, ..ScalingScenario::default() };
    scenario.autoscale.max = 1;
    let month = ScalingItem { arrival_ms: 0, duration_ms: 2_592_000_000, estimate_ms: u64::MAX / 2 };
    assert_eq!(
        scale(&scenario, Some(&[month; 9])).unwrap_err().to_string(),
        "6 of 9 items still wait or run 90 days after the scenario's end; raise max or slots, or reduce the work"
    );
    let endless = ScalingItem { duration_ms: u64::MAX, ..month };
    assert!(matches!(scale(&scenario, Some(&[endless])), Err(InvalidScaling::Endless { left: 1, .. })));
    let done = scale(&scenario, Some(&[month; 3])).unwrap();
    assert_eq!(of(&done, PoolSize::Planned).ended, 3);
}

#[test]
fn processes_that_start_are_paid_for_and_are_not_too_many() {
    let mut scenario = ScalingScenario { hours: 0.01, ..ScalingScenario::default() };
    (scenario.autoscale.min, scenario.autoscale.max) = (0, 1);
    scenario.autoscale.start_up_seconds = 30.0;
    // The only process starts up for 30 s, and then runs the item for 60 s.
    let item = ScalingItem { arrival_ms: 0, duration_ms: 60_000, estimate_ms: 60_000 };
    let planned = of(&scale(&scenario, Some(&[item])).unwrap(), PoolSize::Planned);
    assert_eq!((planned.over_provisioned_s, planned.process_hours), (0.0, 0.025), "{planned:?}");
}

#[test]
fn the_picture_shows_what_was_there_and_what_was_needed() {
    let run = run(&burst(1));
    let svg = plot_scaling(&run);
    assert_eq!(run.processes.len(), run.wanted.len());
    assert_eq!((run.wanted.iter().max(), run.processes.iter().max()), (Some(&40), Some(&40)));
    for colour in ["#0072B2", "#E69F00", "#888888"] {
        assert_eq!(svg.matches(&format!("stroke=\"{colour}\"")).count(), 1, "the bound was reached");
    }
    assert!(!svg.contains("NaN") && svg.ends_with("</svg>\n"));
}
