//! Compares the congestion window of a worker with little memory with fixed numbers of workspaces.
//!
//! The worker and its builds are in a control group of 4 GiB; each build needs a little more than 1 GiB for two seconds. A build that
//! the kernel kills is given back and runs again, so a kill costs time.

use std::{cell::Cell, time::Instant};

use command_line::failure::say;
use futures::{StreamExt as _, stream::FuturesUnordered};
use model::{BuildRecord, BuildRequest, ReasonCode, State};

use crate::{error::BenchError, farm::BenchFarm, figures::Figures, memory_group::MemoryGroup};

const LIMIT_BYTES: u64 = 4 << 30;
const BUILDS: usize = 40;
const WORKSPACES: u16 = 8;
/// Grows to 1 GiB within about half a second and keeps it for a second and a half.
const SCRIPT: &str = "(head -c 1073741824 /dev/zero; sleep 1.5) | tail > /dev/null";

/// Runs the builds in each way. `None` if no control group can be created.
pub(crate) async fn measure() -> Result<Option<Figures>, BenchError> {
    if let Err(why) = MemoryGroup::new("probe", LIMIT_BYTES) {
        say(&format!("skipping builds that need much memory: {why}"));
        return Ok(None);
    }
    let mut figures = Figures::default();
    say("running builds of 1 GiB with the congestion window");
    let windowed = Way::run(WORKSPACES, &[("FOREBAY_WINDOW_START_POINTS", "0")]).await?;
    figures.part("window", windowed.figures("congestion window"));
    let mut best: Option<f64> = None;
    for workspaces in 1..=WORKSPACES {
        say(&format!("running builds of 1 GiB in {workspaces} fixed workspaces"));
        let fixed = Way::run(workspaces, &[("FOREBAY_CONGESTION_WINDOW", "false")]).await?;
        figures
            .part(&format!("fixed_{workspaces}"), fixed.figures(&format!("{workspaces} fixed workspaces")));
        if fixed.killed == 0 {
            best = Some(best.map_or(fixed.seconds, |best| best.min(fixed.seconds)));
        }
    }
    let ratio = best.map(|best| best / windowed.seconds);
    figures.figure("window_to_best_ratio", "rate, to that of the best fixed number without kills", ratio, "");
    Ok(Some(figures))
}

/// What happened in one way of admission.
struct Way {
    seconds: f64,
    failed: u32,
    /// Number of attempts that ended because the kernel killed the build.
    killed: u32,
    /// Those after the end of the first build.
    killed_later: u32,
}

impl Way {
    async fn run(workspaces: u16, admission: &[(&str, &str)]) -> Result<Self, BenchError> {
        let farm = BenchFarm::start(None, &["--workers", "0", "--executors", "0"]).await?;
        let group = MemoryGroup::new("hungry", LIMIT_BYTES)?;
        let workspaces = workspaces.to_string();
        let settings = [&[("FOREBAY_WORKSPACES", workspaces.as_str())], admission].concat();
        let mut worker = farm.worker_within(&settings, &group).await?;
        let began = Instant::now();
        let command = ["/bin/sh", "-c", SCRIPT].map(str::to_owned).to_vec();
        let request = BuildRequest { command, ..BuildRequest::default() };
        let (killed, killed_later, has_ended) = (Cell::new(0), Cell::new(0), Cell::new(false));
        let observe = |record: &BuildRecord| {
            let gave_back = record.queue.retry.as_ref().map(|retry| retry.reason.code);
            if record.state() == State::Enqueued && gave_back == Some(ReasonCode::WorkerOutOfMemory) {
                killed.set(killed.get() + 1);
                killed_later.set(killed_later.get() + u32::from(has_ended.get()));
            }
            has_ended.set(has_ended.get() || record.result().is_some());
        };
        let mut running: FuturesUnordered<_> = (0..BUILDS).map(|_| farm.build(&request, observe)).collect();
        let mut failed = 0;
        while let Some(record) = running.next().await {
            failed += u32::from(record?.result().is_none_or(|result| result.reason.is_some()));
        }
        drop(running);
        let seconds = began.elapsed().as_secs_f64();
        // It ends also if it was killed before.
        let _ = worker.kill().await;
        farm.stop().await;
        Ok(Self { seconds, failed, killed: killed.get(), killed_later: killed_later.get() })
    }

    fn figures(&self, name: &str) -> Figures {
        let mut figures = Figures::default();
        figures.figure("seconds", &format!("{name}: time for {BUILDS} builds"), self.seconds, "s");
        figures.figure("killed", &format!("{name}: builds killed for memory"), self.killed, "");
        figures.figure(
            "killed_later",
            &format!("{name}: after the first end of a build"),
            self.killed_later,
            "",
        );
        figures.figure("failed", &format!("{name}: failed builds"), self.failed, "");
        figures
    }
}
