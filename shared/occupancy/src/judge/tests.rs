use super::*;
use crate::report::TypeReport;

/// A report with these errors, as fractions of the constant's, and numbers of test builds, by executor type.
fn report(version: u64, types: &[(&str, f64, u64)]) -> Report {
    let types = types.iter().map(|&(executor_type, relative, builds)| {
        let test = TestError {
            builds,
            mean_absolute: relative * 8.0,
            mean_square: 100.0,
            constant: 8.0,
            group_mean: 7.0,
            actual: 9.0,
            predicted: 9.0,
        };
        let test = (builds > 0).then_some(test);
        TypeReport {
            executor_type: executor_type.to_owned(),
            builds: 10_000,
            buckets: 1_024,
            crosses: vec![],
            test,
        }
    });
    Report { version, trained_at_ms: 0, builds: 10_000, words: 10, types: types.collect() }
}

#[test]
fn a_first_model_has_to_be_better_than_the_constant() {
    assert_eq!(judge(&report(1, &[("mac", 0.9, 500)]), None), Ok(()));
    let refusal = judge(&report(1, &[("mac", 1.0, 500), ("x86", 0.3, 500)]), None);
    assert!(
        matches!(refusal, Err(Refusal::WorseThanConstant { executor_type, .. }) if executor_type == "mac")
    );
    assert_eq!(judge(&report(1, &[("mac", 0.9, 0)]), None), Err(Refusal::Untested { version: 1 }));
    assert_eq!(judge(&report(1, &[]), None), Err(Refusal::Untested { version: 1 }));
}

#[test]
fn a_later_model_may_be_a_little_worse_and_no_more() {
    let current = report(1, &[("mac", 0.5, 500), ("x86", 0.4, 500)]);
    let judged = |mac, x86| judge(&report(2, &[("mac", mac, 500), ("x86", x86, 500)]), Some(&current));
    assert_eq!(judged(0.5, 0.4), Ok(()));
    assert_eq!(judged(0.54, 0.3), Ok(()));
    let refusal = judged(0.3, 0.46);
    assert!(matches!(refusal, Err(Refusal::Worse { executor_type, .. }) if executor_type == "x86"));
}

#[test]
fn between_two_that_are_nearly_perfect_chance_does_not_decide() {
    let current = report(1, &[("x86", 0.002, 500)]);
    assert_eq!(judge(&report(2, &[("x86", 0.004, 500)]), Some(&current)), Ok(()));
    assert!(judge(&report(2, &[("x86", 0.02, 500)]), Some(&current)).is_err());
}

#[test]
fn types_tested_on_few_builds_are_not_compared() {
    let current = report(1, &[("mac", 0.2, 100), ("x86", 0.4, 500)]);
    assert_eq!(judge(&report(2, &[("mac", 0.9, 100), ("x86", 0.4, 500)]), Some(&current)), Ok(()));
    assert_eq!(judge(&report(2, &[("mac", 0.9, 500), ("x86", 0.4, 500)]), Some(&current)), Ok(()));
    assert_eq!(judge(&report(2, &[("x86", 0.4, 500)]), Some(&current)), Ok(()));
}

#[test]
fn on_twenty_builds_a_model_has_to_be_better_than_the_constant() {
    let current = report(1, &[("x86", 0.4, 500)]);
    let judged = |builds| judge(&report(2, &[("mac", 3.0, builds), ("x86", 0.4, 500)]), Some(&current));
    assert_eq!(judged(19), Ok(()));
    let refusal = judged(20);
    assert!(
        matches!(refusal, Err(Refusal::WorseThanConstant { executor_type, .. }) if executor_type == "mac")
    );
    // A new farm does not accept such a model as its first either.
    assert!(judge(&report(1, &[("x86", 1.2, 30)]), None).is_err());
    assert_eq!(judge(&report(1, &[("x86", 0.8, 30)]), None), Ok(()));
}

#[test]
fn a_thin_test_does_not_replace_a_thick_one() {
    let current = report(1, &[("mac", 0.5, 200), ("x86", 0.4, 500)]);
    let judged = |builds| judge(&report(2, &[("mac", 0.1, builds), ("x86", 0.4, 500)]), Some(&current));
    for builds in [0, 10, 199] {
        let executor_type = "mac".to_owned();
        assert_eq!(judged(builds), Err(Refusal::Thin { version: 2, executor_type, builds }));
    }
    assert_eq!(judged(200), Ok(()));
    // Any better model may replace one that is no better than the constant.
    let current = report(1, &[("mac", 1.1, 500), ("x86", 0.4, 500)]);
    assert_eq!(judge(&report(2, &[("mac", 0.9, 30), ("x86", 0.4, 500)]), Some(&current)), Ok(()));
    assert_eq!(judge(&report(2, &[("x86", 0.4, 500)]), Some(&current)), Ok(()));
}

#[test]
fn a_type_in_use_must_not_go_missing() {
    let current = report(1, &[("mac", 0.5, 500), ("x86", 0.4, 500)]);
    let refusal = judge(&report(2, &[("x86", 0.2, 500)]), Some(&current));
    assert_eq!(refusal, Err(Refusal::Missing { version: 2, executor_type: "mac".to_owned() }));
}
