//! Congestion windows: their whole life on a worker and on an executor, and builds that need memory.

use std::{fs, path::PathBuf, time::Duration};

use bus::Subject;
use farm::{Builder, Farm, SOON};
use model::{
    BuildKey, BuildRecord, Heartbeat, Outcome, Sequence, State, WindowState, WorkerStatus, WorkspaceState,
};

use crate::{
    acting,
    check::{ended_as, script},
};

/// A sensor from outside that is red while its file says more than 1, and windows that start with a quarter of all slots.
fn with_sensor(builder: Builder, file: &str) -> Builder {
    builder
        .env("FOREBAY_WINDOW_START_POINTS", "0")
        .env("FOREBAY_WINDOW_TICK_MS", "50")
        .env("FOREBAY_BUILD_WINDOW_GROWTH_MS", "700")
        .env("FOREBAY_SENSOR_FILE", file)
}

/// A file outside of the farm, which does not exist yet.
struct SensorFile(tempfile::TempDir);

impl SensorFile {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("value")
    }

    fn name(&self) -> String {
        self.path().display().to_string()
    }
}

/// What a worker says of itself.
#[derive(Debug)]
struct Seen {
    status: WorkerStatus,
    window: WindowState,
    short: Option<String>,
    busy: usize,
    closed: usize,
}

impl Seen {
    fn new(heartbeat: Heartbeat) -> Self {
        let count = |is: fn(&WorkspaceState) -> bool| heartbeat.workspaces.iter().filter(|it| is(it)).count();
        Self {
            status: heartbeat.status,
            busy: count(|it| matches!(it, WorkspaceState::Busy { .. })),
            closed: count(|it| matches!(it, WorkspaceState::Closed { .. })),
            window: heartbeat.window,
            short: heartbeat.short,
        }
    }
}

/// All heartbeats of the only worker: also a state that it leaves soon is seen.
struct Beats(bus::Listener<Heartbeat>);

impl Beats {
    async fn of(farm: &Farm) -> Self {
        let beats = Self(farm.bus().listen(&()).await.unwrap());
        farm.bus().signal(&Subject::Announce).await.unwrap();
        beats
    }

    async fn until(&mut self, what: &str, is: impl Fn(&Seen) -> bool) -> Seen {
        let mut last = None;
        let end = tokio::time::Instant::now() + SOON;
        while let Ok(Some(beat)) = tokio::time::timeout_at(end, self.0.next()).await {
            let seen = Seen::new(beat.content);
            if is(&seen) {
                return seen;
            }
            last = Some(seen);
        }
        panic!("waited for {what}: {last:#?}");
    }
}

async fn running(farm: &Farm, keys: &[BuildKey]) -> usize {
    let records = farm.bus().records().latest_many(keys).await.unwrap();
    records.iter().filter(|(_, record)| record.state() == State::InProgress).count()
}

async fn metric(farm: &Farm, service: &str, line: &str) -> Option<f64> {
    let url = farm.metrics_urls().into_iter().find(|(name, _)| name.starts_with(service)).unwrap().1;
    let text = crate::http::client().get(url).send().await.unwrap().text().await.unwrap();
    text.lines().find_map(|it| it.strip_prefix(line)?.trim().parse().ok())
}

#[tokio::test]
async fn the_window_of_a_worker_grows_is_cut_closes_and_opens_again() {
    let file = SensorFile::new();
    let farm = with_sensor(Farm::builder().without("gateway").workspaces(8), &file.name()).start().await;
    let mut beats = Beats::of(&farm).await;
    let start = beats.until("a quarter of the workspaces", |it| it.closed == 6).await;
    assert_eq!((start.status, start.window.size), (WorkerStatus::Ready, 20));
    let gate = |number: usize| farm.folder().join(format!("gate-{number}"));
    let waits = |number| format!("while [ ! -e {} ]; do sleep 0.02; done", gate(number).display());
    let mut keys = Vec::new();
    for number in 0..12 {
        keys.push(farm.submit("g", script(&waits(number))).await);
    }
    // Slow start: it doubles while it is used and all is green.
    beats.until("all workspaces in use", |it| it.busy == 8 && it.window.size == 80).await;
    fs::write(file.path(), "3 hot").unwrap();
    let cut = beats.until("a cut below what runs", |it| it.window.size == 60).await;
    assert_eq!((cut.status, cut.window.used), (WorkerStatus::Full, 80));
    assert!(cut.short.unwrap().contains("is 3, above the maximum of 1: hot"));
    let listed = farm.cli(&["workers"]).await.stdout;
    assert!(listed.contains("80/60") && listed.contains(": hot"), "{listed}");
    assert_eq!(metric(&farm, "worker", "forebay_build_window_points ").await, Some(60.0));
    assert_eq!(metric(&farm, "worker", "forebay_build_sensor_red{sensor=\"file\"} ").await, Some(1.0));
    // Two builds end, and none starts in their place.
    for number in [0, 1] {
        fs::write(gate(number), "").unwrap();
        ended_as(&farm, &keys[number], Outcome::Succeeded).await;
    }
    beats.until("six builds", |it| it.busy == 6).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(running(&farm, &keys).await, 6, "a red sensor lets nothing start");
    // Green again, it grows by one build at a time.
    fs::write(file.path(), "0").unwrap();
    beats.until("room for one more build", |it| (it.busy, it.closed) == (6, 1)).await;
    beats.until("all workspaces in use", |it| it.busy == 8).await;
    (2..12).for_each(|number| fs::write(gate(number), "").unwrap());
    for key in &keys {
        ended_as(&farm, key, Outcome::Succeeded).await;
    }
    // An operator pauses the idle worker.
    let paused = farm.data().join("workspaces/paused");
    fs::write(&paused, "a new kernel").unwrap();
    let stopped = beats.until("a pause", |it| it.status == WorkerStatus::Full).await;
    assert!(stopped.short.unwrap().ends_with("paused: a new kernel"));
    let key = farm.submit("g", script("true")).await;
    fs::remove_file(&paused).unwrap();
    ended_as(&farm, &key, Outcome::Succeeded).await;
}

#[tokio::test]
async fn the_window_of_an_executor_grows_is_cut_and_opens_again() {
    let file = SensorFile::new();
    let builder = acting::builder()
        .env("FOREBAY_EXECUTOR_SLOTS", "8")
        .env("FOREBAY_EXECUTOR_MEMORY_BYTES", "80000000000")
        .env("FOREBAY_ACTION_SIZING", "false");
    let farm = with_sensor(builder, &file.name()).start().await;
    let window = async || {
        let found = farm.bus().leases().executors().await.unwrap();
        found.into_iter().next().map(|it| it.window).unwrap_or_default()
    };
    let when = async |what: &str, is: &dyn Fn(&WindowState) -> bool| {
        let end = tokio::time::Instant::now() + SOON;
        loop {
            let found = window().await;
            if is(&found) {
                return found;
            }
            assert!(tokio::time::Instant::now() < end, "waited for {what}: {found:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    when("a quarter of the slots", &|it| it.size == 20).await;
    let remote = acting::remote(&farm).await;
    let gate = farm.folder().join("gate");
    let mut running = Vec::new();
    for number in 0..12 {
        let script = format!(": {number}; while [ ! -e {} ]; do sleep 0.02; done", gate.display());
        running.push(acting::execute(&remote, acting::upload(&remote, &script).await));
    }
    when("all slots in use", &|it| it.used == 80 && it.size == 80).await;
    fs::write(file.path(), "2").unwrap();
    let cut = when("a cut below what runs", &|it| it.size == 60).await;
    assert!(cut.red[0].contains("is 2, above the maximum of 1"), "{cut:?}");
    let listed = farm.cli(&["executors"]).await.stdout;
    assert!(listed.contains("80/60") && listed.contains("above the maximum of 1"), "{listed}");
    assert_eq!(metric(&farm, "executor", "forebay_action_window_points ").await, Some(60.0));
    fs::write(&gate, "").unwrap();
    fs::write(file.path(), "1").unwrap();
    for action in running {
        action.await.unwrap().unwrap();
    }
    when("no sensor is red", &|it| it.red.is_empty() && it.used == 0).await;
}

/// A control group of memory that ends with the test.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `None` if this machine has no control groups of version 1 that this process may create.
    fn new(name: &str, bytes: u64) -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/memory/{name}-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        fs::write(group.0.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
        Some(group)
    }

    fn enter(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let end = std::time::Instant::now() + SOON;
        while fs::remove_dir(&self.0).is_err() && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test]
async fn builds_that_need_memory_all_succeed_although_all_of_them_do_not_fit() {
    let Some(group) = MemoryGroup::new("forebay-test-window", 700 << 20) else { return };
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let worker = farm.start_unready(
        "worker",
        &[
            ("FOREBAY_WORKSPACES", "8"),
            ("FOREBAY_WINDOW_START_POINTS", "0"),
            ("FOREBAY_BUILD_WINDOW_GROWTH_MS", "500"),
        ],
    );
    group.enter(worker.pid());
    farm.keep(worker);
    // 150 MB each, some time after the start: at most 4 fit.
    let hog = "sleep 0.3; python3 -c 'import time; b = bytearray(150 << 20); b[::4096] = bytes(len(b[::4096])); time.sleep(1)'";
    let mut keys = Vec::new();
    for _ in 0..24 {
        keys.push(farm.submit("g", script(hog)).await);
    }
    let mut runs = Vec::new();
    for key in &keys {
        let record = farm.wait_finished(key, Duration::from_secs(100)).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
        runs.extend(runs_of(&farm.history(key).await));
    }
    // Only before the first end of a build is it unknown what one needs; those that started before it disturb others until
    // they end.
    let known = runs.iter().filter(|run| !run.killed).map(|run| run.end).min().unwrap();
    let settled = runs.iter().filter(|run| run.start < known).map(|run| run.end).max().unwrap();
    let steady: Vec<&Run> = runs.iter().filter(|run| run.start > settled).collect();
    assert!(steady.len() >= 6, "{runs:?}");
    assert!(steady.iter().all(|run| !run.killed), "killed in the steady state: {runs:?}");
}

/// A part of a build's history, by the positions of its records in the stream.
#[derive(Debug)]
struct Run {
    start: Sequence,
    end: Sequence,
    /// The build was enqueued again.
    killed: bool,
}

fn runs_of(history: &[(Sequence, BuildRecord)]) -> Vec<Run> {
    let ends = |start: usize| history[start..].iter().find(|(_, record)| record.state() != State::InProgress);
    let started = |number: &usize| {
        let before = number.checked_sub(1).map(|number| history[number].1.state());
        history[*number].1.state() == State::InProgress && before != Some(State::InProgress)
    };
    let run = |number: usize| {
        let (end, record) = ends(number).expect("every run of a finished build has ended");
        Run { start: history[number].0, end: *end, killed: record.state() == State::Enqueued }
    };
    (0..history.len()).filter(started).map(run).collect()
}
