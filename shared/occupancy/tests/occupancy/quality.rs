//! Quality of the model's predictions on generated builds.

use crate::support::workload::{Random, TYPES, Workload};
use crate::support::{dataset, facts};
use occupancy::{BuildFacts, Cross, Crosses, Dataset, Feature, FitOptions, fit, judge, search};

#[test]
fn on_held_out_builds_it_is_twice_as_good_as_the_constant_and_better_than_the_groups_mean() {
    let data = dataset(60_000, 3);
    let mut questions = 0;
    let crosses = search(&data, 1, &mut || {
        questions += 1;
        questions < 60
    });
    let model = fit(&data, &crosses, &FitOptions::new(1, 0));
    let test =
        |executor_type| model.report().of(executor_type).and_then(|part| part.test).expect("it was tested");

    let x86 = test(TYPES[0]);
    assert!(x86.builds > 2_500, "{x86:?}");
    assert!(x86.mean_absolute < 0.5 * x86.constant, "{x86:?}");
    assert!(x86.mean_absolute < 0.6 * x86.group_mean, "{x86:?}");
    assert!((x86.predicted / x86.actual - 1.0).abs() < 0.1, "{x86:?}");
    // The model learned Mac from a tenth of the builds.
    let mac = test(TYPES[1]);
    assert!(mac.mean_absolute < 0.6 * mac.constant, "{mac:?}");
    assert!(mac.mean_absolute < 0.7 * mac.group_mean, "{mac:?}");
    assert_eq!(judge(model.report(), None), Ok(()));
}

/// Builds whose cost depends on one package of each only together with the command and the SDK.
fn planted(builds: usize) -> Dataset {
    let mut random = Random(5);
    let mut data = Dataset::new();
    for _ in 0..builds {
        let command = if random.chance(0.5) { "build" } else { "test" };
        let sdk = random.below(3);
        let flags = vec![
            format!("--ios_sdk=13.{sdk}"),
            format!("--other={}", random.below(5)),
            format!("--another={}", random.below(2)),
        ];
        let package = random.below(20);
        let targets =
            vec![format!("//ios/package{package}:app"), format!("//lib/package{}:lib", random.below(20))];
        let alike = if command == "test" { 1 } else { 3 };
        let dear = (package * alike + sdk * 5).is_multiple_of(4);
        let esu = if dear { 20.0 } else { 2.0 } * (0.9 + 0.2 * random.unit());
        let facts = BuildFacts { command, flags: &flags, targets: &targets, group: "ios", priority: "BATCH" };
        data.push(&facts, [("mac", esu)], random.next());
    }
    data
}

#[test]
fn the_search_finds_the_planted_cross() {
    let data = planted(12_000);
    let crosses = search(&data, 1, &mut || true);
    let planted = [Feature::Command, Feature::Flag("--ios_sdk".to_owned())];
    let found = crosses.of("mac").iter().any(|cross| {
        planted.iter().all(|feature| cross.features().contains(feature))
            && [Feature::Package, Feature::Target].iter().any(|each| cross.features().contains(each))
    });
    assert!(found, "{crosses:?}");

    let error = |crosses: &Crosses| {
        let model = fit(&data, crosses, &FitOptions::new(1, 0));
        model.report().of("mac").and_then(|part| part.test).expect("it was tested").mean_absolute
    };
    let (with, without) = (error(&crosses), error(&Crosses::default()));
    assert!(with < 0.4 * without, "{with} against {without}");
}

#[test]
fn a_search_cut_short_gives_what_it_has() {
    let data = dataset(2_000, 4);
    assert_eq!(search(&data, 1, &mut || false), Crosses::default());
}

#[test]
fn the_same_builds_and_seeds_give_the_same_model() {
    let data = dataset(3_000, 4);
    let few = || {
        let mut questions = 0;
        search(&data, 9, &mut || {
            questions += 1;
            questions < 20
        })
    };
    assert_eq!(few(), few());
    let model = || fit(&data, &few(), &FitOptions::new(1, 0));
    assert_eq!(model().encode(), model().encode());
}

#[test]
fn a_type_that_few_builds_used_has_no_model() {
    let mut data = dataset(3_000, 4);
    let facts = BuildFacts { command: "build", flags: &[], targets: &[], group: "g", priority: "p" };
    for key in 0..20 {
        data.push(&facts, [("tpu", 3.0)], key);
    }
    let model = fit(&data, &Crosses::default(), &FitOptions::new(1, 0));
    assert_eq!(model.predict(&facts, "tpu"), None);
    assert!(model.predict(&facts, TYPES[0]).is_some());
}

#[test]
fn usage_that_is_no_number_is_left_out() {
    let facts = BuildFacts { command: "build", flags: &[], targets: &[], group: "g", priority: "p" };
    let mut data = Dataset::new();
    data.push(&facts, [("mac", f64::NAN), ("x86_64", -1.0), ("gpu", f64::INFINITY)], 1);
    assert!(data.is_empty());
    let model = fit(&data, &Crosses::default(), &FitOptions::new(1, 0));
    assert_eq!(model.predict(&facts, "mac"), None);
    let crosses = Cross::new([Feature::Package, Feature::Target]);
    assert_eq!(crosses, None);
}

#[test]
fn it_is_not_far_from_what_can_be_foreseen_at_all() {
    let data = dataset(30_000, 3);
    let model = fit(&data, &Crosses::default(), &FitOptions::new(1, 0));
    let mut workload = Workload::new(77);
    let (mut errors, mut least) = (0.0, 0.0);
    for build in std::iter::repeat_with(|| workload.next_build()).take(3_000) {
        let predicted = model.predict(&facts(&build), TYPES[0]).expect("it knows the type");
        let (used, mean) = (build.usage[0].1, build.mean[0].1);
        errors += (used - predicted).abs();
        least += (used - mean).abs();
    }
    assert!(errors < 1.5 * least, "{errors} against {least}");
}
