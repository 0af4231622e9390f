use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use model::{Job, JobLimits, TaskRequest, TaskStatus};
use proptest::prelude::*;

use super::*;

/// A run of tasks named `t0`, `t1`, …, each with the numbers of those that it depends on.
fn run(dependencies: &[Vec<usize>]) -> GraphRun {
    let request = |(at, before): (usize, &Vec<usize>)| -> TaskRequest {
        let before: Vec<String> = before.iter().map(|at| format!("t{at}")).collect();
        let task = serde_json::json!({"id": format!("t{at}"), "command": ["true"], "dependencies": before});
        serde_json::from_value(task).unwrap()
    };
    of(dependencies.iter().enumerate().map(request).collect())
}

fn of(tasks: Vec<TaskRequest>) -> GraphRun {
    GraphRun::new(Arc::new(Graph::new(&Job { tasks, ..Job::default() }, &JobLimits::NONE).unwrap()))
}

/// Starts and ends the next task, which ran for `ms`.
fn end_next(run: &mut GraphRun, times: &mut RunTimes, ms: u64, cached: bool) -> TaskIndex {
    let at = run.start_next().unwrap();
    let id = run.graph().task(at).unwrap().id.clone();
    let report = TaskReport { wall_ms: Some(ms), cached, ..TaskReport::new(id, TaskStatus::Succeeded) };
    times.add(run.graph().task(at).unwrap(), &report);
    run.ended(at, report);
    at
}

#[test]
fn nothing_is_known_before_the_first_command_has_run() {
    let mut run = run(&[vec![], vec![0], vec![1], vec![]]);
    let mut times = RunTimes::default();
    assert_eq!(run.critical_path_ms(times, |_| 0), None);
    end_next(&mut run, &mut times, 900, true);
    assert_eq!(run.critical_path_ms(times, |_| 0), None, "a cached result says nothing");
    let at = end_next(&mut run, &mut times, 100, false);
    assert_eq!(at.get(), 1);
    assert_eq!(run.critical_path_ms(times, |_| 0), Some(100));
    end_next(&mut run, &mut times, 300, false);
    let last = run.start_next().unwrap();
    assert_eq!(run.critical_path_ms(times, |_| 0), Some(200), "the mean of 100 and 300");
    assert_eq!(run.critical_path_ms(times, |at| if at == last { 150 } else { 0 }), Some(50));
    assert_eq!(run.critical_path_ms(times, |_| 5000), Some(0), "it takes longer than expected");
}

#[test]
fn internal_steps_count_by_their_own_times() {
    let task = |json: serde_json::Value| -> TaskRequest { serde_json::from_value(json).unwrap() };
    let mut run = of(vec![
        task(serde_json::json!({"id": "command", "command": ["true"]})),
        task(serde_json::json!({"id": "a", "make_folder": "a"})),
        task(serde_json::json!({"id": "b", "make_folder": "b", "dependencies": ["a", "command"]})),
    ]);
    let mut times = RunTimes::default();
    end_next(&mut run, &mut times, 100, false);
    assert_eq!(run.critical_path_ms(times, |_| 0), Some(0));
    end_next(&mut run, &mut times, 7, false);
    assert_eq!(run.critical_path_ms(times, |_| 0), Some(7));
}

#[test]
fn of_fifty_thousand_tasks_it_is_known_within_a_second() {
    let before = |at: usize| [1, 7, 100].iter().filter_map(|back| at.checked_sub(*back)).collect();
    let mut run = run(&(0..50_000).map(before).collect::<Vec<_>>());
    let mut times = RunTimes::default();
    end_next(&mut run, &mut times, 3, false);
    let begun = Instant::now();
    assert_eq!(run.critical_path_ms(times, |_| 0), Some(3 * 49_999));
    let took = begun.elapsed();
    println!("{took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// Numbers of earlier tasks that each task depends on, and a length for each task.
fn drawn() -> impl Strategy<Value = (Vec<Vec<usize>>, Vec<u64>)> {
    let one = (prop::collection::vec(any::<prop::sample::Index>(), 0..4), 0_u64..100);
    prop::collection::vec(one, 1..25).prop_map(|ones| {
        let before = |at: usize, all: Vec<prop::sample::Index>| {
            all.iter().filter(|_| at > 0).map(|index| index.index(at.max(1))).collect()
        };
        let (all, lengths): (Vec<_>, Vec<_>) = ones.into_iter().unzip();
        (all.into_iter().enumerate().map(|(at, all)| before(at, all)).collect(), lengths)
    })
}

/// The longest chain that begins with a task, by trying each.
fn by_hand(run: &GraphRun, at: TaskIndex, lengths: &[u64]) -> u64 {
    let behind = run.graph().task(at).unwrap().dependants.iter();
    lengths[at.get()] + behind.map(|next| by_hand(run, *next, lengths)).max().unwrap_or_default()
}

proptest! {
    #[test]
    fn it_is_the_longest_of_all_chains_and_shrinks_to_nothing((dependencies, lengths) in drawn()) {
        let mut run = run(&dependencies);
        let of = |run: &GraphRun| {
            longest_chain(run.graph(), |at| run.report(at).is_some(), |at, _| lengths[at.get()])
        };
        let mut before = u64::MAX;
        loop {
            let left: Vec<TaskIndex> = run.left().map(|(at, _)| at).collect();
            let longest = left.iter().map(|at| by_hand(&run, *at, &lengths)).max().unwrap_or_default();
            prop_assert_eq!(of(&run), longest);
            prop_assert!(longest <= before);
            before = longest;
            let Some(at) = run.start_next() else { break };
            let id = run.graph().task(at).unwrap().id.clone();
            run.ended(at, TaskReport::new(id, TaskStatus::Succeeded));
        }
        prop_assert_eq!(before, 0);
    }
}
