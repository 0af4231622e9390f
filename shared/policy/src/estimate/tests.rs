use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LIMIT: Duration = Duration::from_secs(100);

fn labels(target: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("target".to_owned(), target.to_owned())])
}

fn keys(target: &str, submitter: &str) -> Keys {
    Keys::of("gcc 14", "x86", &labels(target), submitter)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An estimator that saw these, in their order.
fn knowing(kind: EstimatorKind, seen: &[(Keys, u64)]) -> Estimator {
    let mut estimator = Estimator::new(kind, 10_000);
    for (keys, took) in seen {
        estimator.observe(keys, ms(*took));
    }
    estimator
}

fn thesis(seen: &[(Keys, u64)]) -> Estimator {
    knowing(EstimatorKind::Thesis, seen)
}

fn answer(estimator: &Estimator, keys: &Keys) -> (u64, Source) {
    let estimate = estimator.estimate(keys, LIMIT);
    (estimate.ms, estimate.source)
}

#[test]
fn without_history_half_of_the_limit_is_expected() {
    for kind in EstimatorKind::ALL {
        assert_eq!(answer(&knowing(kind, &[]), &keys("a", "ann")), (50_000, Source::HalfOfLimit));
    }
}

#[test]
fn one_run_of_the_submitter_is_enough() {
    let estimator = thesis(&[(keys("a", "ann"), 700), (keys("a", "bob"), 10), (keys("a", "bob"), 20)]);
    assert_eq!(answer(&estimator, &keys("a", "ann")), (700, Source::Submitter));
}

#[test]
fn of_others_with_the_same_labels_two_runs_are_needed() {
    let one = thesis(&[(keys("a", "ann"), 700)]);
    assert_eq!(answer(&one, &keys("a", "bob")).1, Source::HalfOfLimit);
    let two = thesis(&[(keys("a", "ann"), 700), (keys("a", "ann"), 900)]);
    assert_eq!(answer(&two, &keys("a", "bob")), (800, Source::Labels));
}

#[test]
fn of_the_environment_only_runs_below_the_limit_count_and_two_are_needed() {
    let seen = [(keys("a", "ann"), 100_000), (keys("a", "ann"), 150_000), (keys("a", "ann"), 99_999)];
    assert_eq!(answer(&thesis(&seen), &keys("b", "bob")).1, Source::HalfOfLimit);
    let with_one_more: Vec<_> = seen.into_iter().chain([(keys("c", "cid"), 1)]).collect();
    assert_eq!(answer(&thesis(&with_one_more), &keys("b", "bob")), (50_000, Source::Environment));
}

#[test]
fn other_hardware_and_other_environments_say_nothing() {
    let estimator = thesis(&[(keys("a", "ann"), 700), (keys("a", "ann"), 700)]);
    let arm = Keys::of("gcc 14", "arm", &labels("a"), "ann");
    let clang = Keys::of("clang", "x86", &labels("a"), "ann");
    assert_eq!(answer(&estimator, &arm).1, Source::HalfOfLimit);
    assert_eq!(answer(&estimator, &clang).1, Source::HalfOfLimit);
}

#[test]
fn texts_that_run_together_are_different_keys() {
    assert_ne!(Keys::of("ab", "c", &labels("x"), "y"), Keys::of("a", "bc", &labels("x"), "y"));
    let swapped = BTreeMap::from([("a".to_owned(), "target".to_owned())]);
    assert_ne!(Keys::of("e", "h", &labels("a"), "s"), Keys::of("e", "h", &swapped, "s"));
    let of = |words: &[&str]| keys("a", "ann").with_command(words.iter().copied());
    assert_ne!(of(&["make", "all"]), of(&["makeall"]));
}

#[test]
fn what_is_twenty_runs_old_is_forgotten() {
    let seen: Vec<_> =
        [(keys("a", "ann"), 9000)].into_iter().chain((0..20).map(|_| (keys("a", "ann"), 5))).collect();
    let spans = |count: usize| answer(&thesis(&seen[..count]), &keys("a", "ann")).0;
    assert_eq!((spans(1), spans(2), spans(21)), (9000, 4502, 5));
    let environment = thesis(&seen).estimate(&keys("b", "bob"), ms(10));
    assert_eq!((environment.ms, environment.source), (5, Source::Environment));
}

#[test]
fn the_key_that_was_silent_for_longest_is_forgotten_first() {
    let mut estimator = Estimator::new(EstimatorKind::Thesis, 7);
    for (who, took) in [("ann", 1), ("bob", 2), ("ann", 1), ("cid", 3), ("dan", 4), ("eve", 5), ("fay", 6)] {
        estimator.observe(&keys("a", who), ms(took));
    }
    assert_eq!(estimator.len(), 7);
    // Seven keys are kept: the environment, the labels and five submitters.
    assert_eq!(answer(&estimator, &keys("a", "bob")).1, Source::Labels);
    assert_eq!(answer(&estimator, &keys("a", "ann")), (1, Source::Submitter));
}

#[test]
fn what_takes_longer_than_can_be_written_counts_as_very_long() {
    let estimator = thesis(&[(keys("a", "ann"), u64::MAX)]);
    assert_eq!(answer(&estimator, &keys("a", "ann")), (u64::from(u32::MAX), Source::Submitter));
}

#[test]
fn who_repeats_commands_is_told_by_the_command() {
    let of = |command: usize| keys("a", "ann").with_command([["debug", "release"][command]]);
    let seen: Vec<_> = (0..60).map(|n| (of(n % 2), [1000, 9000][n % 2])).collect();
    let adaptive = knowing(EstimatorKind::Adaptive, &seen);
    assert_eq!(answer(&adaptive, &of(0)), (1000, Source::Command));
    assert_eq!(answer(&adaptive, &of(1)), (9000, Source::Command));
    assert_eq!(answer(&thesis(&seen), &of(0)), (5000, Source::Submitter));
}

#[test]
fn work_that_changes_now_and_then_is_told_by_its_latest_runs() {
    let phases = [1000, 3000, 1500, 6000, 2500, 800, 4000];
    let mut seen: Vec<_> = phases.iter().flat_map(|took| vec![(keys("a", "ann"), *took); 15]).collect();
    seen.extend([(keys("a", "ann"), 2000); 3]);
    assert_eq!(answer(&knowing(EstimatorKind::Adaptive, &seen), &keys("a", "ann")).0, 2000);
    assert_eq!(answer(&thesis(&seen), &keys("a", "ann")).0, 4000);
}

#[test]
fn early_failures_do_not_draw_the_estimate_away_from_the_usual_run() {
    // Four of nine runs fail, each at a different moment.
    let run = |n: u64| if n % 9 < 4 { 37 * (n % 11) } else { 5000 + n % 40 };
    let seen: Vec<_> = (0..200).map(|n| (keys("a", "ann"), run(n))).collect();
    let (expected, _) = answer(&knowing(EstimatorKind::Adaptive, &seen), &keys("a", "ann"));
    assert!((4900..5100).contains(&expected), "{expected}");
}

#[test]
fn noise_alone_changes_nothing_of_the_thesis_rule() {
    let mut random = crate::Random::new(7);
    let seen: Vec<_> = (0..400).map(|n| (keys(["a", "b"][n % 2], "ann"), 1000 + random.below(300))).collect();
    let (adaptive, plain) = (knowing(EstimatorKind::Adaptive, &seen), thesis(&seen));
    for target in ["a", "b"] {
        let (ours, theirs) =
            (answer(&adaptive, &keys(target, "ann")).0, answer(&plain, &keys(target, "ann")).0);
        assert!(ours.abs_diff(theirs) < 60, "{ours} {theirs}");
    }
}

/// The rule of the thesis, implemented literally.
fn by_the_book(seen: &[(u8, u8, u64)], (target, who): (u8, u8), limit: u64) -> u64 {
    let last = |is_kept: &dyn Fn(&(u8, u8, u64)) -> bool| -> Vec<u64> {
        let kept: Vec<u64> = seen.iter().filter(|run| is_kept(run)).map(|run| run.2).collect();
        kept[kept.len().saturating_sub(20)..].to_vec()
    };
    let median = |mut of: Vec<u64>| {
        of.sort_unstable();
        u64::midpoint(of[(of.len() - 1) / 2], of[of.len() / 2])
    };
    let author = last(&|run| run.0 == target && run.1 == who);
    let exercise = last(&|run| run.0 == target);
    let environment: Vec<u64> = last(&|_| true).into_iter().filter(|ms| *ms < limit).collect();
    if !author.is_empty() {
        median(author)
    } else if exercise.len() >= 2 {
        median(exercise)
    } else if environment.len() >= 2 {
        median(environment)
    } else {
        limit / 2
    }
}

proptest! {
    #[test]
    fn the_thesis_rule_is_that_of_the_thesis(
        seen in prop::collection::vec((0_u8..4, 0_u8..4, 0_u64..5000), 0..150),
        asked in (0_u8..5, 0_u8..5),
        limit in 1_u64..6000,
    ) {
        let of = |target: u8, who: u8| keys(&target.to_string(), &who.to_string());
        let known: Vec<_> = seen.iter().map(|(target, who, took)| (of(*target, *who), *took)).collect();
        let estimate = thesis(&known).estimate(&of(asked.0, asked.1), ms(limit));
        prop_assert_eq!(estimate.ms, by_the_book(&seen, asked, limit));
    }

    #[test]
    fn no_estimate_is_outside_of_what_was_seen_and_the_limit_allows(
        seen in prop::collection::vec((0_u8..3, 0_u8..3, 100_u64..5000), 1..80),
    ) {
        let of = |target: u8, who: u8| keys(&target.to_string(), &who.to_string());
        let known: Vec<_> = seen.iter().map(|(target, who, took)| (of(*target, *who), *took)).collect();
        let (expected, _) = answer(&knowing(EstimatorKind::Adaptive, &known), &of(0, 0));
        prop_assert!((99..=50_000).contains(&expected), "{}", expected);
    }

    #[test]
    fn the_densest_half_is_among_what_was_seen(runs in prop::collection::vec(1_u32..100_000, 1..60)) {
        let mut past = Past::default();
        for run in &runs {
            past.push(*run);
        }
        let last = &runs[runs.len().saturating_sub(20)..];
        let densest = past.densest().unwrap();
        prop_assert!(u64::from(*last.iter().min().unwrap()) <= densest);
        prop_assert!(densest <= u64::from(*last.iter().max().unwrap()));
    }

    #[test]
    fn the_last_estimates_are_counted_like_all(
        pairs in prop::collection::vec((0_u64..3000, 0_u64..3000), 0..60),
        last in 1_usize..20,
    ) {
        let mut quality = Quality::new(last);
        for (estimated, took) in &pairs {
            quality.observe(*estimated, *took);
        }
        let mut of_last = Quality::default();
        let from = pairs.len().saturating_sub(last);
        for (estimated, took) in &pairs[from..] {
            of_last.observe(*estimated, *took);
        }
        prop_assert_eq!(quality.last(), of_last.all());
        let all = quality.all();
        prop_assert_eq!(all.count, pairs.len() as u64);
        prop_assert_eq!(all.errors.iter().sum::<u64>(), all.count);
        prop_assert!(all.within_10 <= all.within_20 && all.over + all.under <= all.count);
    }
}

#[test]
fn errors_are_counted_by_their_size() {
    let mut quality = Quality::default();
    for estimated in [1000, 1099, 901, 1100, 900, 1199, 801, 2000, 2001] {
        quality.observe(estimated, 1000);
    }
    let all = quality.all();
    // An error of exactly a tenth is not below a tenth.
    assert_eq!((all.within_10, all.within_20, all.over, all.under), (3, 7, 5, 3));
    assert_eq!(all.errors_above(1.0), 1);
    assert_eq!(all.share_within_10(), Some(3.0 / 9.0));
    assert_eq!(Tally::default().share_within_20(), None);
    assert_eq!(all.and(all).count, 18);
}
