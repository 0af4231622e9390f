//! Properties that hold for every model and every build, and for the bytes of a model.

use crate::support::workload::{Build, TYPES, Workload};
use crate::support::{dataset, facts};
use occupancy::{BuildFacts, Cross, Crosses, DecodeError, Feature, FitOptions, OccupancyModel, fit};
use proptest::prelude::*;
use std::sync::LazyLock;

/// A small model with a cross of each kind.
static MODEL: LazyLock<OccupancyModel> = LazyLock::new(|| {
    let flag = |name: &str| Feature::Flag(name.to_owned());
    let crosses = [
        vec![Feature::Command, flag("--config"), Feature::Package],
        vec![Feature::Group, Feature::Priority, Feature::TargetCount],
        vec![flag("--copt"), Feature::Target, Feature::PackageCount],
    ];
    let crosses: Vec<Cross> = crosses.into_iter().filter_map(Cross::new).collect();
    let mut all = Crosses::default();
    for executor_type in TYPES {
        all.by_type.insert(executor_type.to_owned(), crosses.clone());
    }
    fit(&dataset(4_000, 8), &all, &FitOptions::new(17, 1_700_000_000_000))
});
static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| MODEL.encode());
static BUILDS: LazyLock<Vec<Build>> = LazyLock::new(|| {
    let mut workload = Workload::new(9);
    std::iter::repeat_with(|| workload.next_build()).take(200).collect()
});

#[test]
fn a_model_comes_back_from_its_bytes() {
    let decoded = OccupancyModel::decode(&BYTES).expect("they are a model's");
    assert!(decoded == *MODEL);
    let report = decoded.report();
    assert_eq!((report.version, report.trained_at_ms), (17, 1_700_000_000_000));
    assert!(report.builds > 3_600 && report.builds < 4_000, "{}", report.builds);
    for build in BUILDS.iter() {
        for executor_type in TYPES {
            assert_eq!(
                decoded.predict(&facts(build), executor_type),
                MODEL.predict(&facts(build), executor_type)
            );
        }
    }
}

#[test]
fn bytes_that_are_no_model_are_refused_with_the_reason() {
    assert_eq!(OccupancyModel::decode(b"").err(), Some(DecodeError::NotAModel));
    assert_eq!(OccupancyModel::decode(b"{\"version\": 1}").err(), Some(DecodeError::NotAModel));
    for found in [1, 3] {
        let mut other = BYTES.clone();
        other[8] = found;
        let other = OccupancyModel::decode(&other).err();
        assert_eq!(other, Some(DecodeError::OtherFormat { found: u16::from(found), known: 2 }));
    }
    for end in [8, 9, 20, BYTES.len() - 1] {
        assert_eq!(OccupancyModel::decode(&BYTES[..end]).err(), Some(DecodeError::Damaged));
    }
    let mut damaged = BYTES.clone();
    damaged[1_000] ^= 1;
    assert_eq!(OccupancyModel::decode(&damaged).err(), Some(DecodeError::Damaged));
}

/// The texts reordered by a key for each place.
fn reordered(texts: &[String], keys: &[u32]) -> Vec<String> {
    let mut texts: Vec<(u32, &String)> = keys.iter().copied().cycle().zip(texts).collect();
    texts.sort_by_key(|(key, _)| *key);
    texts.into_iter().map(|(_, text)| text.clone()).collect()
}

fn texts(pattern: &'static str) -> impl Strategy<Value = Vec<String>> {
    proptest::collection::vec(pattern, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_flipped_byte_is_refused(place in any::<prop::sample::Index>(), flip in 1_u8..) {
        let mut bytes = BYTES.clone();
        let place = place.index(bytes.len());
        bytes[place] ^= flip;
        prop_assert!(OccupancyModel::decode(&bytes).is_err());
    }

    #[test]
    fn any_truncation_is_refused(end in any::<prop::sample::Index>()) {
        prop_assert!(OccupancyModel::decode(&BYTES[..end.index(BYTES.len())]).is_err());
    }

    #[test]
    fn the_order_of_flags_and_targets_does_not_matter(
        build in any::<prop::sample::Index>(),
        keys in proptest::collection::vec(any::<u32>(), 50),
    ) {
        let build = build.get(&BUILDS);
        let (flags, targets) = (reordered(&build.flags, &keys), reordered(&build.targets, &keys));
        let other = BuildFacts { flags: &flags, targets: &targets, ..facts(build) };
        prop_assert_eq!(MODEL.predict(&other, TYPES[0]), MODEL.predict(&facts(build), TYPES[0]));
    }

    #[test]
    fn one_unknown_value_is_like_another(
        build in any::<prop::sample::Index>(),
        one in "[A-Z]{8}",
        other in "[A-Z]{8}",
    ) {
        let build = build.get(&BUILDS);
        let with = |unknown: &str| {
            let flags: Vec<_> = build.flags.iter().cloned().chain([format!("--define={unknown}"), format!("--{unknown}")]).collect();
            let targets: Vec<_> = build.targets.iter().cloned().chain([format!("//{unknown}:{unknown}")]).collect();
            let group = format!("area-{unknown}");
            MODEL.predict(&BuildFacts { flags: &flags, targets: &targets, group: &group, ..facts(build) }, TYPES[1])
        };
        prop_assert_eq!(with(&one), with(&other));
    }

    #[test]
    fn a_prediction_is_finite_and_not_negative(
        command in "\\PC*",
        flags in texts("--[a-z_]{1,9}(=\\PC{0,6})?"),
        targets in texts("//area[0-9]{1,2}/team[0-9]/component_[0-9]{1,3}:target_[0-9]"),
        others in texts("\\PC*"),
    ) {
        let targets: Vec<String> = targets.into_iter().chain(others).collect();
        let facts = BuildFacts { command: &command, flags: &flags, targets: &targets, group: "area-2", priority: "BATCH" };
        for executor_type in TYPES {
            if let Some(esu) = MODEL.predict(&facts, executor_type) {
                prop_assert!(esu.is_finite() && esu >= 0.0, "{}", esu);
            }
        }
    }
}
