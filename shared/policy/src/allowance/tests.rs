use model::Quota;
use proptest::prelude::*;

use super::*;
use crate::{Lack, dequeue};

fn esu(units: f64) -> Esu {
    Esu::new(units).unwrap()
}

fn kind(name: &str) -> ExecutorType {
    name.parse().unwrap()
}

fn occupancy(of: &[(&str, f64)]) -> Occupancy {
    of.iter().map(|(name, units)| (kind(name), esu(*units))).collect()
}

/// An allowance with a set point, a limit and a target for each type.
fn allowance(of: &[(&str, f64, f64, f64)]) -> Allowance {
    let governed = |sp, limit, target| Governed {
        sp: esu(sp),
        limit: esu(limit),
        target: esu(target),
        ..Governed::default()
    };
    let types = of.iter().map(|(name, sp, limit, target)| (kind(name), governed(*sp, *limit, *target)));
    Allowance::governed(types.collect())
}

fn decided(group: &str, quotas: &Quotas, record: &GovernorRecord) -> Allowance {
    Allowance::of(&group.parse().unwrap(), quotas, &QuotaTotals::of(quotas), record)
}

#[test]
fn without_quotas_everything_starts() {
    let allowance = decided("g", &Quotas::default(), &GovernorRecord::default());
    assert_eq!(allowance, Allowance::Unlimited);
    let absurd = occupancy(&[("x86", 1e8), ("gpu", 1.0)]);
    assert_eq!(allowance.startable([&absurd, &absurd], &absurd), [0, 1]);
    assert!(allowance.clamped(&absurd).is_empty() && !allowance.admission(&absurd).is_exhausted());
}

#[test]
fn a_group_that_the_governor_has_not_seen_starts_its_first_build() {
    let quota = |units| Quota { esu: occupancy(&[("x86", units)]) };
    let groups = [("a".parse().unwrap(), quota(10.0)), ("b".parse().unwrap(), quota(5.0))];
    let quotas = Quotas { groups: groups.into(), default: None };
    let build = occupancy(&[("x86", 2.0)]);
    let of = |group: &str| decided(group, &quotas, &GovernorRecord::default());
    assert_eq!(of("a").startable([&build, &build], &Occupancy::default()), [0]);
    assert!(
        of("c").startable([&build], &Occupancy::default()).is_empty(),
        "it may borrow, if the governor says so"
    );
    let refused = of("c").admission(&Occupancy::default()).consider(&build);
    assert!(matches!(refused, Err(Held::Throttled(_))), "{refused:?}");
}

/// Quotas of `own`, and a decision that saw the groups of `used` use these amounts.
fn farm(own: &[(&str, f64)], used: &[(&str, f64)]) -> (Quotas, GovernorRecord) {
    let groups = own
        .iter()
        .map(|(group, units)| (group.parse().unwrap(), Quota { esu: occupancy(&[("x86", *units)]) }));
    let decided = used.iter().map(|(group, units)| {
        let of = own.iter().find(|(named, _)| named == group).map_or(0.0, |(_, units)| *units);
        let governed = Governed { quota: esu(of), pv: esu(*units), sp: esu(of), ..Governed::default() };
        (group.parse().unwrap(), BTreeMap::from([(ExecutorType::x86(), governed)]))
    });
    let record = GovernorRecord { tick: 1, groups: decided.collect(), ..GovernorRecord::default() };
    (Quotas { groups: groups.collect(), default: None }, record)
}

#[test]
fn a_group_without_a_quota_starts_its_first_build_on_what_others_leave() {
    let build = occupancy(&[("x86", 1.0)]);
    let of = |used: f64, in_progress: &Occupancy| {
        let (quotas, record) = farm(&[("ci", 8.0)], &[("ci", used)]);
        let spare = Spare::of(&quotas, &record);
        let allowance = decided("default", &quotas, &record).lending(spare.amount().clone());
        allowance.startable([&build, &build], in_progress)
    };
    let nothing = Occupancy::default();
    assert_eq!(of(0.0, &nothing), [0], "an idle farm; the second waits for the governor");
    assert_eq!(of(6.5, &nothing), [0]);
    assert!(of(8.0, &nothing).is_empty(), "nothing is left");
    assert!(of(0.0, &build).is_empty(), "it has one");
    let (quotas, _) = farm(&[("ci", 8.0)], &[]);
    let unseen = Spare::of(&quotas, &GovernorRecord::default());
    assert_eq!(unseen.amount(), &occupancy(&[("x86", 7.2)]), "the governor has seen no group");
}

#[test]
fn what_was_lent_is_not_lent_twice() {
    let (quotas, record) = farm(&[("ci", 3.0)], &[("ci", 0.0)]);
    let spare = Spare::of(&quotas, &record);
    let build = occupancy(&[("x86", 2.0)]);
    let mut lending = Lending::default();
    lending.decided(1);
    let starts = |lending: &mut Lending, group: &str| {
        let name: Group = group.parse().unwrap();
        let allowance = decided(group, &quotas, &record).lending(lending.left(&spare, &name));
        let goes = !allowance.startable([&build], &Occupancy::default()).is_empty();
        if goes {
            lending.start(&name, &allowance, &build);
        }
        goes
    };
    assert!(starts(&mut lending, "a"));
    assert!(!starts(&mut lending, "b"), "0.7 are left");
    assert!(starts(&mut lending, "a"), "its first build ended: it has nothing in progress again");
    lending.decided(1);
    assert!(!starts(&mut lending, "b"));
    lending.decided(2);
    assert!(starts(&mut lending, "b"), "the next decision counted what a has");
}

#[test]
fn a_loan_of_one_type_does_not_end_that_of_another() {
    let quota = Quota { esu: occupancy(&[("gpu", 3.0), ("tpu", 3.0)]) };
    let quotas = Quotas { groups: BTreeMap::from([("ci".parse().unwrap(), quota)]), default: None };
    let record = GovernorRecord::default();
    let spare = Spare::of(&quotas, &record);
    let mut lending = Lending::default();
    let mut starts = |group: &str, executor_type: &str, in_progress: &Occupancy| {
        let name: Group = group.parse().unwrap();
        let build = occupancy(&[(executor_type, 2.0)]);
        let allowance = decided(group, &quotas, &record).lending(lending.left(&spare, &name));
        let goes = !allowance.startable([&build], in_progress).is_empty();
        if goes {
            lending.start(&name, &allowance, &build);
        }
        goes
    };
    let nothing = Occupancy::default();
    assert!(starts("a", "gpu", &nothing));
    assert!(starts("a", "tpu", &occupancy(&[("gpu", 2.0)])));
    assert!(!starts("b", "gpu", &nothing), "0.7 are left");
    assert!(!starts("b", "tpu", &nothing), "0.7 are left");
}

#[test]
fn the_record_goes_before_the_quotas() {
    let group: Group = "a".parse().unwrap();
    let quotas = Quotas { groups: BTreeMap::new(), default: Some(Quota { esu: occupancy(&[("x86", 5.0)]) }) };
    let governed = Governed { sp: esu(9.0), limit: esu(9.0), target: esu(7.0), ..Governed::default() };
    let types = BTreeMap::from([(ExecutorType::x86(), governed)]);
    let record =
        GovernorRecord { groups: BTreeMap::from([(group.clone(), types)]), ..GovernorRecord::default() };
    let build = occupancy(&[("x86", 2.0)]);
    let in_progress = occupancy(&[("x86", 3.0)]);
    assert_eq!(decided(group.as_str(), &quotas, &record).startable([&build; 5], &in_progress), [0, 1]);
}

#[test]
fn why_says_what_is_lacking() {
    let allowance = allowance(&[("x86", 10.0, 10.0, 10.0), ("mac", 4.0, 4.0, 0.0)]);
    let in_progress = occupancy(&[("x86", 1.0), ("mac", 3.0)]);
    let mut admission = allowance.admission(&in_progress);
    let lack = Lack { executor_type: kind("mac"), needed: esu(1.0), remaining: esu(-3.0) };
    let held = Held::Throttled(Throttled { types: vec![lack] });
    assert_eq!(admission.consider(&occupancy(&[("x86", 2.0), ("mac", 1.0)])), Err(held));
    assert_eq!(admission.consider(&occupancy(&[("x86", 7.0)])), Ok(()));
    assert!(admission.consider(&occupancy(&[("x86", 1.0)])).is_err(), "2 and 7 are reserved");
    assert_eq!(admission.reserved(), occupancy(&[("x86", 10.0), ("mac", 1.0)]));
    assert!(admission.is_exhausted());
}

#[test]
fn a_type_without_quotas_is_not_limited_and_one_of_nothing_starts_nothing() {
    let allowance = allowance(&[("x86", 4.0, 4.0, 4.0), ("tpu", 0.0, 0.0, 0.0)]);
    let nothing = Occupancy::default();
    let mut admission = allowance.admission(&nothing);
    assert_eq!(admission.consider(&occupancy(&[("x86", 1.0), ("gpu", 900.0)])), Ok(()));
    let held = Held::NoQuota { types: vec![kind("tpu")] };
    assert_eq!(admission.consider(&occupancy(&[("x86", 3.0), ("tpu", 1.0)])), Err(held));
    assert_eq!(admission.consider(&occupancy(&[("x86", 3.0)])), Ok(()), "it kept no place");
    assert!(admission.is_exhausted(), "without x86 nothing else is of use");
}

#[test]
fn quotas_of_one_type_say_nothing_of_another() {
    let quota = |of: &[(&str, f64)]| Quota { esu: occupancy(of) };
    let quotas = Quotas { groups: [("ml".parse().unwrap(), quota(&[("gpu", 2.0)]))].into(), default: None };
    let other = decided("other", &quotas, &GovernorRecord::default());
    let x86 = occupancy(&[("x86", 50.0)]);
    assert_eq!(other.startable([&x86; 3], &x86), [0, 1, 2]);
    assert_eq!(other.startable([&occupancy(&[("x86", 1.0), ("gpu", 1.0)])], &x86), [0_usize; 0]);
}

#[test]
fn an_estimate_beyond_the_limit_counts_as_the_limit() {
    let allowance = allowance(&[("x86", 10.0, 25.0, 30.0)]);
    let absurd = occupancy(&[("x86", 1e6)]);
    let clamped = Clamped { executor_type: kind("x86"), estimate: esu(1e6), counts_as: esu(25.0) };
    assert_eq!(allowance.clamped(&absurd), [clamped]);
    let small = occupancy(&[("x86", 5.0)]);
    assert_eq!(allowance.startable([&absurd, &small, &small], &Occupancy::default()), [0, 1]);
}

#[test]
fn the_head_starts_when_nothing_of_its_type_is_in_progress() {
    let allowance = allowance(&[("x86", 1.0, 1.0, 0.0), ("gpu", 0.0, 1.0, 0.0)]);
    let build = occupancy(&[("x86", 1.0)]);
    assert_eq!(allowance.startable([&build, &build], &Occupancy::default()), [0]);
    assert!(allowance.startable([&build, &build], &build).is_empty());
    let both = occupancy(&[("x86", 1.0), ("gpu", 1.0)]);
    assert!(
        allowance.startable([&both], &Occupancy::default()).is_empty(),
        "nothing of gpu is to be had now"
    );
}

#[test]
fn an_emergency_starts_whatever_the_quotas_are_and_its_group_pays_back() {
    let allowance = allowance(&[("x86", 4.0, 8.0, 4.0), ("gpu", 0.0, 0.0, 0.0)]);
    let (full, build) = (occupancy(&[("x86", 4.0)]), occupancy(&[("x86", 1.0)]));
    let mut admission = allowance.admission(&full);
    assert!(admission.is_exhausted());
    admission.pass(&occupancy(&[("x86", 3.0), ("gpu", 1.0)]));
    assert_eq!(admission.reserved(), occupancy(&[("x86", 3.0), ("gpu", 1.0)]));
    assert!(admission.consider(&build).is_err());
    let with_emergency = occupancy(&[("x86", 6.0)]);
    assert!(allowance.startable([&build], &with_emergency).is_empty(), "it has more than its target");
    assert!(allowance.startable([&build], &occupancy(&[("x86", 3.5)])).is_empty());
    assert_eq!(allowance.startable([&build], &occupancy(&[("x86", 3.0)])), [0], "it has paid back");
}

proptest! {
    #[test]
    fn behind_an_emergency_builds_start_as_if_it_were_in_progress(
        urgent in prop::collection::vec(0.1..8.0, 0..5), queue in prop::collection::vec(0.0..8.0, 0..20),
        sp in 0.0..20.0, target in 0.0..30.0, in_progress in 0.0..30.0,
    ) {
        let allowance = allowance(&[("x86", sp, sp + 1.0, target)]);
        let of = |units: Vec<f64>| -> Vec<Occupancy> {
            units.into_iter().map(|units| occupancy(&[("x86", units)])).collect()
        };
        let (urgent, queue, before) = (of(urgent), of(queue), occupancy(&[("x86", in_progress)]));
        let mut after = before.clone();
        let mut admission = allowance.admission(&before);
        for build in &urgent {
            admission.pass(build);
            after.add(&kind("x86"), allowance.counted(build).get(&kind("x86")));
        }
        let goes = |(place, build): (usize, &Occupancy)| admission.consider(build).is_ok().then_some(place);
        let starts: Vec<usize> = queue.iter().enumerate().filter_map(goes).collect();
        prop_assert_eq!(starts, allowance.startable(&queue, &after));
    }

    #[test]
    fn only_the_head_passes_the_target(
        queue in prop::collection::vec(0.0..8.0, 0..40),
        sp in prop_oneof![Just(0.0), 0.0..20.0], more in 0.0..20.0, target in 0.0..30.0,
        in_progress in prop_oneof![Just(0.0), 0.0..30.0], spare in prop_oneof![Just(0.0), 0.0..30.0],
    ) {
        let limit = sp + more + 0.001;
        let allowance = allowance(&[("x86", sp, limit, target)]).lending(occupancy(&[("x86", spare)]));
        let queue: Vec<Occupancy> = queue.into_iter().map(|units| occupancy(&[("x86", units)])).collect();
        let before = occupancy(&[("x86", in_progress)]);
        let starts = allowance.startable(&queue, &before);
        let counted: Vec<Occupancy> = queue.iter().map(|build| allowance.counted(build)).collect();
        let paper = dequeue(&counted, &occupancy(&[("x86", target)]), &before);
        let of = |places: &[usize]| places.iter().map(|at| counted[*at].get(&kind("x86"))).sum::<Esu>();
        prop_assert!(of(&paper) == Esu::ZERO || of(&paper) + esu(in_progress) <= esu(target));
        let beyond: Vec<usize> = starts.iter().copied().filter(|at| !paper.contains(at)).collect();
        prop_assert!(paper.iter().all(|at| starts.contains(at)), "nothing that the paper starts is held");
        let first_that_needs_any = counted.iter().position(|build| build.get(&kind("x86")) > Esu::ZERO);
        prop_assert!(beyond.iter().all(|at| first_that_needs_any.is_none_or(|first| *at <= first)));
        prop_assert!(beyond.is_empty() || esu(in_progress) == Esu::ZERO);
        if target == 0.0 && in_progress > 0.0 {
            prop_assert!(starts.is_empty());
        }
        if esu(sp) > Esu::ZERO && esu(in_progress) == Esu::ZERO && !queue.is_empty() {
            prop_assert_eq!(starts.first(), Some(&0), "whatever its estimate, it starts when the group is idle");
        }
        let head = counted.first().map(|build| build.get(&kind("x86")));
        if sp == 0.0 && in_progress == 0.0 && spare > 0.0 && head.is_some_and(|head| head <= esu(spare)) {
            prop_assert_eq!(starts.first(), Some(&0), "others leave enough for it");
        }
    }

    #[test]
    fn pages_make_no_difference(queue in prop::collection::vec(0.0..3.0, 0..40), at in 0_usize..40) {
        let allowance = allowance(&[("x86", 9.0, 20.0, 12.0)]);
        let queue: Vec<Occupancy> = queue.into_iter().map(|units| occupancy(&[("x86", units)])).collect();
        let before = occupancy(&[("x86", 2.0)]);
        let mut admission = allowance.admission(&before);
        let (one, two) = queue.split_at(at.min(queue.len()));
        let paged: Vec<bool> = one.iter().chain(two).map(|build| admission.consider(build).is_ok()).collect();
        let whole = allowance.startable(&queue, &before);
        let places: Vec<usize> = (0..queue.len()).filter(|place| paged[*place]).collect();
        prop_assert_eq!(places, whole);
    }

    #[test]
    fn groups_without_quotas_never_start_more_than_others_leave(
        own in prop::collection::vec((0.0..20.0, 0.0..25.0), 1..5),
        builds in prop::collection::vec((0_usize..30, 0.0..4.0), 0..80),
    ) {
        let names: Vec<String> = (0..own.len()).map(|at| format!("own-{at}")).collect();
        let named = |amount: fn(&(f64, f64)) -> f64| {
            names.iter().map(String::as_str).zip(own.iter().map(amount)).collect::<Vec<_>>()
        };
        let (quotas, record) = farm(&named(|(quota, _)| *quota), &named(|(_, used)| *used));
        let spare = Spare::of(&quotas, &record);
        let unused: f64 = own.iter().map(|(quota, used)| (quota - used).max(0.0)).sum();
        let spare_units = spare.amount().get(&kind("x86")).units();
        prop_assert!(spare_units <= unused + 1e-6);
        let mut lending = Lending::default();
        let mut started: BTreeMap<usize, f64> = BTreeMap::new();
        for (at, units) in builds {
            let group: Group = format!("other-{at}").parse().unwrap();
            let build = occupancy(&[("x86", units)]);
            // Builds end in between, so each is its group's first.
            let allowance = decided(group.as_str(), &quotas, &record).lending(lending.left(&spare, &group));
            if !allowance.startable([&build], &Occupancy::default()).is_empty() {
                lending.start(&group, &allowance, &build);
                started.insert(at, units);
            }
        }
        prop_assert!(started.values().sum::<f64>() <= spare_units + 1e-3, "{started:?} of {spare_units}");
    }
}
