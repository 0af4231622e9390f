//! Check 98: the order of priorities.

use std::time::Duration;

use futures::future::{join_all, try_join_all};
use reapi::protobuf::Timestamp;
use tokio::{sync::mpsc, time::timeout};

use crate::{
    actions::{Run, Running, Stage, stage},
    check::{Check, Phase, check},
    context::Cx,
    job::Job,
    stop::{Judged, Stop, fail, need, skip},
};

pub(crate) const CHECKS: &[Check] =
    &[check!(98, F, Should, Execution, "a lower priority value starts sooner", order).at(Phase::Alone)];

const BLOCKERS_MAX: usize = 256;
/// Actions that keep waiting for this long wait for a slot.
const SETTLED: Duration = Duration::from_millis(700);
const PROBES: usize = 3;

/// Runs an action in parallel; sends a message when it starts, and returns how it ends.
fn follow(
    mut running: Running,
    started: mpsc::UnboundedSender<()>,
) -> tokio::task::JoinHandle<Result<Run, Stop>> {
    tokio::spawn(async move {
        let mut is_told = false;
        while let Some(operation) = running.next().await? {
            let at = if operation.done { Stage::Completed } else { stage(operation)? };
            if !is_told && matches!(at, Stage::Executing | Stage::Completed) {
                is_told = true;
                // The receiver is closed once the farm is busy.
                let _ = started.send(());
            }
        }
        running.finish().await
    })
}

/// Sends sleeping actions until some of them have to wait; their slots free up one after another.
async fn occupy(cx: &Cx, seconds: f64) -> Result<Vec<tokio::task::JoinHandle<Result<Run, Stop>>>, Stop> {
    let (send, mut started) = mpsc::unbounded_channel();
    let mut blockers = Vec::new();
    let (mut begun, mut wave) = (0, 4);
    loop {
        let jobs: Vec<Job> = (blockers.len()..blockers.len() + wave)
            .map(|number| Job::sh(&format!("sleep {}", seconds + 0.2 * (number % 8) as f64)).do_not_cache())
            .collect();
        for running in try_join_all(jobs.iter().map(|job| cx.start(job))).await? {
            blockers.push(follow(running, send.clone()));
        }
        while begun < blockers.len() && timeout(SETTLED, started.recv()).await.is_ok_and(|one| one.is_some())
        {
            begun += 1;
        }
        if begun < blockers.len() {
            return Ok(blockers);
        }
        wave = blockers.len();
        if blockers.len() + wave > BLOCKERS_MAX {
            skip!("{} actions run in parallel, so none has to wait", blockers.len());
        }
    }
}

/// Times closer than this are not compared: slots may free up at the same moment.
const TOLERANCE_MILLIS: i64 = 100;

/// Times in milliseconds when an action was queued and when an executor started it.
struct Times {
    priority: i32,
    queued: Option<i64>,
    start: i64,
}

impl Times {
    fn of(priority: i32, run: &Run) -> Option<Self> {
        let millis = |time: Timestamp| time.seconds * 1000 + i64::from(time.nanos / 1_000_000);
        let metadata = run.response.result.as_ref()?.execution_metadata.as_ref()?;
        let start = millis(metadata.worker_start_timestamp?);
        Some(Self { priority, queued: metadata.queued_timestamp.map(millis), start })
    }

    /// Returns whether this action was queued, and more urgent, when the other one started.
    fn goes_before(&self, other: &Self) -> bool {
        self.priority < other.priority
            && self.queued.is_none_or(|queued| queued + TOLERANCE_MILLIS <= other.start)
    }
}

/// Sends actions with these priorities, in this order, to a busy farm.
async fn probe(cx: &Cx, levels: [i32; 3], seconds: f64) -> Result<Vec<Times>, Stop> {
    let blockers = occupy(cx, seconds).await?;
    let mut probes = Vec::new();
    for priority in levels {
        let jobs: Vec<Job> =
            (0..PROBES).map(|_| Job::sh("sleep 0.3").do_not_cache().priority(priority)).collect();
        for mut running in try_join_all(jobs.iter().map(|job| cx.start(job))).await? {
            running.name().await?;
            probes.push((priority, running));
        }
    }
    let probes = probes.into_iter().map(|(priority, running)| async move {
        let run = running.finish().await?;
        run.exited(0)?;
        match Times::of(priority, &run) {
            Some(times) => Ok(times),
            None => fail!("a result has no worker_start_timestamp, so the order is unknown"),
        }
    });
    let times = try_join_all(probes).await?;
    for blocker in join_all(blockers).await {
        blocker.map_err(|error| Stop::Fail(format!("the check itself failed: {error}")))??.exited(0)?;
    }
    Ok(times)
}

async fn order(cx: &Cx) -> Judged {
    let ranges = cx.executing().and_then(|execution| execution.execution_priority_capabilities.as_ref());
    let ranges = ranges.map(|ranges| ranges.priorities.clone()).unwrap_or_default();
    let least = ranges.iter().map(|range| range.min_priority).min().unwrap_or(-10);
    let most = ranges.iter().map(|range| range.max_priority).max().unwrap_or(10);
    // The least urgent actions are sent first: only the priority can reorder them. Where negative values are not
    // allowed, 0 is the most urgent.
    let levels = [most.min(10), if least < 0 { 0 } else { 5.min(most) }, least.clamp(-10, 0)];
    for seconds in [2.0, 5.0, 8.0] {
        let times = probe(cx, levels, seconds).await?;
        let mut compared = 0;
        for urgent in &times {
            for other in times.iter().filter(|other| urgent.goes_before(other)) {
                compared += 1;
                need!(
                    urgent.start <= other.start + TOLERANCE_MILLIS,
                    "an action of priority {} started {} ms after one of priority {} that came before it",
                    urgent.priority,
                    urgent.start - other.start,
                    other.priority
                );
            }
        }
        // On a slow machine some actions may have started before all were queued.
        if compared >= PROBES * PROBES * 2 {
            return Ok(format!("priorities {levels:?}"));
        }
    }
    skip!("the actions started before all of them could be sent")
}
