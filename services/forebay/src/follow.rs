//! Following a build to its end, for `submit --follow` and `watch`.

use std::process::ExitCode;

use clap::Args;
use client::{Followed, WatchKind};
use model::{BuildKey, BuildResult, Sequence};
use tokio::signal::unix::SignalKind;

use crate::{
    exit_code::ExitCodeOf,
    failure::{FAILED, Failure, say},
    farm::Farm,
    globals::Globals,
    present::{Presenter, Shown},
    wait::WaitLimit,
};

/// What shells report for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// What shells add to the signal that ended a program.
const SIGNALLED: i32 = 128;

/// How a build is followed.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// What the exit code says: how the build ended, or what its command ended with
    #[arg(long, value_name = "OF", value_enum, default_value_t)]
    exit_code: ExitCodeOf,
    /// Show the position of every event before it: `forebay watch ID --from POSITION` goes on after it
    #[arg(long)]
    positions: bool,
}

/// Shows the events behind `from`, of `kinds` only unless that is empty, and exits as the build does.
pub(crate) async fn follow(
    farm: &Farm,
    globals: &Globals,
    args: &FollowArgs,
    key: &BuildKey,
    (from, kinds): (Sequence, &[WatchKind]),
) -> Result<ExitCode, Failure> {
    // All that is stored is read: the end tells the exit code. Its place is asked for only if it is shown.
    let unwanted = |kind: &WatchKind| *kind == WatchKind::Queue && !kinds.is_empty() && !kinds.contains(kind);
    let read: Vec<WatchKind> = WatchKind::ALL.into_iter().filter(|kind| !unwanted(kind)).collect();
    let mut watch = farm.client().follow(key, from, &read);
    // A build that was seen goes on without its bus: only who says so gives up on it.
    if let Some(WaitLimit::AtMost(limit)) = globals.chosen_wait()? {
        watch = watch.giving_up_after(limit);
    }
    let mut presenter = Presenter::new(Shown { kinds, json: globals.json, positions: args.positions });
    let mut seen = from;
    let mut interrupt = tokio::signal::unix::signal(SignalKind::interrupt())
        .map_err(|error| Failure::new(FAILED, "cannot listen to Ctrl-C", &error))?;
    loop {
        let next = tokio::select! {
            next = watch.next() => next,
            _ = interrupt.recv() => {
                drop(presenter);
                return Ok(detach(key, seen));
            }
        };
        match next {
            Ok(Some(Followed::Event(event))) => {
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
        // It had ended before the position that we began behind.
        None => last_result(farm, key).await?,
    };
    Ok(ExitCode::from(args.exit_code.exit_code(command_of(&result), result.outcome.exit_code())))
}

/// The exit code of the command as a shell gives it, where a command ended.
fn command_of(result: &BuildResult) -> Option<i32> {
    result.exit_code.or_else(|| Some(SIGNALLED + result.signal?))
}

fn detach(key: &BuildKey, seen: Sequence) -> ExitCode {
    say(&format!("build {key} goes on; watch it again: forebay watch {key} --from {seen}"));
    say(&format!("to end it: forebay cancel {key}"));
    ExitCode::from(INTERRUPTED)
}

async fn last_result(farm: &Farm, key: &BuildKey) -> Result<BuildResult, Failure> {
    let latest = farm.call(async |client| Ok(client.bus().latest(key).await?)).await?;
    let result = latest.as_ref().and_then(|(_, record)| record.result().cloned());
    result.ok_or_else(|| Failure::plain(FAILED, format!("build {key} has no result")))
}
