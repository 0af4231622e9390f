//! Tasks that always run, and tasks that run several times to be measured. Other tests disturb measured runs: `max_disturbed` of
//! 0 lets disturbed runs count, where the number of runs matters.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bus::EventKind;
use client::WatchBody;
use farm::Farm;
use model::{BuildKey, Disturbance, MeasurementState, Outcome, Sequence, TaskReport, TaskStatus, ToolEvent};
use serde_json::{Value, json};

use super::{Ended, builder, ended, job, request, request_in, run, sh, start};

/// A task with additional fields.
fn with(mut task: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        task[name] = value.clone();
    }
    task
}

/// A folder outside of all sandboxes, in which the user of actions may write.
pub(super) fn outside(farm: &Farm) -> PathBuf {
    let folder = farm.folder().join("outside");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// A script that counts its runs in a file outside of its sandbox, and then goes on with `$n` as the number of the run.
fn counting(file: &Path, then: &str) -> String {
    format!("n=$(($(cat {0} 2>/dev/null || echo 0) + 1)); echo $n > {0}; {then}", file.display())
}

fn count(file: &Path) -> u64 {
    fs::read_to_string(file).map_or(0, |text| text.trim().parse().unwrap())
}

/// The preliminary reports of a build that has ended.
async fn preliminary(farm: &Farm, key: &BuildKey) -> Vec<TaskReport> {
    let mut watch = farm.client().watch(key, Sequence(0), &[EventKind::Tool, EventKind::Lifecycle]);
    let mut found = Vec::new();
    while let Some(event) = watch.next().await.unwrap() {
        if let WatchBody::Tool(ToolEvent::TasksEnded { preliminary, .. }) = event.body {
            found.extend(preliminary);
        }
    }
    found
}

#[tokio::test]
async fn a_task_that_is_not_cached_runs_every_time_and_is_not_merged() {
    let farm = start(builder()).await;
    let files = ["cached", "field", "property"].map(|name| outside(&farm).join(name));
    // Two tasks with the same action, which would otherwise be one execution.
    let twice = |name: &str, file: &Path, more: &Value| {
        let line = format!("echo x >> {}", file.display());
        [1, 2].map(|at| with(sh(&format!("{name}-{at}"), &line), more))
    };
    let tasks = [
        twice("cached", &files[0], &json!({})),
        twice("field", &files[1], &json!({"cache": false})),
        twice("property", &files[2], &json!({"platform": {"Cache": "false"}})),
    ];
    let tasks = json!(tasks.concat());
    let lines = |file: &Path| fs::read_to_string(file).unwrap().lines().count();
    for (builds, expected) in [(1, [1, 2, 2]), (2, [1, 4, 4])] {
        let ended = run(&farm, request(job(&tasks))).await;
        assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.reports);
        assert_eq!(files.each_ref().map(|file| lines(file)), expected, "after {builds} builds");
        let cached = ended.ids(|report| report.cached);
        assert!(cached.iter().all(|id| id.starts_with("cached")), "{cached:?}");
    }
    let wrong = with(sh("a", "true"), &json!({"platform": {"cache": "never"}}));
    let refused = farm.client().create(&"g".parse().unwrap(), &request(job(&json!([wrong]))), None).await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("cache") && error.contains("expected true or false"), "{error}");
}

#[tokio::test]
async fn measured_runs_take_place_one_at_a_time_and_are_all_reported() {
    let farm = start(builder()).await;
    let log = outside(&farm).join("log");
    let tasks = ["a", "b"].map(|name| {
        let spins = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done";
        let script =
            format!("echo {name} >> {0}; {spins}; echo end >> {0}; echo x > {name}.out", log.display());
        let more = json!({"measure": {"runs": 4, "warmup": 1, "max_disturbed": 0}, "outputs": [format!("{name}.out")]});
        with(sh(name, &script), &more)
    });
    let reader = with(sh("reader", "cat a.out b.out"), &json!({"inputs": ["a.out", "b.out"]}));
    let [a, b] = tasks;
    let key = farm.submit("g", request(job(&json!([a, b, reader])))).await;
    let ended = ended(&farm, &key).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.reports);
    let lines = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(lines.len(), 2 * 2 * 5, "{lines:?}");
    assert!(lines.chunks(2).all(|pair| pair[1] == "end"), "two ran at once: {lines:?}");
    for id in ["a", "b"] {
        let report = ended.task(id);
        let measured = report.measurement.as_ref().unwrap();
        assert_eq!((measured.state, measured.warmup), (MeasurementState::AllRuns, 1));
        assert_eq!((measured.cpu.n, measured.wall.n, measured.runs.len()), (4, 4, 4));
        assert!(
            measured.runs.iter().all(|run| run.figures.cpu_us > 0 && run.executor.is_some()),
            "{measured:#?}"
        );
        assert!(
            measured.runs.iter().all(|run| run.figures.wall_us >= run.figures.cpu_us / 2),
            "{measured:#?}"
        );
        let switches = measured.runs.iter().map(|run| run.figures.voluntary_switches).sum::<u64>();
        assert_eq!(measured.voluntary_switches, switches);
        let figures = report.figures.unwrap();
        assert_eq!((figures.cpu_us, figures.wall_us), (measured.cpu.median_us, measured.wall.median_us));
        assert_eq!((report.cpu_ms, report.cached), (Some(figures.cpu_us / 1000), false));
    }
    assert!(ended.job().failures.is_empty());
    let early = preliminary(&farm, &key).await;
    let mut names: Vec<&str> = early.iter().map(|report| report.id.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b"], "one report of each");
    for report in early {
        let measured = report.measurement.unwrap();
        assert_eq!((measured.state, measured.cpu.n), (MeasurementState::Preliminary, 1));
        assert!(measured.runs.is_empty(), "events have no single runs");
    }
}

/// Runs a measured task alone. The number of its runs is in the file.
async fn alone(farm: &Farm, file: &Path, then: &str, more: &Value) -> Ended {
    let task = with(sh("measured", &counting(file, then)), more);
    run(farm, request(job(&json!([task])))).await
}

#[tokio::test]
async fn repeating_ends_with_the_first_run_that_fails() {
    let farm = start(builder()).await;
    let file = outside(&farm).join("exit-code");
    let ended =
        alone(&farm, &file, "exit $((n == 3))", &json!({"measure": {"runs": 10, "max_disturbed": 0}})).await;
    let report = ended.task("measured");
    assert_eq!((report.status, ended.reason("measured")), (TaskStatus::Failed, "run 3: exit code 1"));
    let measured = report.measurement.as_ref().unwrap();
    assert_eq!((measured.state, measured.cpu.n, count(&file)), (MeasurementState::RunFailed, 2, 3));

    // A warm-up that fails ends the task as well.
    let file = outside(&farm).join("warmup");
    let ended = alone(&farm, &file, "exit 1", &json!({"measure": {"runs": 10, "warmup": 2}})).await;
    assert_eq!((ended.reason("measured"), count(&file)), ("exit code 1", 1));
    assert_eq!(ended.task("measured").measurement, None);

    // A judge that exits with 1 rejects.
    let file = outside(&farm).join("judge");
    let judge = json!({"judge": true, "measure": {"runs": 10, "max_disturbed": 0}});
    let ended = alone(&farm, &file, "echo $((n < 4)); exit $((n == 4))", &judge).await;
    let report = ended.task("measured");
    assert_eq!((report.status, report.score), (TaskStatus::Succeeded, Some(0.0)));
    let measured = report.measurement.as_ref().unwrap();
    assert_eq!((measured.state, measured.cpu.n, count(&file)), (MeasurementState::Rejected, 3, 4));
    assert_eq!(ended.job().score, Some(0.0));
}

#[tokio::test]
async fn the_median_decides_about_a_limit_and_a_far_slower_run_ends_the_task() {
    let farm = start(builder()).await;
    let file = outside(&farm).join("median");
    let slow =
        json!({"limits": {"wall_ms": 300}, "measure": {"runs": 3, "limit_factor": 40, "max_disturbed": 0}});
    // The first run alone is too slow, and does not end the task.
    let ended = alone(&farm, &file, "[ $n -gt 1 ] || sleep 0.6", &slow).await;
    let report = ended.task("measured");
    assert_eq!((report.status, count(&file)), (TaskStatus::Succeeded, 3), "{report:#?}");

    let file = outside(&farm).join("slow");
    let ended = alone(&farm, &file, "sleep 0.6", &slow).await;
    let report = ended.task("measured");
    assert_eq!((report.status, count(&file)), (TaskStatus::OverLimit, 3), "{report:#?}");
    let reason = ended.reason("measured");
    assert!(
        reason.starts_with("the median of 3 runs is ") && reason.ends_with("the limit wall_ms is 300"),
        "{reason}"
    );

    let file = outside(&farm).join("far");
    let far = json!({"limits": {"wall_ms": 200}, "measure": {"runs": 10, "limit_factor": 2}});
    let ended = alone(&farm, &file, "sleep 60", &far).await;
    assert_eq!((ended.status("measured"), count(&file)), (TaskStatus::OverLimit, 1));
    assert_eq!(ended.task("measured").measurement, None, "no run came to its end");
}

#[tokio::test]
async fn runs_continue_until_the_interval_is_narrow() {
    let farm = start(builder()).await;
    let file = outside(&farm).join("narrow");
    let until = json!({"measure": {"runs": 2, "until": 100, "max_runs": 60, "max_disturbed": 0}});
    let ended = alone(&farm, &file, "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done", &until).await;
    let measured = ended.task("measured").measurement.as_deref().unwrap();
    assert_eq!(measured.state, MeasurementState::Narrow, "{measured:#?}");
    assert!(measured.cpu.n >= 5 && measured.cpu.n == count(&file), "{measured:#?}");
    assert!(measured.cpu.high_us <= 2 * measured.cpu.median_us, "{measured:#?}");

    // Times of a few microseconds vary more than that.
    let file = outside(&farm).join("wide");
    let until = json!({"measure": {"runs": 2, "until": 1e-6, "max_runs": 6, "max_disturbed": 0}});
    let ended = alone(&farm, &file, "true", &until).await;
    let measured = ended.task("measured").measurement.as_deref().unwrap();
    assert_eq!((measured.state, measured.cpu.n), (MeasurementState::StillWide, 6), "{measured:#?}");
}

#[tokio::test]
async fn times_that_a_program_reports_are_summed_up_beside_the_measured_ones() {
    let farm = start(builder()).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    let reports = |id: &str, script: &str, more: &Value| {
        let both = json!({"outputs": ["made"], "reported_times": "made/times"});
        let task = with(with(sh(id, script), &both), more);
        json!([task])
    };
    let file = outside(&farm).join("runs");
    let script = counting(&file, r#"mkdir -p made; echo "[0.$n, {\"b\": 2}]" > made/times"#);
    let measured = reports("many", &script, &json!({"measure": {"runs": 3, "max_disturbed": 0}}));
    let many = run(&farm, request_in(job(&measured), folder.path())).await;
    let report = many.task("many");
    let reported = report.reported.unwrap_or_else(|| panic!("{report:#?}"));
    assert_eq!((reported.n, reported.min_us, reported.max_us), (6, 100_000, 2_000_000));
    let runs: Vec<_> =
        report.measurement.iter().flat_map(|all| &all.runs).map(|run| &run.reported_us).collect();
    assert_eq!(runs, [&[100_000, 2_000_000], &[200_000, 2_000_000], &[300_000, 2_000_000]]);

    let once = reports("once", "mkdir -p made; printf '0.5\\n0.25\\n' > made/times", &json!({}));
    let once = run(&farm, request(job(&once))).await;
    assert_eq!(once.task("once").reported.map(|times| (times.n, times.mean_us)), Some((2, 375_000)));

    let bad = reports("bad", "mkdir -p made; echo soon > made/times", &json!({}));
    let bad = run(&farm, request(job(&bad))).await;
    assert_eq!(bad.status("bad"), TaskStatus::Failed);
    assert!(bad.reason("bad").starts_with(r#"cannot read the times in made/times: "soon" is not"#));
    assert_eq!(bad.task("bad").exit_code, Some(0), "the report still says what ran");
}

/// Uses all processors of the machine until it is dropped, or for two minutes of processor time.
struct Busy(Vec<std::process::Child>);

impl Busy {
    fn start() -> Self {
        let processors = std::thread::available_parallelism().unwrap().get();
        let one = || {
            std::process::Command::new("/bin/sh")
                .args(["-c", "ulimit -t 120; while :; do :; done"])
                .spawn()
                .unwrap()
        };
        Self((0..processors).map(|_| one()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // A child that has ended needs no kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::test]
async fn disturbed_runs_are_repeated_and_reported_and_the_result_says_if_there_were_too_many() {
    let farm = start(builder()).await;
    let file = outside(&farm).join("disturbed");
    let busy = Busy::start();
    let spins = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let ended = alone(&farm, &file, spins, &json!({"measure": {"runs": 2, "max_disturbed": 2}})).await;
    drop(busy);
    let report = ended.task("measured");
    let measured = report.measurement.as_ref().unwrap();
    assert_eq!((measured.state, count(&file)), (MeasurementState::Disturbed, 3), "{report:#?}");
    assert_eq!((measured.cpu.n, measured.disturbed, measured.runs.len()), (3, 3, 3));
    for run in &measured.runs {
        let seen = run.figures.interference.unwrap();
        assert!(seen.processors > 0 && seen.other_us > 0, "{run:#?}");
        assert!(run.disturbed_by.contains(&Disturbance::OtherLoad), "{run:#?}");
    }

    // The same runs count if the job says so, and are marked nevertheless.
    let file = outside(&farm).join("counted");
    let busy = Busy::start();
    let ended = alone(&farm, &file, spins, &json!({"measure": {"runs": 2, "max_disturbed": 0}})).await;
    drop(busy);
    let measured = ended.task("measured").measurement.as_ref().unwrap();
    assert_eq!((measured.state, count(&file)), (MeasurementState::AllRuns, 2));
    assert_eq!((measured.cpu.n, measured.disturbed), (2, 2));
}

#[tokio::test]
async fn only_measured_runs_pay_for_the_measurement() {
    let farm = start(builder()).await;
    let ended = run(&farm, request(job(&json!([sh("once", "true")])))).await;
    let figures = ended.task("once").figures.unwrap();
    assert_eq!(figures.interference, None);
}
