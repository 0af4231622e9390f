use proptest::prelude::*;

use super::{entry::RUNS, *};

const MB: u64 = 1_000_000;

fn keys(history: &[u64]) -> ActionKeys {
    ActionKeys { history: history.iter().copied().map(ActionKey).collect(), affinity: Vec::new() }
}

/// A run of one second at `cpu_millis`.
fn used(cpu_millis: u64, memory_bytes: u64) -> Measured {
    Measured { wall_ms: 1000, cpu_ms: cpu_millis, memory_bytes, ..Measured::default() }
}

fn took(wall_ms: u64) -> Measured {
    Measured { wall_ms, cpu_ms: wall_ms, memory_bytes: MB, ..Measured::default() }
}

/// A history in which one key had `runs`.
fn of(runs: &[Measured]) -> History {
    let mut history = History::default();
    for run in runs {
        history.learn(&keys(&[1]), run);
    }
    history
}

fn size(history: &History) -> Learned {
    history.size(&keys(&[1])).unwrap()
}

#[test]
fn one_run_tells_what_the_next_needs() {
    let learned = size(&of(&[used(1500, 100 * MB)]));
    assert_eq!(learned.cpu_millis, Some(1500));
    assert_eq!(learned.memory_bytes, Some(175 * MB), "with a margin that shrinks");
    assert!(!learned.at_least);
    assert_eq!(size(&of(&[used(1500, 100 * MB); 32])).memory_bytes, Some(116 * MB));
    assert_eq!(History::default().size(&keys(&[1, 2, 3])), None);
}

#[test]
fn what_differs_from_run_to_run_is_given_more() {
    let of_peaks = |peaks: [u64; 4]| {
        let runs: Vec<Measured> = peaks.iter().cycle().take(32).map(|peak| used(1000, peak * MB)).collect();
        size(&of(&runs)).memory_bytes
    };
    assert_eq!(of_peaks([100; 4]), Some(116 * MB));
    assert_eq!(
        of_peaks([60, 60, 90, 100]),
        Some(140 * MB),
        "as much above the largest as that is above the usual"
    );
    assert_eq!(of_peaks([0, 0, 0, 100]), Some(116 * MB), "runs of which it is not known do not count");
}

#[test]
fn a_coarser_key_needs_more_runs_and_gives_more_memory() {
    let mut history = History::default();
    let (mut known, asked) = (keys(&[0, 10, 20]), keys(&[99, 10, 20]));
    let mut sizes = Vec::new();
    for run in 1..=8 {
        known.history[0] = ActionKey(100 + run);
        history.learn(&known, &used(1000, 100 * MB));
        sizes.push(history.size(&asked));
    }
    assert_eq!(sizes.iter().position(Option::is_some), Some(2), "the target: three runs");
    let of_target = sizes[7].unwrap();
    let of_kind = history.size(&keys(&[99, 98, 20])).unwrap();
    let of_command = history.size(&known).unwrap();
    assert!(of_kind.memory_bytes > of_target.memory_bytes);
    assert_eq!((of_kind.at_least, of_target.at_least, of_command.at_least), (true, false, false));
    let mut seven = History::default();
    (0..7).for_each(|run| seven.learn(&keys(&[run, 10 + run, 20]), &used(1000, MB)));
    assert_eq!(seven.size(&keys(&[99, 98, 20])), None, "the kind: eight runs");
}

#[test]
fn the_second_of_two_keys_is_the_kind() {
    let mut history = History::default();
    for run in 0..8 {
        history.learn(&keys(&[run, 20]), &used(1000, MB));
    }
    assert!(history.size(&keys(&[99, 20])).unwrap().at_least);
}

#[test]
fn what_ran_out_of_memory_is_given_more_until_a_success_tells_how_much_it_needs() {
    let mut history = of(&[used(1000, 100 * MB); 5]);
    history.learn_out_of_memory(&keys(&[1]), 120 * MB);
    assert_eq!(size(&history).memory_bytes, Some(240 * MB));
    assert_eq!(size(&history).cpu_millis, Some(1000));
    history.learn(&keys(&[1]), &used(1000, 100 * MB));
    assert_eq!(size(&history).memory_bytes, Some(240 * MB), "that was another");
    history.learn(&keys(&[1]), &used(1000, 150 * MB));
    assert_eq!(size(&history).memory_bytes, Some(200 * MB));
}

#[test]
fn what_ran_out_of_memory_and_was_never_seen_to_succeed_is_a_lower_bound() {
    let mut history = History::default();
    history.learn_out_of_memory(&keys(&[1, 10, 20]), 400 * MB);
    let learned = size(&history);
    assert_eq!((learned.memory_bytes, learned.cpu_millis, learned.at_least), (Some(800 * MB), None, true));
    assert_eq!(history.size(&keys(&[9, 10, 20])).unwrap().memory_bytes, Some(800 * MB), "one of its target");
    assert_eq!(history.size(&keys(&[9, 11, 20])).unwrap().memory_bytes, Some(800 * MB), "and of its kind");
    (0..8).for_each(|run| history.learn(&keys(&[30 + run, 40 + run, 20]), &used(500, 10 * MB)));
    let of_kind = history.size(&keys(&[9, 11, 20])).unwrap();
    assert!(of_kind.memory_bytes < Some(20 * MB), "of which enough is known now: {of_kind:?}");
    assert_eq!(history.size(&keys(&[9, 10, 20])).unwrap().memory_bytes, Some(800 * MB));
}

#[test]
fn freaks_pass() {
    let mut runs = vec![used(900, 100 * MB); 20];
    runs.push(used(64_000, 9000 * MB));
    let mut history = of(&runs);
    assert_eq!(size(&history).cpu_millis, Some(900), "one does not change what a processor share is");
    assert!(size(&history).memory_bytes > Some(9000 * MB), "memory that was once used may be used again");
    for _ in 0..RUNS {
        history.learn(&keys(&[1]), &used(900, 100 * MB));
    }
    assert_eq!(size(&history).memory_bytes, Some(116 * MB), "but not indefinitely");
}

#[test]
fn short_runs_do_not_look_like_many_processors() {
    let short = Measured { wall_ms: 1, cpu_ms: 10, memory_bytes: MB, ..Measured::default() };
    assert_eq!(size(&of(&[short])).cpu_millis, Some(1000));
    assert_eq!(size(&of(&[Measured { wall_ms: 0, ..short }])).cpu_millis, Some(1000));
}

#[test]
fn how_long_it_takes_is_the_median_and_slow_is_what_is_beyond_most() {
    let runs: Vec<Measured> = (1..=20).map(|run| took(run * 100)).collect();
    let history = of(&runs);
    assert_eq!(history.wall(&keys(&[1])), Some(Duration::from_secs(1)));
    assert_eq!(history.slow_after(&keys(&[1])), Some(Duration::from_millis(1900)));
    let few = of(&runs[..9]);
    assert_eq!((few.slow_after(&keys(&[1])), few.wall(&keys(&[1])).is_some()), (None, true));
    assert!(of(&runs[..10]).slow_after(&keys(&[1])).is_some());
}

#[test]
fn what_is_slow_is_told_by_the_kind_only_when_much_is_known_of_it() {
    let mut history = History::default();
    let asked = keys(&[999, 998, 500]);
    for run in 1..=20 {
        assert_eq!(history.slow_after(&asked), None);
        history.learn(&keys(&[run, 100 + run, 500]), &took(run * 100));
    }
    assert_eq!(history.slow_after(&asked), Some(Duration::from_millis(1900)));
}

#[test]
fn what_nothing_was_learned_of_for_longest_is_forgotten() {
    let mut history = History::new(2);
    for key in [1, 2, 1, 3] {
        history.learn(&keys(&[key]), &took(10));
    }
    let known = [1, 2, 3].map(|key| history.size(&keys(&[key])).is_some());
    assert_eq!((known, history.len()), ([true, false, true], 2));
}

fn any_run() -> impl Strategy<Value = Measured> {
    let memory = prop_oneof![9 => 1_u64..1 << 45, 1 => Just(0)];
    (0_u64..1 << 40, 0_u64..1 << 40, memory).prop_map(|(wall_ms, cpu_ms, memory_bytes)| Measured {
        wall_ms,
        cpu_ms,
        memory_bytes,
        ..Measured::default()
    })
}

/// A lesson for a history, with the keys that it is about.
#[derive(Debug, Clone)]
enum Lesson {
    Ran(Measured),
    RanOut(u64),
}

fn any_lessons() -> impl Strategy<Value = Vec<(ActionKeys, Lesson)>> {
    let keys = (0_u64..12, 20_u64..24, 30_u64..32, 0_usize..4)
        .prop_map(|(command, target, kind, known)| keys(&[command, target, kind][..known]));
    let lesson =
        prop_oneof![8 => any_run().prop_map(Lesson::Ran), 1 => (1_u64..1 << 45).prop_map(Lesson::RanOut)];
    prop::collection::vec((keys, lesson), 0..200)
}

fn teach(history: &mut History, lessons: &[(ActionKeys, Lesson)]) {
    for (keys, lesson) in lessons {
        match lesson {
            Lesson::Ran(run) => history.learn(keys, run),
            Lesson::RanOut(had) => history.learn_out_of_memory(keys, *had),
        }
    }
}

proptest! {
    #[test]
    fn as_much_is_known_as_was_agreed(lessons in any_lessons(), most in 1_usize..20) {
        let mut history = History::new(most);
        teach(&mut history, &lessons);
        prop_assert!(history.len() <= most);
    }

    #[test]
    fn memory_is_never_below_the_largest_of_the_last_runs(runs in prop::collection::vec(any_run(), 1..80)) {
        let peak = runs.iter().rev().take(RUNS).map(|run| run.memory_bytes).max().unwrap();
        let memory = size_or_nothing(&of(&runs)).memory_bytes;
        prop_assert!(memory.unwrap_or_default() >= peak);
        prop_assert!(memory.unwrap_or_default() <= 2 * peak);
    }

    #[test]
    fn one_freak_moves_a_share_of_processors_at_most_to_another_that_was_seen(
        runs in prop::collection::vec(any_run(), 2..RUNS),
        freak in any_run(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut with = runs.clone();
        with.insert(at.index(runs.len() + 1), freak);
        let largest = runs.iter().map(|run| u64::from(Sample::of(run).cpu_millis)).max();
        prop_assert!(size_or_nothing(&of(&with)).cpu_millis <= largest);
    }

    #[test]
    fn more_use_of_all_runs_never_makes_less(
        runs in prop::collection::vec(any_run(), 1..40),
        more in 1_u64..1 << 30,
    ) {
        let grown: Vec<Measured> = runs
            .iter()
            .map(|run| Measured { cpu_ms: run.cpu_ms + more, memory_bytes: run.memory_bytes + more, ..*run })
            .collect();
        let (less, more) = (size_or_nothing(&of(&runs)), size_or_nothing(&of(&grown)));
        prop_assert!(more.cpu_millis >= less.cpu_millis && more.memory_bytes >= less.memory_bytes);
    }

    #[test]
    fn running_out_of_memory_always_gives_more(
        runs in prop::collection::vec(any_run(), 0..40),
        had in 1_u64..1 << 50,
    ) {
        let mut history = of(&runs);
        let before = size_or_nothing(&history).memory_bytes;
        history.learn_out_of_memory(&keys(&[1]), had);
        let after = size(&history).memory_bytes;
        prop_assert!(after > Some(had) && after >= before);
    }

    #[test]
    fn slow_is_never_faster_than_usual(runs in prop::collection::vec(any_run(), 10..80)) {
        let history = of(&runs);
        prop_assert!(history.slow_after(&keys(&[1])) >= history.wall(&keys(&[1])));
        let walls = runs.iter().rev().take(RUNS).map(|run| run.wall_ms.min(u32::MAX.into()));
        let usual = history.wall(&keys(&[1])).unwrap().as_millis();
        prop_assert!(walls.clone().any(|wall| u128::from(wall) == usual));
    }
}

fn size_or_nothing(history: &History) -> Learned {
    history.size(&keys(&[1])).unwrap_or_default()
}

#[test]
fn an_unknown_action_is_expected_to_run_as_long_as_recent_ones() {
    assert_eq!(History::default().expected_wall(&keys(&[9])), Duration::from_secs(1));
    let mut history = of(&[took(50); 3]);
    assert_eq!(history.expected_wall(&keys(&[9])), Duration::from_millis(50));
    for _ in 0..200 {
        history.learn(&keys(&[2]), &took(4000));
    }
    let usual = history.expected_wall(&keys(&[9])).as_secs_f64();
    assert!((3.9..=4.0).contains(&usual), "{usual}");
    assert_eq!(history.expected_wall(&keys(&[1])), Duration::from_millis(50), "its own runs count first");
}
