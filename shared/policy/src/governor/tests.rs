use proptest::prelude::*;

use super::*;

fn esu(units: f64) -> Esu {
    Esu::new(units).unwrap()
}

fn x86(units: f64) -> Occupancy {
    Occupancy::of_each([ExecutorType::x86()], esu(units))
}

fn group(name: &str) -> Group {
    name.parse().unwrap()
}

/// A group with a quota that uses `pv`, as estimated, and has `waiting` in builds of 1 ESU.
fn state(quota: f64, pv: f64, waiting: f64) -> GroupState {
    GroupState {
        quota: x86(quota),
        pv: x86(pv),
        backlog: Occupancy::default(),
        in_progress: x86(pv),
        peak: x86(pv),
        ended: Occupancy::default(),
        waiting: x86(waiting),
        head: (waiting > 0.0).then(|| x86(1.0)),
    }
}

fn states<const N: usize>(of: [(&str, GroupState); N]) -> BTreeMap<Group, GroupState> {
    of.into_iter().map(|(name, state)| (group(name), state)).collect()
}

/// A farm without executors, and this setting `capacity`.
fn capped(capacity: Option<f64>) -> ExecutorsState {
    ExecutorsState { cap: capacity.map(x86).unwrap_or_default(), ..ExecutorsState::default() }
}

fn first(groups: &BTreeMap<Group, GroupState>, capacity: Option<f64>) -> GovernorRecord {
    govern(
        &GovernorRecord::default(),
        groups,
        &capped(capacity),
        &ControlSettings::default(),
        Millis(1_000_000),
    )
}

fn of(record: &GovernorRecord, name: &str) -> Governed {
    record.groups[&group(name)][&ExecutorType::x86()]
}

/// Ticks until the smoothed values are at rest.
fn settled(groups: &BTreeMap<Group, GroupState>, capacity: Option<f64>) -> GovernorRecord {
    let executors = capped(capacity);
    (0..60).fold(GovernorRecord::default(), |last, tick| {
        govern(&last, groups, &executors, &ControlSettings::default(), Millis(5000 * (tick + 1)))
    })
}

#[test]
fn a_hungry_group_is_given_a_part_of_what_it_lacks() {
    let governed = of(&first(&states([("a", state(100.0, 40.0, 500.0))]), None), "a");
    assert_eq!(governed.sp, esu(100.0));
    assert!((governed.mv.units() - (0.3 * 60.0 + 0.25)).abs() < 1e-6, "{governed:?}");
    assert_eq!(governed.target, governed.in_progress - governed.ending + governed.mv);
}

#[test]
fn above_its_set_point_it_starts_nothing() {
    let governed = of(&first(&states([("a", state(100.0, 120.0, 500.0))]), None), "a");
    assert!(governed.mv < Esu::ZERO);
    assert_eq!(governed.target, Esu::ZERO);
}

#[test]
fn builds_that_end_are_replaced_while_the_error_is_small() {
    let short = GroupState { ended: x86(5000.0), ..state(100.0, 101.0, 500.0) };
    let governed = of(&first(&states([("a", short)]), None), "a");
    assert!(governed.mv > Esu::ZERO && governed.target > esu(99.0), "{governed:?}");
    assert!(governed.target < esu(102.0), "{governed:?}");
}

#[test]
fn small_quotas_start_their_head() {
    let governed = of(&first(&states([("a", state(1.0, 0.0, 9.0))]), None), "a");
    assert!(governed.target >= esu(1.0), "0.3 would admit none: {governed:?}");
    let governed = of(&first(&states([("a", state(2.0, 1.0, 9.0))]), None), "a");
    assert!(governed.target >= esu(2.0) && governed.target < esu(3.0), "{governed:?}");
}

#[test]
fn an_absurd_head_counts_as_what_the_group_can_have() {
    let absurd = GroupState { head: Some(x86(1e6)), waiting: x86(1e6), ..state(10.0, 0.0, 0.0) };
    let governed = of(&first(&states([("a", absurd), ("b", state(10.0, 10.0, 0.0))]), None), "a");
    assert_eq!(governed.limit, esu(25.0));
}

#[test]
fn what_is_unused_is_lent_and_given_back_at_once() {
    let idle =
        states([("a", state(50.0, 50.0, 500.0)), ("b", state(50.0, 0.0, 0.0)), ("c", state(0.0, 0.0, 5.0))]);
    let lent = settled(&idle, None);
    assert!(of(&lent, "a").borrowed + of(&lent, "c").borrowed <= esu(45.0));
    assert!(of(&lent, "a").borrowed > esu(34.0), "{:?}", of(&lent, "a"));
    assert!(of(&lent, "c").sp > Esu::ZERO, "a group without a quota borrows too");
    let back = states([("a", state(50.0, 95.0, 500.0)), ("b", state(50.0, 0.0, 500.0))]);
    let record = govern(
        &lent,
        &back,
        &capped(None),
        &ControlSettings::default(),
        lent.at_ms.after(Duration::from_secs(5)),
    );
    assert_eq!(of(&record, "a").sp, esu(50.0));
    assert!(of(&record, "a").target == Esu::ZERO && of(&record, "b").mv >= esu(15.0));
}

#[test]
fn a_small_group_may_use_most_of_an_idle_farm() {
    let record = settled(&states([("a", state(10.0, 10.0, 9999.0)), ("b", state(990.0, 0.0, 0.0))]), None);
    assert!((of(&record, "a").sp.units() - 760.0).abs() < 1.0);
}

#[test]
fn without_any_quota_of_a_type_nothing_starts() {
    let gpu: ExecutorType = "gpu".parse().unwrap();
    let mut a = state(10.0, 0.0, 1.0);
    a.head.as_mut().unwrap().add(&gpu, Esu::ONE);
    a.waiting.add(&gpu, Esu::ONE);
    let governed = first(&states([("a", a)]), None).groups[&group("a")][&gpu];
    assert_eq!((governed.sp, governed.limit, governed.target, governed.mv), Default::default());
    assert_eq!(governed.waiting, Esu::ONE);
}

#[test]
fn quotas_are_scaled_to_the_capacity() {
    let groups = states([("a", state(300.0, 0.0, 9999.0)), ("b", state(100.0, 0.0, 9999.0))]);
    let record = first(&groups, Some(200.0));
    assert_eq!((of(&record, "a").sp, of(&record, "b").sp), (esu(150.0), esu(50.0)));
    let record = first(&groups, Some(1000.0));
    assert_eq!(of(&record, "a").sp, esu(300.0), "capacity outside all quotas is not given away");
    let record = first(&groups, Some(0.0));
    assert_eq!((of(&record, "a").sp, of(&record, "a").target), Default::default());
}

#[test]
fn usage_that_is_not_reported_does_not_start_everything() {
    let settings = ControlSettings::default();
    let mut last = GovernorRecord::default();
    for tick in 0..100 {
        let held = last.groups.values().flat_map(BTreeMap::values).map(|at| at.target.units()).sum::<f64>();
        let blind = GroupState { in_progress: x86(held), peak: x86(held), ..state(100.0, 0.0, 9999.0) };
        last = govern(&last, &states([("a", blind)]), &capped(None), &settings, Millis(5000 * (tick + 1)));
    }
    assert!(of(&last, "a").target <= esu(602.0), "{:?}", of(&last, "a"));
}

#[test]
fn gaps_clocks_and_groups_that_go() {
    let settings = ControlSettings::default();
    let groups = states([("a", state(100.0, 50.0, 500.0)), ("b", state(0.0, 0.0, 0.0))]);
    let last = settled(&groups, None);
    assert!(!last.groups.contains_key(&group("b")), "it has nothing");
    let fresh = first(&groups, None);
    for now in [Millis(0), last.at_ms, last.at_ms.after(Duration::from_secs(600)), Millis(u64::MAX)] {
        let record = govern(&last, &groups, &capped(None), &settings, now);
        assert_eq!(record.groups, fresh.groups, "nothing is known of before at {now:?}");
        assert_eq!((record.tick, record.at_ms), (last.tick + 1, now));
    }
    let early = govern(&last, &groups, &capped(None), &settings, last.at_ms.after(Duration::from_millis(50)));
    assert!(of(&early, "a").mv < esu(2.0), "one that comes early starts its part: {:?}", of(&early, "a"));
    assert_eq!(next_tick(&last, &settings), last.at_ms.after(Duration::from_secs(5)));
}

#[test]
fn settings_are_checked() {
    let good = ControlSettings::default();
    assert_eq!(good.check(), Ok(()));
    let bad = [
        ControlSettings { kp: f64::NAN, ..good },
        ControlSettings { ki: -0.1, ..good },
        ControlSettings { tick_seconds: 0.0, ..good },
        ControlSettings { borrow_share: 1.1, ..good },
        ControlSettings { overcommit_max: f64::INFINITY, ..good },
    ];
    for settings in bad {
        assert!(settings.check().is_err(), "{settings:?}");
    }
    let error = bad[1].check().unwrap_err();
    assert_eq!(error.to_string(), "governor setting ki is -0.1: expected a number from 0 to 10");
}

fn any_state() -> impl Strategy<Value = GroupState> {
    let amount = || prop_oneof![Just(0.0), 0.0..2.0, 0.0..2000.0];
    (amount(), amount(), amount(), amount(), amount(), amount()).prop_map(
        |(quota, pv, in_progress, ended, waiting, head)| GroupState {
            quota: x86(quota),
            pv: x86(pv),
            backlog: Occupancy::default(),
            in_progress: x86(in_progress),
            peak: x86(in_progress * 1.2),
            ended: x86(ended),
            waiting: x86(waiting),
            head: (waiting > 0.0).then(|| x86(head)),
        },
    )
}

proptest! {
    #[test]
    fn decisions_are_bounded(
        ticks in prop::collection::vec((prop::collection::vec(any_state(), 1..5), 0_u64..20_000), 1..12),
        capacity in prop::option::of(0.0..3000.0),
    ) {
        let settings = ControlSettings::default();
        let available = capped(capacity);
        let (mut last, mut now) = (GovernorRecord::default(), 0);
        for (states, gap) in ticks {
            now += gap;
            let groups = states.into_iter().enumerate().map(|(at, state)| (group(&format!("g{at}")), state)).collect();
            let record = govern(&last, &groups, &available, &settings, Millis(now));
            prop_assert_eq!(&record, &govern(&last, &groups, &available, &settings, Millis(now)));
            let quotas: Esu = groups.values().map(|state| state.quota.get(&ExecutorType::x86())).sum();
            let all = || record.groups.values().flat_map(BTreeMap::values);
            let own: Esu = all().map(|governed| governed.quota).sum();
            let most = capacity.map_or(quotas, |capacity| quotas.min(esu(capacity)));
            prop_assert!(own <= most + esu(0.001));
            prop_assert!(all().map(|governed| governed.borrowed).sum::<Esu>() <= own.times(0.9) + esu(0.001));
            for governed in all() {
                prop_assert!(governed.sp <= governed.limit + esu(0.001));
                prop_assert!(governed.integral.units().abs() <= settings.integral_max * governed.sp.units() + 1e-6);
                prop_assert!(governed.mv.units().abs() < 1e6);
                prop_assert_eq!(governed.target > Esu::ZERO, governed.mv > Esu::ZERO && governed.target != Esu::ZERO);
                prop_assert!(governed.mv > Esu::ZERO || governed.target == Esu::ZERO);
            }
            last = record;
        }
    }

    #[test]
    fn a_head_that_fits_always_starts(quota in 0.1..500.0, used in 0.0..1.0, head in 0.0..1.0) {
        let (pv, head) = (quota * used, quota * (1.0 - used) * head);
        let fits = GroupState { head: Some(x86(head)), waiting: x86(head), ..state(quota, pv, 0.0) };
        let governed = of(&first(&states([("a", fits)]), None), "a");
        prop_assert!(governed.target - x86(pv).get(&ExecutorType::x86()) >= x86(head).get(&ExecutorType::x86()));
    }
}

/// Executors with this capacity, and builds of 1 ESU each of which `running` run and `waiting` wait.
fn executors(capacity: f64, running: f64, ended: f64, waiting: f64) -> ExecutorsState {
    let builds = GroupState {
        pv: x86(running.min(capacity)),
        backlog: x86((running - capacity).max(0.0)),
        ended: x86(ended),
        ..state(0.0, running, waiting)
    };
    ExecutorsState { capacity: x86(capacity), builds, ..ExecutorsState::default() }
}

fn on_executors(record: &GovernorRecord) -> Governed {
    record.executors[&ExecutorType::x86()]
}

#[test]
fn idle_executors_are_filled_at_once() {
    let settings = ControlSettings::default();
    let none = GovernorRecord::default();
    let of = |state: &ExecutorsState| govern(&none, &BTreeMap::new(), state, &settings, Millis(5000));
    let governed = on_executors(&of(&executors(8.0, 0.0, 0.0, 0.0)));
    assert_eq!(governed.quota, esu(8.0));
    assert!(governed.target >= esu(8.0) && governed.target < esu(9.5), "{governed:?}");
    let full = on_executors(&of(&executors(8.0, 20.0, 0.0, 50.0)));
    assert_eq!(full.target, Esu::ZERO, "actions wait for executors");
    assert!(of(&ExecutorsState::default()).executors.is_empty(), "no type has executors");
    let drained = on_executors(&of(&executors(0.0, 0.0, 0.0, 5.0)));
    assert_eq!(drained.target, Esu::ZERO, "the type is known and carries nothing");
}

#[test]
fn quotas_are_scaled_to_what_executors_carry_and_builds_without_actions_need() {
    let settings = ControlSettings::default();
    let groups = states([("a", state(30.0, 0.0, 50.0)), ("b", state(10.0, 0.0, 50.0))]);
    let shares = |elsewhere: f64, cap: Option<f64>| {
        let farm = ExecutorsState { elsewhere: x86(elsewhere), ..executors(8.0, 0.0, 0.0, 0.0) };
        let farm = ExecutorsState { cap: cap.map(x86).unwrap_or_default(), ..farm };
        let record = govern(&GovernorRecord::default(), &groups, &farm, &settings, Millis(5000));
        ["a", "b"].map(|name| of(&record, name).quota)
    };
    assert_eq!(shares(0.0, None), [esu(6.0), esu(2.0)]);
    assert_eq!(shares(12.0, None), [esu(15.0), esu(5.0)]);
    assert_eq!(shares(1000.0, None), [esu(30.0), esu(10.0)], "the quotas themselves");
    assert_eq!(shares(12.0, Some(4.0)), [esu(3.0), esu(1.0)], "the setting is a maximum");
    let gone = executors(0.0, 0.0, 0.0, 0.0);
    let record = govern(&GovernorRecord::default(), &groups, &gone, &settings, Millis(5000));
    assert!(of(&record, "b").sp > Esu::ZERO, "each group can start a build");
}

proptest! {
    #[test]
    fn builds_settle_to_what_a_smaller_pool_carries(before in 16_u32..60, after in 2_u32..14, ticks in 2_u32..8) {
        let settings = ControlSettings::default();
        let (mut last, mut running) = (GovernorRecord::default(), 0.0_f64);
        let mut most_waiting = 0.0_f64;
        for tick in 0..400_u32 {
            let capacity = f64::from(if tick < 20 { before } else { after });
            // Each executor ends a build of 1 ESU after `ticks` decisions.
            let ended = running.min(capacity) / f64::from(ticks);
            running -= ended;
            let state = executors(capacity, running, ended, 1000.0);
            last = govern(&last, &BTreeMap::new(), &state, &settings, Millis(5000 * (u64::from(tick) + 1)));
            running = running.max(on_executors(&last).target.units());
            if tick >= 350 {
                most_waiting = most_waiting.max(running - capacity);
                prop_assert!(running >= 0.6 * capacity, "{running} of {capacity}");
            }
        }
        prop_assert!(most_waiting <= 0.3 * f64::from(after) + 1.0, "{most_waiting} wait for {after}");
    }
}
