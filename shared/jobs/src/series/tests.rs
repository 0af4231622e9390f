use model::{Graph, Interference, Job, JobLimits, Step};

use super::*;

fn graph(measure: &serde_json::Value) -> Graph {
    let task = serde_json::json!({
        "id": "a", "command": ["x"], "limits": {"cpu_ms": 10}, "measure": measure
    });
    let job: Job = serde_json::from_value(serde_json::json!({ "tasks": [task] })).unwrap();
    Graph::new(&job, &JobLimits::NONE).unwrap()
}

fn parts(graph: &Graph) -> (&Task, &CommandStep, MeasurePlan) {
    let task = graph.tasks().first().unwrap();
    let Step::Command(command) = &task.step else { panic!() };
    (task, command, command.measure.unwrap())
}

fn ended(task: &Task, cpu_us: u64, score: Option<f64>) -> TaskEnd {
    let figures = RunFigures { cpu_us, wall_us: cpu_us, memory_bytes: 5, ..RunFigures::default() };
    let report = TaskReport {
        figures: Some(figures),
        score,
        ..TaskReport::new(task.id.clone(), TaskStatus::Succeeded)
    };
    TaskEnd { reported_us: vec![cpu_us], ..TaskEnd::of(report) }
}

#[test]
fn the_first_run_gives_a_preliminary_report_and_the_last_one_the_end() {
    let graph = graph(&serde_json::json!({"runs": 3, "warmup": 1}));
    let (task, command, plan) = parts(&graph);
    let mut series = Series::default();
    assert_eq!((series.next(&plan), series.number()), (NextRun::Warmup, 1));
    series.warm();
    assert_eq!(series.preliminary(command, &plan), None, "no run was measured");
    series.add(ended(task, 12_000, Some(1.0)));
    let first = series.preliminary(command, &plan).unwrap();
    assert_eq!((first.status, first.score), (TaskStatus::OverLimit, Some(1.0)), "the only run is too slow");
    assert_eq!(first.measurement.map(|all| all.state), Some(MeasurementState::Preliminary));
    series.add(ended(task, 8000, Some(0.5)));
    assert_eq!(series.preliminary(command, &plan), None, "only the first is preliminary");
    series.add(ended(task, 9500, Some(1.0)));
    assert_eq!(series.next(&plan), NextRun::Done(MeasurementState::AllRuns));
    let end = series.end(task, (command, &plan), MeasurementState::AllRuns).report;
    assert_eq!((end.status, end.score, end.reason), (TaskStatus::Succeeded, Some(0.5), None));
    assert_eq!((end.cpu_ms, end.figures.unwrap().cpu_us), (Some(9), 9500));
    let measured = end.measurement.unwrap();
    assert_eq!((measured.cpu.n, measured.warmup, measured.runs.len()), (3, 1, 3));
    assert_eq!(end.reported.map(|times| (times.n, times.max_us)), Some((3, 12_000)));
}

#[test]
fn a_disturbed_run_is_reported_but_changes_neither_times_nor_limits() {
    let graph = graph(&serde_json::json!({"runs": 2}));
    let (task, command, plan) = parts(&graph);
    let disturbed = |task: &Task| {
        let mut end = ended(task, 90_000, Some(0.5));
        let seen = Interference { processors: 2, steal_us: 80_000, ..Interference::default() };
        end.report.figures.as_mut().unwrap().interference = Some(seen);
        end
    };
    let mut series = Series::default();
    for end in [ended(task, 8000, Some(1.0)), disturbed(task), ended(task, 8000, Some(1.0))] {
        assert_eq!(series.next(&plan), NextRun::Measured);
        series.add(end);
    }
    assert_eq!(series.next(&plan), NextRun::Done(MeasurementState::AllRuns));
    let end = series.end(task, (command, &plan), MeasurementState::AllRuns).report;
    assert_eq!((end.status, end.score), (TaskStatus::Succeeded, Some(0.5)), "its output counts");
    assert_eq!(end.reported.map(|times| times.max_us), Some(8000));
    let measured = end.measurement.unwrap();
    assert_eq!((measured.cpu.n, measured.cpu.max_us, measured.disturbed), (2, 8000, 1));
    let marked: Vec<bool> = measured.runs.iter().map(|run| !run.disturbed_by.is_empty()).collect();
    assert_eq!(marked, [false, true, false]);
}

#[test]
fn a_bad_run_ends_the_task_with_the_figures_of_the_good_ones() {
    let graph = graph(&serde_json::json!({"runs": 3}));
    let (task, _, plan) = parts(&graph);
    let failed = || {
        let reason = Some("exit code 3".to_owned());
        TaskEnd::of(TaskReport { reason, ..TaskReport::new(task.id.clone(), TaskStatus::Failed) })
    };
    let mut series = Series::default();
    let first = series.bad_end(failed(), &plan, MeasurementState::RunFailed).report;
    assert_eq!((first.reason.as_deref(), first.measurement), (Some("exit code 3"), None));
    series.add(ended(task, 8000, None));
    let second = series.bad_end(failed(), &plan, MeasurementState::RunFailed).report;
    assert_eq!((second.status, second.reason.as_deref()), (TaskStatus::Failed, Some("run 2: exit code 3")));
    let measured = second.measurement.unwrap();
    assert_eq!((measured.state, measured.cpu.n), (MeasurementState::RunFailed, 1));
}

#[test]
fn no_preliminary_report_follows_the_final_one() {
    let graph = graph(&serde_json::json!({"runs": 3}));
    let (task, _, _) = parts(&graph);
    let (index, _) = graph.indexed().next().unwrap();
    let all = MeasuredTasks::default();
    for _ in 0..=PRELIMINARY_MAX {
        all.add_preliminary(index, TaskReport::new(task.id.clone(), TaskStatus::Succeeded));
    }
    let drained = all.take_preliminary(|_| true);
    assert_eq!(drained.len(), PRELIMINARY_MAX, "these are published together with the final one");
    assert!(!all.has_preliminary());
    all.add_preliminary(index, TaskReport::new(task.id.clone(), TaskStatus::Succeeded));
    assert_eq!(all.take_preliminary(|_| false).len(), 1);
}
