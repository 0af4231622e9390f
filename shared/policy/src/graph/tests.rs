use std::collections::BTreeMap;

use model::{Job, JobLimits, TaskId, TaskRequest};
use proptest::prelude::*;

use super::*;

fn task(id: &str, dependencies: &[&str]) -> TaskRequest {
    let list =
        |dependencies: &[&str]| dependencies.iter().map(|id| format!("{id:?}")).collect::<Vec<_>>().join(",");
    let text = format!(r#"{{"id": {id:?}, "command": ["true"], "dependencies": [{}]}}"#, list(dependencies));
    serde_json::from_str(&text).unwrap()
}

fn run(tasks: Vec<TaskRequest>) -> GraphRun {
    let job = Job { tasks, ..Job::default() };
    GraphRun::new(Arc::new(Graph::new(&job, &JobLimits::NONE).unwrap()))
}

fn name(run: &GraphRun, at: TaskIndex) -> String {
    run.graph().task(at).unwrap().id.to_string()
}

fn report(run: &GraphRun, at: TaskIndex, status: TaskStatus) -> TaskReport {
    TaskReport::new(run.graph().task(at).unwrap().id.clone(), status)
}

fn end(run: &mut GraphRun, at: TaskIndex, status: TaskStatus) -> AfterTask {
    let report = report(run, at, status);
    run.ended(at, report)
}

fn names(run: &GraphRun, tasks: &[TaskIndex]) -> Vec<String> {
    tasks.iter().map(|at| name(run, *at)).collect()
}

#[test]
fn priority_comes_first_then_the_order_of_the_job() {
    let mut tasks =
        vec![task("a", &[]), task("b", &[]), task("late", &[]), task("c", &["b"]), task("d", &["b"])];
    tasks[1].priority = Some(5);
    tasks[2].priority = Some(-1);
    tasks[4].priority = Some(9);
    let mut run = run(tasks);
    let b = run.start_next().unwrap();
    assert_eq!(name(&run, b), "b");
    assert_eq!(end(&mut run, b, TaskStatus::Succeeded), AfterTask::Ended(Consequences::default()));
    let rest: Vec<TaskIndex> = std::iter::from_fn(|| run.start_next()).collect();
    assert_eq!(names(&run, &rest), ["d", "a", "c", "late"]);
    assert_eq!(run.running(), 4);
}

#[test]
fn a_failure_skips_what_depends_on_it_and_nothing_else() {
    let tasks = vec![
        task("a", &[]),
        task("b", &[]),
        task("ab", &["a", "b"]),
        task("end", &["ab"]),
        task("only-b", &["b"]),
    ];
    let mut run = run(tasks);
    let (a, b) = (run.start_next().unwrap(), run.start_next().unwrap());
    let AfterTask::Ended(after) = end(&mut run, a, TaskStatus::Failed) else { panic!("retried") };
    assert_eq!(names(&run, &after.skipped), ["ab", "end"]);
    assert!(after.cancelled.is_empty());
    let skipped = run.report(after.skipped[1]).unwrap();
    assert_eq!(
        skipped.because_of.as_ref().map(TaskId::as_str),
        Some("a"),
        "the one that failed, not the one between"
    );
    end(&mut run, b, TaskStatus::Succeeded);
    let only = run.start_next().unwrap();
    assert_eq!(name(&run, only), "only-b");
    end(&mut run, only, TaskStatus::Succeeded);
    assert!(run.is_over());
    let result = run.result();
    assert_eq!((result.tasks, result.succeeded, result.failed, result.skipped), (5, 2, 1, 2));
    assert_eq!(result.failures.iter().map(|report| report.id.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(result.skipped_tasks.iter().map(TaskId::as_str).collect::<Vec<_>>(), ["ab", "end"]);
}

#[test]
fn only_failures_of_the_farm_are_tried_again_and_each_later_than_the_one_before() {
    let mut tasks = vec![task("a", &[]), task("b", &["a"])];
    tasks[0].retries = Some(2);
    let mut farm = run(tasks.clone());
    let a = farm.start_next().unwrap();
    let AfterTask::Again { wait: first, tries: 2 } = end(&mut farm, a, TaskStatus::FarmFailed) else {
        panic!()
    };
    assert_eq!(farm.start_next(), None, "it is still running");
    let AfterTask::Again { wait: second, tries: 3 } = end(&mut farm, a, TaskStatus::FarmFailed) else {
        panic!()
    };
    assert_eq!(second, first * 2);
    let AfterTask::Ended(after) = end(&mut farm, a, TaskStatus::FarmFailed) else { panic!("a third retry") };
    assert_eq!(names(&farm, &after.skipped), ["b"]);
    for own in [TaskStatus::Failed, TaskStatus::OverLimit] {
        let mut own_fault = run(tasks.clone());
        let a = own_fault.start_next().unwrap();
        assert!(matches!(end(&mut own_fault, a, own), AfterTask::Ended(_)), "{own:?}");
    }
    assert_eq!(wait(u32::MAX), LONGEST_WAIT);
}

#[test]
fn a_fatal_failure_stops_everything() {
    let mut tasks = vec![task("a", &[]), task("b", &[]), task("c", &[]), task("after-b", &["b"])];
    tasks[0].fatal = true;
    let mut run = run(tasks);
    let (a, b) = (run.start_next().unwrap(), run.start_next().unwrap());
    let AfterTask::Ended(after) = end(&mut run, a, TaskStatus::Failed) else { panic!("retried") };
    assert_eq!(
        (names(&run, &after.skipped), names(&run, &after.cancelled)),
        (vec!["c".to_owned(), "after-b".to_owned()], vec!["b".to_owned()])
    );
    assert!(run.is_over() && run.is_stopped());
    assert_eq!((run.start_next(), run.running()), (None, 0));
    assert_eq!(end(&mut run, b, TaskStatus::Succeeded), AfterTask::Nothing, "it was cancelled");
    assert_eq!(run.result().skipped, 3);
}

#[test]
fn giving_up_ends_what_has_not_ended() {
    let mut run = run(vec![task("a", &[]), task("b", &["a"])]);
    let a = run.start_next().unwrap();
    let after = run.give_up("the build was cancelled");
    assert_eq!((after.cancelled.as_slice(), after.skipped.len()), ([a].as_slice(), 1));
    assert_eq!(run.report(a).unwrap().reason.as_deref(), Some("the build was cancelled"));
    assert!(run.is_over());
    assert_eq!(run.give_up("again"), Consequences::default());
}

/// A task with these dependencies, as JSON.
fn conditional(id: &str, dependencies: &str) -> TaskRequest {
    serde_json::from_str(&format!(r#"{{"id": {id:?}, "command": ["true"], "dependencies": {dependencies}}}"#))
        .unwrap()
}

/// Ends the next tasks with these results; returns the tasks that each end made superfluous.
fn play_named(run: &mut GraphRun, results: &[(&str, TaskStatus)]) -> Vec<Vec<String>> {
    let each = results.iter().map(|(id, status)| {
        let at = run.start_next().unwrap();
        assert_eq!(name(run, at), *id);
        let AfterTask::Ended(after) = end(run, at, *status) else { panic!("{id} is retried") };
        names(run, &after.skipped)
    });
    each.collect()
}

#[test]
fn a_task_after_a_failure_runs_only_then_and_a_build_without_failures_has_none() {
    let tasks = || {
        let judge = |weight, task| TaskRequest { judge: true, weight: Some(weight), ..task };
        vec![
            judge(1, task("strict", &[])),
            judge(3, conditional("lenient", r#"[{"failed": "strict"}]"#)),
            task("behind", &["lenient"]),
            conditional("either", r#"[{"any": ["strict", "lenient"]}]"#),
        ]
    };
    let mut good = run(tasks());
    let skipped =
        play_named(&mut good, &[("strict", TaskStatus::Succeeded), ("either", TaskStatus::Succeeded)]);
    assert_eq!(skipped, [vec!["lenient", "behind"], vec![]]);
    let why = |run: &GraphRun, at: usize| {
        let report = run.reports().nth(at).unwrap().clone();
        (report.reason, report.because_of.map(|task| task.to_string()))
    };
    let text = "it runs only if task strict fails, which succeeded";
    assert_eq!(why(&good, 1), (Some(text.to_owned()), None));
    assert_eq!(why(&good, 2), (Some("task lenient was skipped".to_owned()), None));
    let result = good.result();
    assert_eq!((result.failed, result.skipped, result.score), (0, 2, Some(0.0)), "strict printed no score");
    let mut bad = run(tasks());
    let results = [("strict", TaskStatus::OverLimit), ("lenient", TaskStatus::Failed)];
    assert_eq!(play_named(&mut bad, &results), [vec![], vec!["behind", "either"]]);
    assert_eq!(why(&bad, 2), (None, Some("lenient".to_owned())));
    let none = "none of the tasks strict, lenient succeeded";
    assert_eq!(why(&bad, 3), (Some(none.to_owned()), Some("strict".to_owned())));
    assert!(bad.is_over());
}

#[test]
fn of_several_tasks_one_is_enough_but_all_are_waited_for() {
    let tasks = vec![task("a", &[]), task("b", &[]), conditional("c", r#"[{"any": ["a", "b"]}]"#)];
    let mut any = run(tasks);
    let (a, b) = (any.start_next().unwrap(), any.start_next().unwrap());
    assert_eq!(end(&mut any, b, TaskStatus::Succeeded), AfterTask::Ended(Consequences::default()));
    assert_eq!(any.start_next(), None, "the files of a could still come");
    assert_eq!(end(&mut any, a, TaskStatus::Failed), AfterTask::Ended(Consequences::default()));
    assert_eq!(any.start_next().map(|at| name(&any, at)).as_deref(), Some("c"));
}

#[test]
fn a_judge_that_was_not_needed_does_not_count_and_one_behind_a_failure_does() {
    let judge = |task| TaskRequest { judge: true, ..task };
    let tasks = |build: TaskStatus| {
        let mut run = run(vec![
            task("build", &[]),
            judge(task("test", &["build"])),
            judge(conditional("fallback", r#"[{"failed": "test"}]"#)),
        ]);
        let at = run.start_next().unwrap();
        end(&mut run, at, build);
        run
    };
    let mut good = tasks(TaskStatus::Succeeded);
    let at = good.start_next().unwrap();
    let report = TaskReport { score: Some(0.5), ..report(&good, at, TaskStatus::Succeeded) };
    good.ended(at, report);
    assert_eq!((good.is_over(), good.result().score), (true, Some(0.5)));
    let bad = tasks(TaskStatus::Failed);
    assert_eq!((bad.is_over(), bad.result().skipped, bad.result().score), (true, 2, Some(0.0)));
    let fallback = bad.reports().nth(2).unwrap();
    assert_eq!(fallback.because_of.as_ref().map(TaskId::as_str), Some("build"));
}

#[test]
fn the_score_is_the_weighted_mean_and_a_judge_that_gave_nothing_counts_as_zero() {
    let judge = |id: &str, weight| TaskRequest { judge: true, weight, ..task(id, &[]) };
    let mut run = run(vec![judge("a", Some(3)), judge("b", None), judge("c", Some(4)), task("d", &[])]);
    let mut give = |score: Option<f64>, status| {
        let at = run.start_next().unwrap();
        let report = TaskReport { score, ..report(&run, at, status) };
        run.ended(at, report);
        run.result().score.unwrap()
    };
    assert!((give(Some(1.0), TaskStatus::Succeeded) - 3.0 / 8.0).abs() < 1e-9);
    assert!((give(Some(0.5), TaskStatus::Succeeded) - 3.5 / 8.0).abs() < 1e-9);
    assert!((give(None, TaskStatus::Failed) - 3.5 / 8.0).abs() < 1e-9);
    let no_judge = super::tests::run(vec![task("a", &[])]);
    assert_eq!(no_judge.result().score, None);
}

#[test]
fn a_result_names_the_first_failures_only() {
    let ids: Vec<String> = (0..50).map(|at| format!("t{at}")).collect();
    let skipped: Vec<String> = (0..150).map(|at| format!("s{at}")).collect();
    let tasks = ids.iter().map(|id| task(id, &[]));
    let mut run = run(tasks.chain(skipped.iter().map(|id| task(id, &["t0"]))).collect());
    while let Some(at) = run.start_next() {
        end(&mut run, at, TaskStatus::Failed);
    }
    let result = run.result();
    assert_eq!((result.failed, result.skipped), (50, 150));
    assert_eq!((result.failures.len(), result.skipped_tasks.len()), (FAILURES_MAX, SKIPPED_MAX));
    assert_eq!(result.failures[19].id.as_str(), "t19");
    assert_eq!(run.reports().count(), 200);
}

#[test]
fn fifty_thousand_tasks_are_no_trouble() {
    let ids: Vec<String> = (0..50_000).map(|at| format!("t{at}")).collect();
    let tasks: Vec<TaskRequest> = (0..ids.len())
        .map(|at| {
            let before: Vec<&str> = [1, 7, 100]
                .iter()
                .filter_map(|back| ids.get(at.checked_sub(*back)?))
                .map(String::as_str)
                .collect();
            task(&ids[at], &before)
        })
        .collect();
    let begun = std::time::Instant::now();
    let mut run = run(tasks);
    while let Some(at) = run.start_next() {
        end(&mut run, at, TaskStatus::Succeeded);
    }
    assert_eq!(run.result().succeeded, 50_000);
    // A step that looks at all tasks takes minutes, without optimisation too.
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

/// One task of a random graph: its dependencies are earlier tasks, `fails` is how it ends.
#[derive(Debug, Clone)]
struct Drawn {
    dependencies: Vec<usize>,
    /// Groups of which one task must succeed.
    any: Vec<Vec<usize>>,
    /// Tasks that must fail; none is fatal or in another dependency.
    failed: Vec<usize>,
    priority: i32,
    fatal: bool,
    /// The result: 0 to 5 succeed, 6 fails, 7 is failed by the farm once, 8 is always failed by the farm.
    fate: u8,
}

impl Drawn {
    /// Whether the task may run, if all that it depends on has ended.
    fn may_run(&self, ended: impl Fn(usize) -> Option<TaskStatus>) -> Option<bool> {
        let all = self.dependencies.iter().chain(self.any.iter().flatten()).chain(&self.failed);
        let has_ended = all.map(|at| ended(*at)).all(|status| status.is_some());
        let good = |at: &usize| ended(*at) == Some(TaskStatus::Succeeded);
        let bad = |at: &usize| !good(at) && ended(*at) != Some(TaskStatus::Skipped);
        let any = self.any.iter().all(|group| group.iter().any(good));
        has_ended.then(|| any && self.dependencies.iter().all(good) && self.failed.iter().all(bad))
    }
}

fn drawn() -> impl Strategy<Value = (Vec<Drawn>, Vec<prop::sample::Index>, usize)> {
    let some = |most| prop::collection::vec(any::<prop::sample::Index>(), 0..most);
    let one = (
        (some(3), prop::collection::vec(some(3), 0..2), some(2)),
        -2..3,
        prop::bool::weighted(0.03),
        0_u8..9,
    );
    (prop::collection::vec(one, 1..40), prop::collection::vec(any::<prop::sample::Index>(), 200), 1_usize..8)
        .prop_map(|(ones, choices, places)| {
            let mut drawn: Vec<Drawn> = Vec::new();
            for (at, ((before, any, failed), priority, fatal, fate)) in ones.into_iter().enumerate() {
                let tasks = |some: Vec<prop::sample::Index>| -> Vec<usize> {
                    some.iter().filter(|_| at > 0).map(|index| index.index(at.max(1))).collect()
                };
                let (mut dependencies, mut failed) = (tasks(before), tasks(failed));
                let mut any: Vec<Vec<usize>> = any.into_iter().map(tasks).collect();
                failed.retain(|it| {
                    !drawn[*it].fatal
                        && !dependencies.contains(it)
                        && !any.iter().flatten().any(|any| any == it)
                });
                for group in &mut any {
                    group.sort_unstable();
                    group.dedup();
                }
                dependencies.extend(any.iter().filter(|group| group.len() == 1).flatten());
                // Of a group with a task that must succeed, the others have no effect.
                any.retain(|group| !group.is_empty() && !group.iter().any(|it| dependencies.contains(it)));
                drawn.push(Drawn { dependencies, any, failed, priority, fatal, fate });
            }
            (drawn, choices, places)
        })
}

/// Runs a random graph: returns the tasks in the order of their ends, and checks the order of the starts.
fn play(
    drawn: &[Drawn],
    choices: &[prop::sample::Index],
    places: usize,
) -> (GraphRun, BTreeMap<usize, TaskStatus>) {
    let tasks = drawn.iter().enumerate().map(|(at, drawn)| {
        let id = |at: &usize| format!("t{at}");
        let all = drawn.dependencies.iter().map(|at| serde_json::json!(id(at)));
        let any = drawn
            .any
            .iter()
            .map(|group| serde_json::json!({"any": group.iter().map(id).collect::<Vec<_>>()}));
        let failed = drawn.failed.iter().map(|at| serde_json::json!({"failed": id(at)}));
        let dependencies: Vec<serde_json::Value> = all.chain(any).chain(failed).collect();
        let mut task = conditional(&id(&at), &serde_json::json!(dependencies).to_string());
        (task.priority, task.fatal, task.retries) = (Some(drawn.priority), drawn.fatal, Some(1));
        task
    });
    let mut run = run(tasks.collect());
    let mut ended: BTreeMap<usize, TaskStatus> = BTreeMap::new();
    let mut failures: BTreeMap<usize, u32> = BTreeMap::new();
    let mut running: Vec<TaskIndex> = Vec::new();
    let mut choices = choices.iter().cycle();
    let note = |ended: &mut BTreeMap<usize, TaskStatus>, at: TaskIndex, status| {
        assert_eq!(ended.insert(at.get(), status), None, "{at:?} ended twice");
    };
    loop {
        while running.len() < places {
            let Some(at) = run.start_next() else { break };
            let is_ready = |at: usize| {
                let started = ended.contains_key(&at) || running.iter().any(|task| task.get() == at);
                !started && drawn[at].may_run(|at| ended.get(&at).copied()) == Some(true)
            };
            assert!(is_ready(at.get()), "{at:?} started too early or twice");
            let first = (0..drawn.len())
                .filter(|at| is_ready(*at))
                .min_by_key(|at| (Reverse(drawn[*at].priority), *at));
            assert_eq!(first, Some(at.get()), "another one had to start first");
            running.push(at);
        }
        if running.is_empty() {
            break;
        }
        let at = running[choices.next().unwrap().index(running.len())];
        let failed = *failures.get(&at.get()).unwrap_or(&0);
        let status = match (drawn[at.get()].fate, failed) {
            (6, _) => TaskStatus::Failed,
            (7, 0) | (8, _) => TaskStatus::FarmFailed,
            _ => TaskStatus::Succeeded,
        };
        match end(&mut run, at, status) {
            AfterTask::Again { tries, .. } => {
                assert_eq!((status, failed, tries), (TaskStatus::FarmFailed, 0, 2));
                failures.insert(at.get(), 1);
            }
            AfterTask::Ended(after) => {
                running.retain(|task| *task != at);
                note(&mut ended, at, status);
                for other in after.skipped.into_iter().chain(after.cancelled) {
                    running.retain(|task| *task != other);
                    note(&mut ended, other, TaskStatus::Skipped);
                }
            }
            AfterTask::Nothing => panic!("{at:?} was running"),
        }
        assert_eq!(run.running(), running.len());
    }
    (run, ended)
}

proptest! {
    #[test]
    fn every_task_ends_once_and_runs_only_if_its_conditions_are_met((drawn, choices, places) in drawn()) {
        let (run, ended) = play(&drawn, &choices, places);
        prop_assert!(run.is_over());
        prop_assert_eq!(ended.len(), drawn.len());
        let result = run.result();
        prop_assert_eq!(result.succeeded + result.failed + result.skipped, drawn.len() as u64);
        for (at, report) in run.graph().indexed().zip(run.reports()).map(|((at, _), report)| (at, report)) {
            prop_assert_eq!(ended.get(&at.get()), Some(&report.status));
        }
        let stopped = ended.iter().any(|(at, status)| {
            drawn[*at].fatal && matches!(status, TaskStatus::Failed | TaskStatus::FarmFailed)
        });
        prop_assert_eq!(run.is_stopped(), stopped);
        if !stopped {
            for (at, drawn) in drawn.iter().enumerate() {
                let runs = drawn.may_run(|at| ended.get(&at).copied());
                let wanted = match (runs, drawn.fate) {
                    (Some(false), _) => TaskStatus::Skipped,
                    (Some(true), 6) => TaskStatus::Failed,
                    (Some(true), 8) => TaskStatus::FarmFailed,
                    (Some(true), _) => TaskStatus::Succeeded,
                    (None, _) => unreachable!("all tasks have ended"),
                };
                prop_assert_eq!(ended[&at], wanted, "task {}", at);
            }
        }
    }
}
