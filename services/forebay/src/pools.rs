//! `forebay pools`: shows the autoscaled pools.

use std::{process::ExitCode, time::Duration};

use comfy_table::Table;
use command_line::{failure::Failure, globals::Globals, stdout};
use model::{Millis, ScalePlan};
use settings::Settings;

use crate::{bytes_text::age, farm::Farm, style};

/// Shows the latest plan of each autoscaled pool.
pub(crate) async fn run(globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let plans = farm.call(async |client| Ok(client.bus().buckets().all::<ScalePlan>().await?)).await?;
    let plans: Vec<ScalePlan> = plans.into_values().collect();
    if globals.json {
        stdout::json(&plans)?;
    } else if plans.is_empty() {
        stdout::line("no pool is autoscaled: list the pools in the setting `autoscale`")?;
    } else {
        stdout::line(&table(&plans, farm.now()).trim_fmt())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(plans: &[ScalePlan], now: Millis) -> Table {
    let mut table = style::table();
    table.set_header([
        "POOL", "DESIRED", "READY", "BUSY", "STARTING", "DRAINING", "WAITING", "RUNNING", "WORK", "DECIDED",
        "WHY",
    ]);
    for plan in plans {
        let seen = &plan.seen;
        let waiting = match seen.held_back {
            0 => seen.waiting.to_string(),
            held_back => format!("{} and {held_back} held back by quota", seen.waiting),
        };
        let work = humantime::format_duration(Duration::from_secs(seen.queued_ms.div_ceil(1000)));
        table.add_row([
            plan.pool.to_string(),
            plan.desired.to_string(),
            seen.alive.to_string(),
            seen.busy.to_string(),
            seen.starting.to_string(),
            seen.draining.to_string(),
            waiting,
            seen.running.to_string(),
            work.to_string(),
            age(plan.at_ms, now),
            plan.why.clone(),
        ]);
    }
    table
}
