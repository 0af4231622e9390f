use super::*;

fn scenario(seed: u64, bias: f64) -> QuotaScenario {
    let estimator = Estimator::Model { bias, noise: 0.15 };
    QuotaScenario { seed, estimator, ..QuotaScenario::default() }
}

/// One phase in which each of `quotas` is hungry.
fn hungry(quotas: &[f64], builds: BuildMix) -> QuotaScenario {
    let group = |(at, quota)| QuotaGroup { name: format!("g{at}").parse().unwrap(), quota_esu: quota };
    QuotaScenario {
        groups: quotas.iter().copied().enumerate().map(group).collect(),
        phases: vec![QuotaPhase { seconds: 900, loads: vec![Load::Hungry; quotas.len()] }],
        builds,
        estimator: Estimator::Model { bias: 1.0, noise: 0.0 },
        ..QuotaScenario::default()
    }
}

#[test]
fn groups_reach_their_set_points_whatever_the_bias() {
    for bias in [0.8, 1.0, 1.25] {
        for seed in 1..=10 {
            let metrics = run(&scenario(seed, bias)).unwrap().metrics;
            let of = format!("bias {bias}, seed {seed}: {metrics:?}");
            assert!(metrics.overshoot_max <= 0.1, "{of}");
            assert!(metrics.steady_error_max < 0.01, "{of}");
            assert!(metrics.settling_seconds_max.is_some_and(|seconds| seconds <= 300), "{of}");
            assert!(metrics.give_back_seconds_max.is_some_and(|seconds| seconds <= 180), "{of}");
        }
    }
}

#[test]
fn what_an_idle_group_leaves_is_used_and_given_back() {
    let run = run(&scenario(1, 1.0)).unwrap();
    let phase = |phase: usize, group: usize| {
        let name = &run.scenario.groups[group].name;
        run.metrics.phases.iter().find(|at| at.phase == phase && at.group == *name).unwrap()
    };
    assert!(phase(1, 1).pv > 550.0 && phase(1, 2).pv > 370.0, "two groups share nine tenths of 500");
    assert!(phase(3, 0).pv > 930.0, "one group has nearly all of the farm");
    let back = phase(2, 0);
    assert!(back.was_lent && back.give_back_seconds.is_some());
    for borrower in [phase(2, 1), phase(2, 2)] {
        assert!(borrower.borrowed_drained_within(300), "{borrower:?}");
    }
    let still_running = run.metrics.started - run.metrics.finished;
    assert!(still_running > 0 && run.metrics.finished > 5000, "{:?}", run.metrics);
}

impl GroupPhase {
    fn borrowed_drained_within(&self, seconds: u32) -> bool {
        self.drain_seconds.is_some_and(|took| took <= seconds)
    }
}

#[test]
fn one_esu_for_every_build_schedules_far_too_many() {
    let builds = BuildMix { mean_esu: 10.0, esu_spread: 0.9, ..BuildMix::default() };
    let modelled = run(&QuotaScenario { builds, ..scenario(1, 1.0) }).unwrap().metrics;
    let one = QuotaScenario { builds, estimator: Estimator::OneEsu, ..scenario(1, 1.0) };
    let one = run(&one).unwrap().metrics;
    assert!(one.overshoot_max > 1.0 && one.total_max > 2.0, "{one:?}");
    assert!(
        one.overshoot_max > 4.0 * modelled.overshoot_max,
        "{} {}",
        one.overshoot_max,
        modelled.overshoot_max
    );
}

#[test]
fn short_builds_fill_their_quotas() {
    let builds = BuildMix { mean_seconds: 0.1, mean_esu: 1.0, esu_spread: 0.0, ramp_seconds: 0.0 };
    let run = run(&hungry(&[1.0, 2.0, 8.0, 50.0], builds)).unwrap();
    for phase in &run.metrics.phases {
        assert!((phase.pv - phase.sp).abs() <= 0.05 * phase.sp, "{phase:?}");
    }
}

#[test]
fn small_quotas_are_neither_idle_nor_exceeded() {
    let builds = BuildMix { mean_esu: 1.0, esu_spread: 0.0, ..BuildMix::default() };
    let small = run(&hungry(&[1.0, 2.0, 5.0, 10.0], builds)).unwrap();
    for series in &small.groups {
        let mean = series.in_progress.iter().skip(60).sum::<f64>() / 840.0;
        assert!(mean >= 0.9 * series.quota, "{series:?}");
        assert!(series.in_progress.iter().all(|esu| *esu <= 1.2 * series.quota + 1e-6), "{series:?}");
    }
    let builds = BuildMix { mean_esu: 4.0, esu_spread: 0.0, ..BuildMix::default() };
    let too_big = run(&hungry(&[1.0], builds)).unwrap();
    let one_at_a_time = |esu: &f64| (*esu - 1.75).abs() < 1e-9;
    assert!(
        too_big.groups[0].in_progress.iter().skip(1).all(one_at_a_time),
        "counts as quota and three quarters of all quotas"
    );
}

#[test]
fn quotas_beyond_the_capacity_are_scaled_down() {
    let scenario = QuotaScenario { capacity_esu: Some(500.0), ..scenario(1, 1.0) };
    let run = run(&scenario).unwrap();
    for second in 0..run.groups[0].sp.len() {
        let sum: f64 = run.groups.iter().map(|series| series.sp[second] - series.borrowed[second]).sum();
        assert!(sum <= 500.01, "{sum}");
    }
    assert!(run.metrics.phases.iter().take(3).all(|phase| phase.overshoot < Some(0.15)), "{:?}", run.metrics);
}

#[test]
fn equal_scenarios_give_equal_bytes() {
    let bytes = |seed| serde_json::to_vec(&run(&scenario(seed, 1.0)).unwrap()).unwrap();
    assert!(bytes(7) == bytes(7));
    assert!(bytes(7) != bytes(8));
    let run: QuotaRun = serde_json::from_slice(&bytes(7)).unwrap();
    assert_eq!(run.groups[0].pv.len(), 3600);
}

#[test]
fn scenarios_are_checked() {
    let partial: QuotaScenario = serde_json::from_str(r#"{"seed":3,"governor":{"kp":0.5}}"#).unwrap();
    assert!((partial.governor.kp - 0.5).abs() < 1e-12 && partial.seed == 3 && partial.groups.len() == 3);
    assert!(serde_json::from_str::<QuotaScenario>(r#"{"seeds":3}"#).is_err());
    let mut bad = QuotaScenario::default();
    bad.phases[1].loads.pop();
    assert_eq!(run(&bad), Err(InvalidScenario::Loads { phase: 1, loads: 2, groups: 3 }));
    let bad = QuotaScenario { capacity_esu: Some(f64::NAN), ..QuotaScenario::default() };
    assert!(matches!(run(&bad), Err(InvalidScenario::OutOfRange { name: "capacity_esu", .. })));
    let mut bad = QuotaScenario::default();
    bad.governor.kp = -1.0;
    assert!(matches!(run(&bad), Err(InvalidScenario::Governor(_))));
}

#[test]
fn a_moderate_load_is_served_as_it_comes() {
    let mut scenario = scenario(2, 1.0);
    scenario.phases =
        vec![QuotaPhase { seconds: 1800, loads: vec![Load::Share(0.5), Load::Hungry, Load::Idle] }];
    let run = run(&scenario).unwrap();
    let [busy, hungry, idle] = &run.metrics.phases[..] else { panic!("three groups") };
    assert!((busy.pv - 230.0).abs() < 40.0, "{busy:?}");
    assert!(hungry.pv > 600.0, "{hungry:?}");
    assert!(idle.pv <= 0.0 && idle.overshoot.is_none(), "{idle:?}");
}

/// Checks that elements are closed in order, attributes are quoted, and special characters are escaped.
fn is_well_formed(xml: &str) -> bool {
    let mut open = Vec::new();
    let mut rest = xml.trim();
    while let Some(at) = rest.find('<') {
        if rest[..at].contains(['>', '&']) {
            return false;
        }
        let Some(end) = rest.find('>') else { return false };
        let tag = &rest[at + 1..end];
        if !tag.matches('"').count().is_multiple_of(2) || tag.contains(['<', '&']) {
            return false;
        }
        let name = tag.trim_matches('/').split(' ').next().unwrap_or_default();
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        rest = &rest[end + 1..];
    }
    open.is_empty() && rest.is_empty()
}

#[test]
fn the_picture_is_well_formed() {
    assert!(!is_well_formed("<a><b></a></b>"));
    let run = run(&scenario(1, 1.0)).unwrap();
    let svg = plot_quota(&run);
    assert!(is_well_formed(&svg));
    for colour in ["#0072B2", "#D55E00", "#009E73"] {
        assert_eq!(svg.matches(&format!("stroke=\"{colour}\"")).count(), 3, "a line for each group");
    }
    for series in &run.groups {
        assert!(svg.contains(&format!("{}, quota {} ESU", series.group, series.quota)));
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}
