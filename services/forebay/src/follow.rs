//! Following a build until it ends, for `submit --follow` and `watch`.

use std::process::ExitCode;

use bus::EventKind;
use clap::Args;
use client::{Followed, WatchBody, WatchEvent, WatchFilter, WatchKind};
use model::{BuildKey, BuildResult, Sequence};
use settings::Settings;
use tokio::signal::unix::SignalKind;

use crate::{
    exit_code::ExitCodeOf,
    failure::{FAILED, Failure, say},
    farm::Farm,
    frames::Frames,
    globals::Globals,
    present::{Presenter, Shown},
    wait::WaitLimit,
};

/// Exit code that shells report for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Shells report 128 plus the signal that ended a program.
const SIGNALLED: i32 = 128;

/// Options for following a build.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// Meaning of the exit code: outcome of the build, or exit code of its command
    #[arg(long, value_name = "OF", value_enum, default_value_t)]
    exit_code: ExitCodeOf,
    /// Prefix every event, except console output, with its position; `forebay watch ID --from POSITION` continues after it
    #[arg(long)]
    positions: bool,
}

/// Shows the events after `from` that `filter` wants, and returns the exit code of the build.
pub(crate) async fn follow(
    farm: &Farm,
    (globals, settings): (&Globals, &Settings),
    args: &FollowArgs,
    key: &BuildKey,
    (from, filter): (Sequence, &WatchFilter),
) -> Result<ExitCode, Failure> {
    let kinds = filter.kinds.as_slice();
    // Read the states, since the last one determines the exit code. Without `--json`, build events of Bazel are shown only
    // on request.
    let is_read = |kind: &WatchKind| match kind {
        WatchKind::Event(EventKind::Lifecycle) => true,
        WatchKind::Event(EventKind::Bazel) => kinds.contains(kind) || kinds.is_empty() && globals.json,
        WatchKind::Queue | WatchKind::Event(EventKind::Console | EventKind::Tool) => filter.wants(*kind),
    };
    let kinds_read = WatchKind::ALL.into_iter().filter(is_read).collect();
    let read = WatchFilter { kinds: kinds_read, ..filter.clone() };
    let mut watch = farm.client().follow(key, from, &read);
    // A running build survives an outage of the bus, so stop following only if the user sets a limit.
    if let Some(WaitLimit::AtMost(limit)) = globals.chosen_wait()? {
        watch = watch.giving_up_after(limit);
    }
    if let Some(event) = farm.call(async |client| client.archived_last_event(key).await).await? {
        return ended_before(args, globals, (from, kinds), &event);
    }
    let mut presenter = Presenter::new(Shown { kinds, json: globals.json, positions: args.positions });
    let mut frames = Frames::new(farm, globals, settings);
    let mut seen = from;
    let mut interrupt = tokio::signal::unix::signal(SignalKind::interrupt())
        .map_err(|error| Failure::new(FAILED, "cannot listen for Ctrl-C", &error))?;
    loop {
        let next = tokio::select! {
            next = watch.next() => next,
            _ = interrupt.recv() => {
                drop(presenter);
                return Ok(detach(key, seen));
            }
        };
        match next {
            Ok(Some(Followed::Event(mut event))) => {
                if presenter.shows(&event) {
                    tokio::select! {
                        () = frames.fill(&mut event) => {}
                        _ = interrupt.recv() => {
                            drop(presenter);
                            return Ok(detach(key, seen));
                        }
                    }
                }
                if matches!(&event.body, WatchBody::Frame(frame) if frame.is_empty()) {
                    continue;
                }
                presenter.show(&event)?;
                seen = event.position;
            }
            Ok(Some(Followed::Queue(place))) => presenter.queue(&place, farm.now())?,
            Ok(Some(Followed::Unplaced(why))) => presenter.unplaced(&why),
            Ok(None) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let result = match presenter.take_result() {
        Some(result) => result,
        // The build ended before the position from which events were read.
        None => last_result(farm, key).await?,
    };
    Ok(ExitCode::from(args.exit_code.exit_code(command_of(&result), result.outcome.exit_code())))
}

/// Shows the last event of an archived build.
fn ended_before(
    args: &FollowArgs,
    globals: &Globals,
    (from, kinds): (Sequence, &[WatchKind]),
    event: &WatchEvent,
) -> Result<ExitCode, Failure> {
    let mut presenter = Presenter::new(Shown { kinds, json: globals.json, positions: args.positions });
    say("the bus has no events of this build any more: its last state is from the archive");
    if event.position > from {
        presenter.show(event)?;
    }
    let WatchBody::Lifecycle(record) = &event.body else { return Ok(ExitCode::SUCCESS) };
    let Some(result) = record.result() else { return Ok(ExitCode::SUCCESS) };
    Ok(ExitCode::from(args.exit_code.exit_code(command_of(result), result.outcome.exit_code())))
}

/// The exit code of the command as a shell reports it, if a command ended.
fn command_of(result: &BuildResult) -> Option<i32> {
    result.exit_code.or_else(|| Some(SIGNALLED + result.signal?))
}

fn detach(key: &BuildKey, seen: Sequence) -> ExitCode {
    say(&format!("build {key} continues; to watch it again: forebay watch {key} --from {seen}"));
    say(&format!("to cancel it: forebay cancel {key}"));
    ExitCode::from(INTERRUPTED)
}

async fn last_result(farm: &Farm, key: &BuildKey) -> Result<BuildResult, Failure> {
    let latest = farm.call(async |client| Ok(client.bus().records().latest(key).await?)).await?;
    let result = latest.as_ref().and_then(|(_, record)| record.result().cloned());
    result.ok_or_else(|| Failure::plain(FAILED, format!("build {key} has no result")))
}
