use super::*;
use crate::queues::InvalidTrace;

fn figures(scenario: EstimateScenario) -> Vec<EstimateFigures> {
    compare_estimates(&scenario.stream().unwrap())
}

fn of(figures: &[EstimateFigures], by: EstimatedBy) -> &EstimateFigures {
    figures.iter().find(|some| some.by == by).unwrap()
}

#[test]
fn noise_costs_an_estimator_little_more_than_it_costs_who_knows_the_median() {
    for sigma in [0.05, 0.15, 0.4] {
        let figures = figures(EstimateScenario { sigma, ..EstimateScenario::default() });
        let best = of(&figures, EstimatedBy::Median);
        for by in [EstimatedBy::Thesis, EstimatedBy::Adaptive] {
            let ours = of(&figures, by);
            assert!(ours.within_10_pct >= 0.9 * best.within_10_pct, "{sigma}: {ours:?} {best:?}");
            assert!(ours.within_20_pct >= 0.9 * best.within_20_pct, "{sigma}: {ours:?} {best:?}");
        }
    }
}

#[test]
fn the_adaptive_estimator_is_as_good_under_noise_and_far_better_under_habits() {
    let gain = |scenario| {
        let figures = figures(scenario);
        let (thesis, adaptive) = (of(&figures, EstimatedBy::Thesis), of(&figures, EstimatedBy::Adaptive));
        (adaptive.within_10_pct - thesis.within_10_pct, adaptive.within_20_pct - thesis.within_20_pct)
    };
    for sigma in [0.05, 0.15, 0.4] {
        let noisy = EstimateScenario { sigma, ..EstimateScenario::default() };
        let (within_10, within_20) = gain(noisy);
        assert!(within_10 > -0.5 && within_20 > -0.5, "{sigma}: {within_10} {within_20}");
    }
    for habits in [
        Habits { failing: 0.3, ..Habits::default() },
        Habits { changing: 0.02, ..Habits::default() },
        Habits { commands: 3, ..Habits::default() },
        Habits::some(),
    ] {
        let (within_10, within_20) = gain(EstimateScenario { habits, ..EstimateScenario::default() });
        assert!(within_10 > 3.0 && within_20 > 3.0, "{habits:?}: {within_10} {within_20}");
    }
}

#[test]
fn figures_of_several_streams_are_put_together() {
    let stream =
        |seed| EstimateScenario { seed, items: 500, ..EstimateScenario::default() }.stream().unwrap();
    let (one, other) = (compare_estimates(&stream(1)), compare_estimates(&stream(2)));
    let both = one[0].clone().and(&other[0]);
    assert_eq!((both.count, both.over), (1000, one[0].over + other[0].over));
    assert!((both.within_10_pct - f64::midpoint(one[0].within_10_pct, other[0].within_10_pct)).abs() < 0.02);
    assert_eq!(both.sources.values().sum::<u64>(), 1000);
}

#[test]
fn equal_seeds_give_equal_streams_and_others_do_not() {
    let stream =
        |seed| EstimateScenario { seed, items: 500, ..EstimateScenario::default() }.stream().unwrap();
    assert_eq!(stream(1), stream(1));
    assert_ne!(stream(1), stream(2));
}

fn traced(line: &str) -> EstimateItem {
    read_estimate_items(&line.replace('\n', " ")).unwrap().items[0]
}

#[test]
fn what_still_runs_is_not_known_yet() {
    let line = |arrival: u64| {
        format!(r#"{{"arrival_ms":{arrival},"duration_ms":1000,"type":"build","limit_ms":60000}}"#)
    };
    let figures = compare_estimates(&[0, 999, 1000].map(|arrival| traced(&line(arrival))));
    let sources = BTreeMap::from([("half_of_limit".to_owned(), 2), ("submitter".to_owned(), 1)]);
    assert_eq!(figures[0].sources, sources);
    assert_eq!((figures[0].over, figures[0].doubled), (2, 2));
}

#[test]
fn a_recorded_line_is_told_apart_by_all_that_the_keys_are_made_of() {
    let whole = r#"{"arrival_ms":5,"duration_ms":70,"type":"build","requirements":{"hwgroup":"x86","env":"gcc","threads":"4"},
        "group":"search","priority":"automated","submitter":"ann","labels":{"target":"//a"},"command":"make","limit_ms":100,"estimate_ms":60}"#;
    let item = traced(whole);
    assert_eq!((item.arrival_ms, item.duration_ms, item.limit_ms, item.recorded_ms), (5, 70, 100, Some(60)));
    for (from, to) in [("x86", "arm"), ("gcc", "clang"), ("//a", "//b"), ("ann", "bob"), ("make", "ninja")] {
        assert_ne!(traced(&whole.replace(from, to)).keys, item.keys, "{from}");
    }
    assert_eq!(traced(&whole.replace(r#""threads":"4""#, r#""threads":"8""#)).keys, item.keys);
    let figures = compare_estimates(&[item]);
    assert!(of(&figures, EstimatedBy::Recorded).within_20_pct > 99.9);
}

#[test]
fn work_that_was_stopped_or_lost_is_neither_learned_from_nor_judged() {
    let line = |arrival: u64, duration: u64, outcome: &str| {
        format!(
            r#"{{"arrival_ms":{arrival},"duration_ms":{duration},"type":"a","estimate_ms":900{outcome}}}"#
        )
    };
    let ended = [
        line(0, 1000, r#","outcome":"succeeded""#),
        line(2000, 1000, r#","outcome":"failed""#),
        line(4000, 1000, ""),
    ];
    let stopped = ["cancelled", "lost", "timed_out", "expired"]
        .map(|outcome| line(3500, 7, &format!(r#","outcome":"{outcome}""#)));
    let read = |lines: Vec<&String>| {
        let text: Vec<&str> = lines.into_iter().map(String::as_str).collect();
        read_estimate_items(&text.join("\n")).unwrap()
    };
    let both = read(ended.iter().take(2).chain(&stopped).chain(ended.last()).collect());
    assert_eq!((both.items.len(), both.left_out), (3, 4));
    let alone = read(ended.iter().collect());
    assert_eq!((&alone.items, alone.left_out), (&both.items, 0));
    let figures = compare_estimates(&both.items);
    assert_eq!(of(&figures, EstimatedBy::Recorded).count, 3);
    assert_eq!(of(&figures, EstimatedBy::Thesis).count, 3);
}

#[test]
fn lines_without_sense_are_refused_with_their_number() {
    let good = r#"{"arrival_ms":7,"duration_ms":1,"type":"a"}"#;
    for (bad, said) in [
        (r#"{"arrival_ms":9,"duration_ms":-1,"type":"a"}"#, "duration_ms"),
        (r#"{"arrival_ms":9,"duration_ms":NaN,"type":"a"}"#, ""),
        (r#"{"arrival_ms":9,"type":"a"}"#, "duration_ms"),
        (r#"{"arrival_ms":6,"duration_ms":1,"type":"a"}"#, "sort"),
        (r#"{"arrival_ms":9,"duration_ms":1,"type":"a","labels":3}"#, ""),
        (r#"{"arrival_ms":9,"duration_ms":1,"type":"a","limit_ms":-3}"#, ""),
    ] {
        let refused = read_estimate_items(&format!("{good}\n\n{bad}")).unwrap_err().to_string();
        assert!(refused.starts_with("line 3: ") && refused.contains(said), "{refused}");
    }
    assert_eq!(read_estimate_items("\n").unwrap_err(), InvalidTrace::Empty);
}

#[test]
fn scenarios_out_of_range_are_refused() {
    let wrong = EstimateScenario { sigma: f64::NAN, ..EstimateScenario::default() };
    assert_eq!(wrong.stream().unwrap_err().to_string(), "sigma is NaN: expected 0 to 2");
}
