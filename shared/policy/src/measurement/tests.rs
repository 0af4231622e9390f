#![expect(clippy::float_cmp, reason = "these statistics are computed without rounding")]

use model::{Disturbance, Interference, MeasurePlan, MeasuredRun, MeasurementState, RunFigures, TaskLimits};
use proptest::prelude::*;

use super::*;

fn sample(values: &[f64]) -> Sample {
    Sample::new(values.iter().copied()).unwrap()
}

#[test]
fn statistics_of_a_known_sample_are_those_of_the_textbook() {
    let odd = sample(&[4.0, 1.0, 100.0, 2.0, 3.0]);
    assert_eq!((odd.n(), odd.min(), odd.max(), odd.median(), odd.mad()), (5, 1.0, 100.0, 3.0, 1.0));
    assert_eq!(odd.mean(), 22.0);
    assert!((odd.standard_deviation() - 43.617_656_98).abs() < 1e-6, "{}", odd.standard_deviation());
    assert_eq!(sample(&[1.0, 2.0, 3.0, 10.0]).median(), 2.5);
    let ten: Vec<f64> = (1..=9).map(f64::from).chain([1000.0]).collect();
    assert_eq!(sample(&ten).trimmed_mean(), 5.5, "without 1 and 1000");
    assert_eq!(sample(&ten[..9]).trimmed_mean(), 5.0, "nine values have no whole tenth");
    let one = sample(&[7.0]);
    assert_eq!((one.standard_deviation(), one.mad(), one.trimmed_mean()), (0.0, 0.0, 7.0));
    for bad in [&[][..], &[1.0, f64::NAN], &[f64::INFINITY]] {
        assert_eq!(Sample::new(bad.iter().copied()), None);
    }
}

#[test]
fn intervals_decide_only_if_they_do_not_overlap() {
    let interval = |low, high| Interval { low, high };
    let one = interval(2.0, 4.0);
    for (other, expected) in [
        (interval(4.5, 6.0), Relation::Below),
        (interval(0.0, 1.0), Relation::Above),
        (interval(1.0, 5.0), Relation::Same),
        (interval(3.0, 3.5), Relation::Same),
        (one, Relation::Same),
        (interval(3.0, 5.0), Relation::Unknown),
        (interval(4.0, 5.0), Relation::Unknown),
    ] {
        assert_eq!(one.relation(other), expected, "{other:?}");
    }
}

/// Fifty values around `middle` that are at most `spread` away.
fn around(middle: f64, spread: f64) -> Sample {
    let mut random = crate::Random::new(7);
    Sample::new((0..50).map(|_| middle + spread * (2.0 * random.unit() - 1.0))).unwrap()
}

#[test]
fn samples_are_compared_by_mean_and_by_spread() {
    let (narrow, wide) = (around(100.0, 1.0), around(100.0, 10.0));
    assert_eq!(compare(&narrow, &wide).stability, Stability::Stabler);
    assert_eq!(compare(&wide, &narrow).stability, Stability::LessStable);
    assert_eq!(compare(&narrow, &wide).speed, Speed::Same, "one interval of the mean contains the other");
    let slow = around(103.0, 1.0);
    assert_eq!(compare(&narrow, &slow).speed, Speed::Faster, "three percent are found");
    let back = compare(&slow, &narrow);
    assert_eq!((back.speed, back.stability), (Speed::Slower, Stability::Same));
}

fn plan(warmup: u32, runs: u32, until: Option<f64>, max_runs: u32) -> MeasurePlan {
    MeasurePlan { warmup, runs, until, max_runs, limit_factor: 2.0, parallel: false, max_disturbed: 0 }
}

#[test]
fn runs_follow_until_there_are_enough() {
    let fixed = plan(2, 3, None, 3);
    let next = |plan, warmed, cpu_us: &[u64]| next_run(plan, warmed, &runs(cpu_us));
    assert_eq!(next(&fixed, 0, &[]), NextRun::Warmup);
    assert_eq!(next(&fixed, 1, &[]), NextRun::Warmup);
    assert_eq!(next(&fixed, 2, &[]), NextRun::Measured);
    assert_eq!(next(&fixed, 2, &[1, 900]), NextRun::Measured);
    assert_eq!(next(&fixed, 2, &[1, 900, 5]), NextRun::Done(MeasurementState::AllRuns));
    let until = plan(0, 3, Some(0.05), 8);
    let steady = [100, 101, 100, 99, 100];
    assert_eq!(next(&until, 0, &steady[..4]), NextRun::Measured, "four runs are too few for an interval");
    assert_eq!(next(&until, 0, &steady), NextRun::Done(MeasurementState::Narrow));
    let shaky = [100, 150, 60, 90, 140, 80, 100];
    assert_eq!(next(&until, 0, &shaky), NextRun::Measured);
    let most = [shaky.as_slice(), &[70]].concat();
    assert_eq!(next(&until, 0, &most), NextRun::Done(MeasurementState::StillWide));
}

/// Runs of which those with `true` were disturbed.
fn some_disturbed(disturbed: &[bool]) -> Vec<MeasuredRun> {
    let mut all = runs(&vec![1000; disturbed.len()]);
    for (run, is_disturbed) in all.iter_mut().zip(disturbed) {
        if *is_disturbed {
            run.disturbed_by = vec![Disturbance::Steal];
            run.figures.cpu_us = 9000;
        }
    }
    all
}

#[test]
fn another_run_replaces_a_disturbed_one_until_too_many_were_disturbed() {
    let plan = MeasurePlan { max_disturbed: 2, ..plan(0, 2, None, 2) };
    let after = |disturbed: &[bool]| next_run(&plan, 0, &some_disturbed(disturbed));
    assert_eq!(after(&[false, true]), NextRun::Measured);
    assert_eq!(after(&[false, true, false]), NextRun::Done(MeasurementState::AllRuns));
    assert_eq!(after(&[true, true]), NextRun::Measured);
    assert_eq!(after(&[true, true, false, false]), NextRun::Done(MeasurementState::AllRuns));
    assert_eq!(after(&[true, true, true]), NextRun::Done(MeasurementState::Disturbed));
    let times = |disturbed: &[bool]| {
        let found = measurement(&plan, &some_disturbed(disturbed), 0, MeasurementState::AllRuns).unwrap();
        (found.cpu.n, found.cpu.max_us, found.disturbed, found.runs.len())
    };
    assert_eq!(times(&[false, true, false]), (2, 1000, 1, 3), "it is reported, but not in the summary");
    assert_eq!(times(&[true]), (1, 9000, 1, 1), "a preliminary result has nothing else");
    assert_eq!(times(&[true, true, false, true]), (4, 9000, 3, 4), "too many to leave them out");
    let none_left_out = MeasurePlan { max_disturbed: 0, ..plan };
    let done = next_run(&none_left_out, 0, &some_disturbed(&[true, true]));
    assert_eq!(done, NextRun::Done(MeasurementState::AllRuns), "they count as others");
}

/// A run of one second with 5 involuntary switches, and what else happened.
fn one_second(seen: Interference) -> RunFigures {
    RunFigures {
        cpu_us: 1_000_000,
        wall_us: 1_000_000,
        involuntary_switches: 5,
        interference: Some(seen),
        ..RunFigures::default()
    }
}

#[test]
fn a_run_is_disturbed_by_what_exceeds_its_limit() {
    let own = Interference { processors: 1, own_processors: true, ..Interference::default() };
    let shared = Interference { processors: 20, ..Interference::default() };
    let found = |seen| disturbances(&one_second(seen));
    assert_eq!(
        disturbances(&RunFigures { interference: None, ..one_second(own) }),
        [],
        "it was not measured"
    );
    for (quiet, why) in [
        (own, "nothing happened"),
        (Interference { steal_us: 20_000, other_us: 20_000, ..own }, "two ticks may be one, rounded"),
        (Interference { other_us: 900_000, ..shared }, "less than one of 20 processors"),
    ] {
        assert_eq!(found(quiet), [], "{why}");
    }
    assert_eq!(found(Interference { steal_us: 30_000, ..own }), [Disturbance::Steal]);
    assert_eq!(found(Interference { other_us: 30_000, ..own }), [Disturbance::OtherLoad]);
    assert_eq!(found(Interference { other_us: 1_100_000, ..shared }), [Disturbance::OtherLoad]);
    assert_eq!(found(Interference { throttled_periods: 1, ..own }), [Disturbance::Throttled]);
    assert_eq!(found(Interference { thermal_throttles: 1, ..own }), [Disturbance::ThermalThrottling]);
    let switched = |other_us| {
        let seen = Interference { other_us, ..shared };
        disturbances(&RunFigures { involuntary_switches: 100, ..one_second(seen) })
    };
    assert_eq!(switched(300_000), [Disturbance::Preempted]);
    assert_eq!(switched(0), [], "its own processes preempt each other");
}

fn runs(cpu_us: &[u64]) -> Vec<MeasuredRun> {
    let run = |cpu_us: &u64| {
        let figures = RunFigures {
            cpu_us: *cpu_us,
            wall_us: cpu_us * 2,
            memory_bytes: 1000 + cpu_us % 7,
            voluntary_switches: 3,
            involuntary_switches: 1,
            interference: None,
        };
        MeasuredRun { figures, ..MeasuredRun::default() }
    };
    cpu_us.iter().map(run).collect()
}

#[test]
fn a_measurement_sums_up_its_runs() {
    let all = runs(&[1000, 1003, 2000]);
    let plan = plan(1, 3, None, 3);
    let found = measurement(&plan, &all, 1, MeasurementState::AllRuns).unwrap();
    assert_eq!((found.cpu.n, found.cpu.median_us, found.cpu.mean_us), (3, 1003, 1334));
    assert_eq!((found.wall.median_us, found.wall.max_us), (2006, 4000));
    assert_eq!((found.voluntary_switches, found.involuntary_switches), (9, 3));
    assert_eq!((found.memory_bytes, found.warmup, found.runs.len()), (1006, 1, 3));
    assert_eq!(measurement(&plan, &[], 0, MeasurementState::RunFailed), None);
}

#[test]
fn the_median_decides_about_time_limits() {
    let plan = plan(0, 3, None, 3);
    let measured = |cpu_us: &[u64]| measurement(&plan, &runs(cpu_us), 0, MeasurementState::AllRuns).unwrap();
    let limits = TaskLimits { cpu_ms: Some(10), wall_ms: Some(30), ..TaskLimits::default() };
    assert_eq!(
        slow_median(&limits, &measured(&[9000, 10_000, 14_000])),
        None,
        "one slow run does not fail it"
    );
    let slow = slow_median(&limits, &measured(&[9000, 10_400, 14_000])).unwrap();
    assert_eq!(slow, "the median of 3 runs is 10.4 ms of processor time: the limit cpu_ms is 10");
    let wall = TaskLimits { cpu_ms: None, ..limits };
    assert!(
        slow_median(&wall, &measured(&[15_001; 3])).unwrap().contains("30.002 ms: the limit wall_ms is 30")
    );
    assert_eq!(slow_median(&TaskLimits::default(), &measured(&[u64::MAX / 4; 3])), None);
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.0_f64..1e9, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_mean_and_median_lies_between_the_extremes(values in values()) {
        let sample = sample(&values);
        let range = sample.min() - 1e-3..=sample.max() + 1e-3;
        for value in [sample.median(), sample.mean(), sample.trimmed_mean()] {
            prop_assert!(range.contains(&value), "{value} not in {range:?}");
        }
        for statistic in [Statistic::Median, Statistic::Mean] {
            let Interval { low, high } = sample.interval(statistic);
            prop_assert!(low <= high && range.contains(&low) && range.contains(&high));
        }
        let width = sample.max() - sample.min();
        prop_assert!(sample.mad() <= width && sample.standard_deviation() <= width + 1e-3);
        prop_assert_eq!(sample.n(), values.len());
    }

    #[test]
    fn half_of_the_values_are_on_each_side_of_the_median(values in values()) {
        let median = sample(&values).median();
        let (below, above) = (values.iter().filter(|it| **it < median), values.iter().filter(|it| **it > median));
        prop_assert!(below.count() <= values.len() / 2 && above.count() <= values.len() / 2);
    }

    #[test]
    fn the_order_of_runs_is_without_effect(mut values in values(), seed: u64) {
        let before = sample(&values);
        let mut random = crate::Random::new(seed);
        for at in (1..values.len()).rev() {
            values.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap());
        }
        let after = sample(&values);
        prop_assert_eq!(before.interval(Statistic::Median), after.interval(Statistic::Median));
        prop_assert_eq!(before, after);
    }

    #[test]
    fn a_longer_time_of_every_run_moves_the_interval_and_keeps_its_width(values in values(), more in 1.0_f64..1e6) {
        let moved = sample(&values.iter().map(|value| value + more).collect::<Vec<_>>());
        let sample = sample(&values);
        prop_assert!((moved.median() - sample.median() - more).abs() < 1e-3);
        prop_assert!((moved.standard_deviation() - sample.standard_deviation()).abs() < 1e-3);
        let (before, after) = (sample.interval(Statistic::Median), moved.interval(Statistic::Median));
        prop_assert!((after.low - before.low - more).abs() < 1e-3 && (after.high - before.high - more).abs() < 1e-3);
    }

    #[test]
    fn equal_times_have_no_spread(value in 0.0_f64..1e9, n in 1_usize..30) {
        let sample = sample(&vec![value; n]);
        prop_assert_eq!(sample.interval(Statistic::Median), Interval { low: value, high: value });
        prop_assert_eq!((sample.mad(), sample.median()), (0.0, value));
        prop_assert!(sample.standard_deviation() <= value * 1e-9);
    }

    #[test]
    fn a_sample_is_the_same_as_itself_and_comparison_is_symmetric(one in values(), other in values()) {
        let (one, other) = (sample(&one), sample(&other));
        prop_assert_eq!(compare(&one, &one), Comparison { speed: Speed::Same, stability: Stability::Same });
        let back = match compare(&other, &one).speed {
            Speed::Faster => Speed::Slower,
            Speed::Slower => Speed::Faster,
            same @ (Speed::Same | Speed::Unknown) => same,
        };
        prop_assert_eq!(compare(&one, &other).speed, back);
    }

    #[test]
    fn a_measurement_ends_between_its_bounds(
        times in prop::collection::vec((1_u64..2000, prop::bool::weighted(0.3)), 120),
        warmup in 0_u32..3,
        (number, more, max_disturbed) in (1_u32..20, 0_u32..20, 0_u32..20),
        until in prop::option::of(0.001_f64..0.5),
    ) {
        let most = if until.is_some() { number + more } else { number };
        let plan = MeasurePlan { max_disturbed, ..plan(warmup, number, until, most) };
        let all: Vec<MeasuredRun> = runs(&times.iter().map(|(time, _)| *time).collect::<Vec<_>>())
            .into_iter()
            .zip(&times)
            .map(|(run, (_, bad))| MeasuredRun { disturbed_by: vec![Disturbance::Steal; usize::from(*bad)], ..run })
            .collect();
        let (mut warmed, mut done) = (0, 0);
        let state = loop {
            match next_run(&plan, warmed, &all[..done]) {
                NextRun::Warmup => warmed += 1,
                NextRun::Measured => done += 1,
                NextRun::Done(state) => break state,
            }
            prop_assert!(done <= (most + max_disturbed) as usize);
        };
        let found = measurement(&plan, &all[..done], warmed, state).unwrap();
        prop_assert_eq!(warmed, warmup);
        prop_assert!(done >= number as usize);
        prop_assert!(found.cpu.n >= u64::from(number) && found.cpu.n <= u64::from(most + max_disturbed));
        let gave_up = max_disturbed > 0 && found.disturbed > max_disturbed;
        prop_assert_eq!(gave_up, state == MeasurementState::Disturbed);
        prop_assert!(gave_up || (until.is_none() == (state == MeasurementState::AllRuns)));
        let left_out = done as u64 - found.cpu.n;
        prop_assert_eq!(left_out, if found.disturbed > max_disturbed { 0 } else { u64::from(found.disturbed) });
    }

    #[test]
    fn more_interference_never_makes_a_run_less_disturbed(
        (processors, own_processors) in (1_u32..64, any::<bool>()),
        (wall_us, switches) in (1_u64..100_000_000, 0_u64..10_000),
        (steal_us, other_us, more) in (0_u64..10_000_000, 0_u64..10_000_000, 0_u64..10_000_000),
    ) {
        let seen = Interference { processors, own_processors, steal_us, other_us, ..Interference::default() };
        let run = |seen| RunFigures {
            wall_us, involuntary_switches: switches, interference: Some(seen), ..RunFigures::default()
        };
        let before = disturbances(&run(seen));
        let after = disturbances(&run(Interference { steal_us: steal_us + more, other_us: other_us + more, ..seen }));
        prop_assert!(before.iter().all(|one| after.contains(one)), "{before:?} {after:?}");
    }

    #[test]
    fn summaries_are_in_order(times in prop::collection::vec(0_u64..1 << 50, 1..30)) {
        let found = time_summary(times.iter().copied()).unwrap();
        prop_assert!(found.min_us <= found.low_us && found.low_us <= found.high_us && found.high_us <= found.max_us);
        prop_assert!(found.min_us <= found.median_us && found.median_us <= found.max_us);
        prop_assert_eq!(found.n, times.len() as u64);
        prop_assert_eq!(time_summary([]), None);
    }
}
