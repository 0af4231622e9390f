use std::collections::BTreeMap;

use model::{ExecutorType, Governed};

use super::*;

fn esu(units: f64) -> Esu {
    Esu::new(units).unwrap()
}

fn x86(units: f64) -> Occupancy {
    Occupancy::of_each([ExecutorType::x86()], esu(units))
}

fn allowance(target: f64) -> Allowance {
    let governed = Governed {
        quota: esu(10.0),
        limit: esu(10.0),
        sp: esu(10.0),
        target: esu(target),
        ..Governed::default()
    };
    Allowance::governed(BTreeMap::from([(ExecutorType::x86(), governed)]))
}

fn ask(ahead: &[&Occupancy], in_progress: &Occupancy, idle: u64, ends: &[Millis]) -> Waiting {
    let stand = Stand {
        before: ahead.len() as u64,
        queued: 9,
        ahead,
        ahead_ms: &vec![None; ahead.len()],
        priority: Priority::Interactive,
        estimate: &x86(3.0),
        in_progress,
        workspaces: Workspaces { idle, kept: 0, busy: 1, busy_with: &[], share: 1.0 },
        ends,
        now: Millis(20_000),
    };
    why(&stand, &allowance(8.0))
}

#[test]
fn it_names_the_type_that_throttles_and_what_is_before_it() {
    let waiting = ask(&[&x86(2.0)], &x86(4.0), 1, &[]);
    assert_eq!(waiting.place, 2);
    let by = &waiting.throttled_by[0];
    assert_eq!(
        (by.remaining, by.target, by.in_progress, by.reserved),
        (esu(2.0), esu(8.0), esu(4.0), esu(2.0))
    );
    let text = why_text(&waiting);
    assert!(text.contains("needs 3 ESU of x86") && text.contains("2 reserved by builds ahead"), "{text}");
}

#[test]
fn where_quota_is_no_matter_a_workspace_is() {
    let text = why_text(&ask(&[], &x86(1.0), 0, &[]));
    assert_eq!(text, "no workspace is idle");
    assert_eq!(why_text(&ask(&[], &x86(1.0), 2, &[])), "it is about to start");
}

#[test]
fn a_farm_without_a_worker_that_takes_builds_promises_no_start() {
    let ends = [Millis(19_000), Millis(12_000)];
    let counted = |workers| {
        let waiting = ask(&[], &x86(1.0), 0, &ends);
        assert!(waiting.expected_start_ms.is_some());
        with_workers(waiting, workers)
    };
    let of = |ready, draining| counted(WorkerCounts { ready, draining, full: 0 });
    let text = why_text(&of(0, 0));
    assert!(text.starts_with("no worker is running"), "{text}");
    let text = why_text(&of(0, 2));
    assert!(text.starts_with("every worker is draining"), "{text}");
    assert_eq!(of(0, 2).expected_start_ms, None);
    let text = why_text(&counted(WorkerCounts { ready: 0, draining: 0, full: 2 }));
    assert!(text.starts_with("no worker accepts builds: `forebay workers`"), "{text}");
    let text = why_text(&counted(WorkerCounts { ready: 0, draining: 1, full: 1 }));
    assert!(text.starts_with("every worker is draining or accepts no builds"), "{text}");
    assert_eq!(why_text(&of(1, 2)), "no workspace is idle");
    assert!(of(1, 2).expected_start_ms.is_some());
}

#[test]
fn its_start_follows_from_those_before() {
    let waiting = ask(&[&x86(2.0)], &x86(4.0), 1, &[Millis(19_000), Millis(12_000)]);
    assert_eq!(waiting.ends_per_second, Some(0.25));
    assert_eq!(
        waiting.expected_start_ms,
        Some(Millis(28_000)),
        "the second end from now, at one in four seconds"
    );
}

#[test]
fn quotas_of_nothing_are_named() {
    let nothing = Governed::default();
    let gpu = Occupancy::of_each(["gpu".parse().unwrap()], Esu::ONE);
    let none = Occupancy::default();
    let stand = Stand {
        before: 0,
        queued: 1,
        ahead: &[],
        ahead_ms: &[],
        priority: Priority::Interactive,
        estimate: &gpu,
        in_progress: &none,
        workspaces: Workspaces { idle: 1, kept: 0, busy: 0, busy_with: &[], share: 1.0 },
        ends: &[Millis(1)],
        now: Millis(2),
    };
    let waiting = why(&stand, &Allowance::governed([("gpu".parse().unwrap(), nothing)].into()));
    assert!(waiting.expected_start_ms.is_none());
    assert!(why_text(&waiting).contains("quotas for gpu total 0"));
}

#[test]
fn its_start_follows_from_how_long_those_before_it_run() {
    let (none, one) = (Occupancy::default(), x86(1.0));
    let busy = [Busy { own: true, expected_ms: Some(10_000), ran_ms: 4000 }];
    let mut stand = Stand {
        before: 1,
        queued: 2,
        ahead: &[&one],
        ahead_ms: &[Some(3000)],
        priority: Priority::Interactive,
        estimate: &one,
        in_progress: &none,
        workspaces: Workspaces { idle: 0, kept: 0, busy: 1, busy_with: &busy, share: 1.0 },
        ends: &[Millis(0)],
        now: Millis(100_000),
    };
    let waiting = why(&stand, &Allowance::Unlimited);
    assert_eq!(waiting.expected_start_ms, Some(Millis(109_000)));
    assert_eq!((waiting.expected_by, waiting.ahead_ms), (Some(StartBasis::Estimates), Some(3000)));
    // A quota of one build at a time makes the prediction less certain but does not change it.
    let limited = why(&stand, &allowance(1.0));
    assert_eq!(limited.expected_start_ms, Some(Millis(109_000)));
    stand.workspaces.idle = 2;
    let waiting = why(&stand, &Allowance::Unlimited);
    assert_eq!((waiting.expected_start_ms, waiting.expected_by), (Some(stand.now), None), "about to start");
}

#[test]
fn quotas_do_not_keep_an_emergency_waiting_and_what_is_kept_for_it_keeps_others_waiting() {
    let (one, full) = (x86(1.0), x86(8.0));
    let stand = |priority| Stand {
        before: 0,
        queued: 1,
        ahead: &[],
        ahead_ms: &[],
        priority,
        estimate: &one,
        in_progress: &full,
        workspaces: Workspaces { idle: 2, kept: 3, busy: 1, busy_with: &[], share: 1.0 },
        ends: &[],
        now: Millis(5),
    };
    let urgent = why(&stand(Priority::Emergency), &allowance(8.0));
    assert_eq!((urgent.expected_start_ms, urgent.kept_workspaces), (Some(Millis(5)), 0), "about to start");
    assert_eq!(why_text(&urgent), "it is about to start");
    let other = why(&stand(Priority::Interactive), &allowance(8.0));
    assert_eq!((other.idle_workspaces, other.kept_workspaces), (2, 2));
    let text = why_text(&other);
    assert!(text.contains("with 8 in progress; all idle workspaces, 2, are kept for emergencies"), "{text}");
}

#[test]
fn what_becomes_free_is_shared_by_weight() {
    let near = |share: f64, wanted: f64| assert!((share - wanted).abs() < 1e-9, "{share}");
    near(share_of(5, 1, &[5]), 1.0);
    near(share_of(1, 2, &[1, 3]), 0.25);
    // Only some of a hundred groups are known.
    near(share_of(2, 100, &[2, 2, 2]), 0.01);
    near(share_of(1000, 2, &[]), 1.0);
}

#[test]
fn what_ended_before_a_pause_says_nothing_of_when_it_starts() {
    const HOUR: u64 = 3_600_000;
    let now = Millis(100 * HOUR);
    let ago = |ms: u64| Millis(now.0 - ms);
    // Fifty ends on Friday, one every ten seconds.
    let friday: Vec<Millis> = (0..50).map(|at| ago(60 * HOUR + at * 10_000)).collect();
    assert_eq!(since_pause(&friday, now), []);
    let monday: Vec<Millis> = (1..=6).map(|at| ago(at * 10_000)).chain(friday).collect();
    assert_eq!(since_pause(&monday, now), &monday[..6]);
    assert_eq!(rate(since_pause(&monday, now), now), Some(0.1));
    // If each run takes an hour, a gap of an hour is not a pause; if each takes a second, neither is a
    // gap of twenty seconds.
    let slow: Vec<Millis> = (1..50).map(|at| ago(at * HOUR)).collect();
    let quick: Vec<Millis> = (20..70).map(|at| ago(at * 1000)).collect();
    assert_eq!((since_pause(&slow, now).len(), since_pause(&quick, now).len()), (49, 50));
    assert_eq!(since_pause(&[], now), []);
}
