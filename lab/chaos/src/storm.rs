//! A real farm under load while all its processes are killed: the result is a [`History`].

mod collect;
mod corpses;
mod killer;
mod load;
mod plan;
mod victim;

use std::{
    fmt::{self, Write as _},
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use farm::Farm;
use tokio::time::Instant;

use crate::{History, Random, Verdict};

pub use killer::Tally;
pub use plan::Plan;

/// Size of the bus's disk in megabytes: more than the streams of a storm of ten minutes need.
const BUS_MEGABYTES: u32 = 512;

/// Results of a storm.
#[derive(Debug)]
pub struct Aftermath {
    /// All records of the run.
    pub history: History,
    /// Forbidden behaviour of the farm that no rule of a history covers.
    pub faults: Vec<String>,
    /// Number of kills and other faults by kind.
    pub tally: Tally,
    /// Time from the first build to the last kill.
    pub stormed: Duration,
    /// Time from the last kill to the end of the last build.
    pub settled: Duration,
}

/// Runs a farm through the storm of `plan` and returns the idle farm.
///
/// # Panics
/// When servers or services do not start.
pub async fn run(plan: &Plan) -> (Farm, Aftermath) {
    let builder =
        Farm::builder().only(&[]).workspaces(plan.workspaces).env("FOREBAY_OFFER_TIMEOUT_MS", "500");
    // What the services log: FOREBAY_LOG of this process does not reach them.
    let builder = match std::env::var("FOREBAY_CHAOS_LOG") {
        Ok(filter) => builder.env("FOREBAY_LOG", filter),
        Err(_) => builder,
    };
    let builder = if plan.full_disks > 0 { builder.bus_disk(BUS_MEGABYTES) } else { builder };
    let builder = if plan.nodes > 1 { builder.cluster(plan.nodes) } else { builder };
    let farm = builder.start().await;
    let folder = farm.folder().join("runs");
    fs::create_dir(&folder).expect("a folder for the files of builds");
    let mut random = Random::new(plan.seed);
    let jobs = load::jobs(plan, &mut random, &folder);
    let mut killer = killer::Killer::start(&farm, plan, random.clone()).await;
    let began = Instant::now();
    let submitted = Arc::new(AtomicBool::new(false));
    let submit = async {
        let answers = load::submit(&farm, &jobs).await;
        submitted.store(true, Ordering::Relaxed);
        answers
    };
    let (answers, ()) = tokio::join!(submit, killer.storm(&submitted, jobs.len()));
    let stormed = began.elapsed();
    killer.calm().await;
    let calm = Instant::now();
    let mut faults = Vec::new();
    if let Err(waiting) = collect::all_ended(&farm, &answers.acknowledged, plan.settle_limit).await {
        let limit = plan.settle_limit;
        faults
            .push(format!("{} builds have not ended {limit:?} after the storm: {waiting:?}", waiting.len()));
    }
    let settled = calm.elapsed();
    // Long enough for late writers and for the last leases.
    tokio::time::sleep(plan.lease * 2).await;
    faults.extend(collect::leftovers(&farm, plan.lease).await);
    let (events, mut unreadable) = collect::events(&farm).await;
    faults.append(&mut unreadable);
    let runs = collect::runs(&folder, &jobs);
    let exit_codes = jobs.iter().map(|job| (job.key.clone(), job.exit_code)).collect();
    let report = killer.end();
    faults.extend(report.faults);
    let load::Answers { acknowledged, cancelled } = answers;
    let history = History { events, runs, acknowledged, exit_codes, cancelled, kills: report.kills };
    (farm, Aftermath { history, faults, tally: report.tally, stormed, settled })
}

impl Aftermath {
    /// Describes the worst cases that break no promise: excused inversions, and the longest recovery.
    pub fn worst(&self, verdict: &Verdict) -> String {
        let mut text = String::new();
        for finding in &verdict.excused {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "excused {finding}");
            finding.keys.iter().for_each(|key| text.push_str(&self.history.story(key)));
        }
        if let (time, Some(key)) = collect::longest_recovery(&self.history) {
            let _ = write!(text, "longest recovery {time:.1?}: {}", self.history.story(&key));
        }
        text + &self.history.kill_list()
    }
}

/// Microseconds since the Unix epoch.
pub(crate) fn now_us() -> u64 {
    let span = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Display for Aftermath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = self.history.runs.len();
        let (builds, acknowledged) = (self.history.exit_codes.len(), self.history.acknowledged.len());
        let (recovery, _) = collect::longest_recovery(&self.history);
        writeln!(
            f,
            "{builds} builds submitted, {acknowledged} acknowledged, {attempts} runs of their commands"
        )?;
        writeln!(f, "{}", self.tally)?;
        write!(
            f,
            "storm {:.1} s, then all builds ended in {:.1} s; lost runs were requeued within {:.1} s",
            self.stormed.as_secs_f64(),
            self.settled.as_secs_f64(),
            recovery.as_secs_f64()
        )
    }
}
