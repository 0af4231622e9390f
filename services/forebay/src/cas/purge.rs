//! `forebay cas purge`: deletes results of the action cache.

use std::{process::ExitCode, time::SystemTime};

use clap::Args;
use command_line::{
    failure::{FAILED, Failure, USAGE},
    globals::Globals,
    stdout,
};
use model::{AuditKind, BlobDigest, Millis, PurgeReply, PurgeRequest};
use policy::purge::Purge;
use settings::Settings;

use crate::moment::Moment;

/// Number of results that are listed as text.
const SHOWN: usize = 20;

/// Options of `forebay cas purge`.
#[derive(Debug, Args)]
pub(super) struct PurgeArgs {
    /// Results of the executor with this id, or whose folder has it: `forebay cas why` shows both
    #[arg(long, value_name = "ID")]
    by_executor: Option<String>,
    /// The results of this action: HASH/SIZE
    #[arg(long, value_name = "DIGEST")]
    action: Option<BlobDigest>,
    /// Results stored since then: an age such as 2h, or a time such as 2026-11-24T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = Moment::parse)]
    since: Option<Moment>,
    /// Delete nothing; only say what would be deleted
    #[arg(long)]
    dry_run: bool,
}

/// Deletes the results that meet all conditions from the store of the settings.
pub(super) async fn run(
    args: &PurgeArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let now = Millis::from(SystemTime::now());
    let asked = PurgeRequest {
        executor: args.by_executor.clone(),
        action: args.action,
        since_ms: args.since.map(|since| since.before(now)),
        dry_run: args.dry_run,
    };
    let mut purge = Purge::new(asked)
        .map_err(|_| Failure::plain(USAGE, "expected --by-executor, --action or --since".to_owned()))?;
    let cas = service::open_cas(&settings.store())
        .map_err(|error| Failure::new(FAILED, "cannot open the store", &error))?;
    let removed = cas.purge_actions(|provenance| purge.deletes(provenance)).await;
    let removed = removed.map_err(|error| Failure::new(FAILED, "cannot purge the action cache", &error))?;
    let (conditions, reply) = (purge.to_string(), purge.reply(removed));
    if !args.dry_run {
        let (what, deleted) = ((AuditKind::Purge, "forebay cas purge"), format!("deleted {}", reply.deleted));
        crate::audit::record(globals, settings, what, &conditions, &deleted).await;
    }
    if globals.json {
        stdout::json(&reply)?;
    } else {
        stdout::line(&text(&reply, args.dry_run, &cas.url()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(reply: &PurgeReply, dry_run: bool, store: &str) -> String {
    let PurgeReply { examined, selected, deleted, without_provenance, results } = reply;
    let mut lines: Vec<String> = results
        .iter()
        .take(SHOWN)
        .map(|result| {
            format!("{}  {}  {}", result.action, result.executor, telemetry::escaped(&result.command))
        })
        .collect();
    let more = selected.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let done = if dry_run { format!("would delete {selected}") } else { format!("deleted {deleted}") };
    lines.push(format!("{done} of {examined} results in {store}; their blobs stay"));
    if *without_provenance > 0 {
        lines.push(format!(
            "{without_provenance} results say nothing of where they come from (assets, and results of earlier versions): they stay"
        ));
    }
    lines.join("\n")
}
