use proptest::prelude::*;

use super::*;

fn run(expected_ms: u64, ran_ms: u64) -> Busy {
    Busy { own: true, expected_ms: Some(expected_ms), ran_ms }
}

fn farm(idle: u64, busy_with: &[Busy]) -> Workspaces<'_> {
    Workspaces { idle, kept: 0, busy: busy_with.len() as u64, busy_with, share: 1.0 }
}

fn line(ahead_ms: &[Option<u64>]) -> Line<'_> {
    Line { before: ahead_ms.len() as u64, ahead_ms, at_once: None, rate: None }
}

fn millis(line: &Line<'_>, workspaces: &Workspaces<'_>) -> u64 {
    u64::try_from(expected_wait(line, workspaces).unwrap().0.as_millis()).unwrap()
}

#[test]
fn it_waits_for_the_run_that_is_done_first() {
    let busy = [run(5000, 1000), run(9000, 8000)];
    assert_eq!(millis(&line(&[]), &farm(0, &busy)), 1000);
    // The next one occupies that workspace for three seconds, so a workspace is free after four.
    assert_eq!(millis(&line(&[Some(3000)]), &farm(0, &busy)), 4000);
    assert_eq!(millis(&line(&[Some(1000)]), &farm(0, &busy)), 2000);
}

#[test]
fn a_run_that_is_late_is_not_promised_to_end_at_once() {
    assert_eq!(millis(&line(&[]), &farm(0, &[run(5000, 4900)])), 500);
    assert_eq!(millis(&line(&[]), &farm(0, &[run(5000, 5100)])), 500);
    assert_eq!(millis(&line(&[]), &farm(0, &[run(5000, 65_000)])), 30_000);
    assert_eq!(millis(&line(&[]), &farm(0, &[run(10, 7010)])), 3500, "it does not end at once");
}

#[test]
fn what_is_not_known_counts_as_the_mean_of_what_is() {
    let busy = [run(2000, 0)];
    assert_eq!(millis(&line(&[None, Some(4000)]), &farm(0, &busy)), 2000 + 3000 + 4000);
}

#[test]
fn where_too_little_is_known_the_rate_of_ends_tells() {
    let unknown = [None, None, Some(1000)];
    let busy = [Busy { own: true, expected_ms: None, ran_ms: 0 }];
    assert_eq!(expected_wait(&line(&unknown), &farm(0, &busy)), None);
    let with_rate = Line { rate: Some((0.5, 3)), ..line(&unknown) };
    assert_eq!(
        expected_wait(&with_rate, &farm(0, &busy)),
        Some((Duration::from_secs(8), StartBasis::Rate)),
        "the fourth end from now"
    );
}

#[test]
fn without_a_workspace_nothing_starts() {
    let with_rate = Line { rate: Some((0.5, 3)), ..line(&[Some(1)]) };
    assert_eq!(expected_wait(&with_rate, &farm(0, &[])), None);
}

#[test]
fn a_group_that_shares_waits_longer_and_the_rate_counts_too() {
    let busy = [run(1000, 0), run(1000, 0)];
    let ahead = [Some(1000); 8];
    let alone = millis(&line(&ahead), &farm(0, &busy));
    let half = Workspaces { share: 0.5, ..farm(0, &busy) };
    let shared = millis(&line(&ahead), &half);
    assert!(shared >= 2 * alone - 1000 && shared <= 2 * alone + 1000, "{shared} instead of {alone}");
    let with_rate = Line { rate: Some((1.0, 50)), ..line(&ahead) };
    let (wait, basis) = expected_wait(&with_rate, &half).unwrap();
    assert_eq!(basis, StartBasis::Both);
    assert_eq!(wait, (Duration::from_millis(shared) + Duration::from_secs(9)) / 2);
    let (_, alone) = expected_wait(&with_rate, &farm(0, &busy)).unwrap();
    assert_eq!(alone, StartBasis::Estimates, "no other group waits");
}

#[test]
fn a_group_that_may_have_one_build_at_a_time_has_one_at_a_time() {
    let busy = [run(1000, 0)];
    let limited = Line { at_once: Some(1), ..line(&[Some(2000), Some(2000)]) };
    assert_eq!(millis(&limited, &farm(7, &busy)), 5000);
}

#[test]
fn a_long_queue_is_not_played_to_its_end() {
    let ahead = vec![Some(1000); 4096];
    let before = Line { before: 1_000_000, ..line(&ahead) };
    let wait = millis(&before, &farm(0, &[run(1000, 0); 10])) as f64;
    assert!((wait / 100_000_000.0 - 1.0).abs() < 0.01, "{wait}");
}

proptest! {
    #[test]
    fn whoever_is_further_back_starts_no_earlier(
        ahead in proptest::collection::vec(proptest::option::of(1_u64..100_000), 0..60),
        busy in proptest::collection::vec((any::<bool>(), 1_u64..100_000, 0_u64..100_000), 1..20),
        idle in 0_u64..4, share in 0.05_f64..=1.0, at_once in proptest::option::of(1_u64..20),
    ) {
        let busy: Vec<Busy> = busy
            .into_iter()
            .map(|(own, expected, ran_ms)| Busy { own, expected_ms: Some(expected), ran_ms })
            .collect();
        let workspaces = Workspaces { share, ..farm(idle, &busy) };
        let mean = 50_000;
        let mut last = Duration::ZERO;
        for before in 0..=ahead.len() {
            let line = Line { at_once, ..line(&ahead[..before]) };
            let wait = Simulation::new(&workspaces, mean).wait(&line);
            prop_assert!(wait >= last, "{wait:?} after {last:?}");
            last = wait;
        }
    }
}
