use proptest::prelude::*;

use super::*;

fn figures(throughput_ratio: f64, cost: f64) -> CaseFigures {
    CaseFigures { rates: rates(throughput_ratio, cost), counts: counts(cost) }
}

fn rates(throughput_ratio: f64, cost: f64) -> Rates {
    Rates {
        throughput_ratio: Some(throughput_ratio),
        processor_ratio: cost,
        processes: BTreeMap::from([("executor".to_owned(), cost), ("gateway".to_owned(), 1.0)]),
    }
}

fn counts(cost: f64) -> Counts {
    Counts { stored_messages: cost, messages: cost, redis_commands: cost }
}

fn disturbed(cost: f64) -> CaseFigures {
    let mut figures = figures(0.0, cost);
    figures.rates.throughput_ratio = None;
    figures
}

fn failed(limits: &[Limit], attempts: &[CaseFigures]) -> Vec<GuardedFigure> {
    let verdicts = judge(limits, None, attempts);
    verdicts.iter().filter(|verdict| !verdict.passed()).map(|verdict| verdict.figure).collect()
}

const RATES: [GuardedFigure; 2] = [GuardedFigure::ThroughputRatio, GuardedFigure::ProcessorRatio];
const COUNTS: [GuardedFigure; 3] =
    [GuardedFigure::StoredMessages, GuardedFigure::Messages, GuardedFigure::RedisCommands];

#[test]
fn a_lower_rate_and_a_higher_cost_fail() {
    let limits = rates(0.3, 2.0).limits();
    assert_eq!(failed(&limits, &[figures(0.26, 2.4)]), []);
    assert_eq!(failed(&limits, &[figures(0.26, 2.6)]), [GuardedFigure::ProcessorRatio]);
    assert_eq!(failed(&limits, &[figures(0.2, 2.0)]), [GuardedFigure::ThroughputRatio]);
    assert_eq!(failed(&limits, &[figures(3.0, 0.2)]), []);
    assert_eq!(failed(&limits, &[figures(f64::NAN, f64::NAN)]), RATES);
}

#[test]
fn a_higher_count_fails_without_a_tolerance() {
    let limits = counts(5.0).limits();
    assert_eq!(failed(&limits, &[figures(0.1, 5.0)]), []);
    assert_eq!(failed(&limits, &[figures(0.1, 5.01)]), COUNTS);
    assert_eq!(failed(&limits, &[figures(0.1, f64::NAN)]), COUNTS);
}

#[test]
fn what_others_disturbed_is_not_compared() {
    assert_eq!(failed(&rates(0.3, 1.0).limits(), &[disturbed(9.0)]), []);
    assert_eq!(failed(&disturbed(1.0).rates.limits(), &[figures(0.001, 9.0)]), []);
    assert_eq!(failed(&counts(1.0).limits(), &[disturbed(2.0)]).len(), 3);
    // One attempt that could be measured decides.
    let slow = [disturbed(1.0), figures(0.1, 1.0)];
    assert_eq!(failed(&rates(0.3, 1.0).limits(), &slow), [GuardedFigure::ThroughputRatio]);
    let verdicts = judge(&rates(0.3, 1.0).limits(), None, &[disturbed(1.0)]);
    let text = verdicts.first().map(ToString::to_string);
    assert!(text.is_some_and(|text| text.ends_with("not compared, since it could not be measured now")));
    assert_eq!(Rates::median(&[disturbed(1.0).rates, rates(0.2, 1.0)]).throughput_ratio, Some(0.2));
    assert_eq!(Rates::median(&[disturbed(1.0).rates]).throughput_ratio, None);
}

#[test]
fn a_failure_names_the_figure_its_values_and_what_to_do() {
    let baseline = rates(0.3, 1.0);
    let verdicts = judge(&baseline.limits(), Some(&baseline), &[figures(0.2, 2.0), figures(0.1, 3.0)]);
    let text = verdicts.first().map(|verdict| verdict.failure("b.json", "forebay bench x"));
    assert_eq!(
        text.as_deref(),
        Some(
            "throughput_ratio (rate relative to bare spawns): 0.200, 0.100 measured, 0.255 is the minimum: FAILED. \
             Processes whose processor time in bare spawns grew: executor 1.00 to 3.00. Find the cause with \
             `forebay bench x`, which prints the cost by process, message and Redis command. If the cost is intended, \
             or the machine is another one, change b.json and say why in CHANGELOG.md"
        )
    );
}

#[test]
fn the_worse_of_two_machines_is_expected() {
    let (one, other) = (rates(0.3, 2.0), rates(0.2, 1.0));
    assert_eq!(one.worst(&other), rates(0.2, 2.0));
    assert_eq!(other.worst(&one), rates(0.2, 2.0));
    assert_eq!(disturbed(1.0).rates.worst(&one).throughput_ratio, Some(0.3));
}

#[test]
fn the_median_of_each_figure() {
    assert_eq!(Rates::median(&[rates(0.1, 3.0), rates(0.2, 1.0), rates(0.3, 2.0)]), rates(0.2, 2.0));
}

proptest! {
    #[test]
    fn within_the_tolerance_all_passes_and_beyond_all_fails(
        ratio in 0.01..10.0,
        cost in 0.01..100.0,
        part in 0.0..0.149,
        beyond in 0.251..0.9,
    ) {
        let limits = rates(ratio, cost).limits();
        let worse = |by: f64| figures(ratio * (1.0 - by), cost * (1.0 + by));
        prop_assert!(failed(&limits, &[worse(part)]).is_empty());
        prop_assert_eq!(failed(&limits, &[worse(beyond)]), RATES);
        // One good attempt is enough, whichever it is.
        prop_assert!(failed(&limits, &[worse(beyond), worse(part)]).is_empty());
        prop_assert!(failed(&limits, &[worse(part), worse(beyond)]).is_empty());
    }

    #[test]
    fn better_figures_never_fail(ratio in 0.01..10.0, cost in 0.01..100.0, by in 0.0..0.99) {
        let better = figures(ratio * (1.0 + by), cost * (1.0 - by));
        prop_assert!(failed(&rates(ratio, cost).limits(), std::slice::from_ref(&better)).is_empty());
        prop_assert!(failed(&counts(cost).limits(), &[better]).is_empty());
    }
}
