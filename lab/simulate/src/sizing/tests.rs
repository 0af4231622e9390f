use super::*;

const SEEDS: std::ops::RangeInclusive<u64> = 1..=5;

fn runs(change: impl Fn(&mut SizingScenario)) -> impl Iterator<Item = SizingRun> {
    SEEDS.map(move |seed| {
        let mut scenario = SizingScenario { seed, ..SizingScenario::default() };
        change(&mut scenario);
        compare_sizes(&scenario).unwrap()
    })
}

#[test]
fn learned_sizes_end_nine_of_ten_kills_and_use_the_machines_better() {
    for run in runs(|_| {}) {
        assert!(run.fewer_kills() >= 0.95, "{run:?}");
        assert!(run.learned.utilisation >= run.declared.utilisation + 0.08, "{run:?}");
        assert!(run.learned.utilisation >= 0.9 * run.known.utilisation, "close to the optimum: {run:?}");
        assert_eq!(run.learned.failed, 0);
    }
}

#[test]
fn they_do_also_where_people_declare_with_care_and_where_runs_differ_much() {
    let harder: [fn(&mut SizingScenario); 3] = [
        |scenario| scenario.declaring = 0.95,
        |scenario| scenario.memory_noise = 0.15,
        |scenario| scenario.changed_commands = 0.5,
    ];
    for change in harder {
        for run in runs(change).take(3) {
            assert!(run.fewer_kills() >= 0.9, "{run:?}");
            assert!(run.learned.utilisation >= run.declared.utilisation + 0.05, "{run:?}");
        }
    }
}

#[test]
fn the_workload_is_as_its_description_says() {
    for run in runs(|_| {}) {
        let actions = run.known.succeeded;
        assert_eq!((run.known.kills, run.known.failed), (0, 0), "known sizes cause no kills");
        assert!((9000..10_500).contains(&actions), "{run:?}");
        assert_eq!(run.declared.succeeded + run.declared.failed, actions);
        assert_eq!(run.learned.succeeded + run.learned.failed, actions);
        let unused = 1.0 - run.declared.memory_used_of_held;
        assert!((0.4..0.65).contains(&unused), "about half of the reservations is not used: {run:?}");
        assert!(run.declared.failed * 1000 < actions, "actions that never succeed declare a size: {run:?}");
        assert!(run.learned.kills_in_first_build <= run.declared.kills_in_first_build, "{run:?}");
    }
}

#[test]
fn equal_seeds_give_equal_figures() {
    let run = |seed| {
        let scenario = SizingScenario { seed, builds: 3, ..SizingScenario::default() };
        serde_json::to_string(&compare_sizes(&scenario).unwrap()).unwrap()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn sizes_are_checked() {
    let bad: [fn(&mut SizingScenario); 4] = [
        |scenario| scenario.targets = 0,
        |scenario| scenario.touched = f64::NAN,
        |scenario| scenario.executors = 0,
        |scenario| (scenario.targets, scenario.builds) = (100_000, 10_000),
    ];
    for change in bad {
        let mut scenario = SizingScenario::default();
        change(&mut scenario);
        assert!(matches!(compare_sizes(&scenario), Err(InvalidScenario::OutOfRange { .. })), "{scenario:?}");
    }
}
