//! Following a build until it ends, for `submit --follow` and `watch`.

use std::{io::IsTerminal as _, pin::pin, process::ExitCode, time::Duration};

use bus::EventKind;
use clap::Args;
use client::{Followed, WatchBody, WatchEvent, WatchFilter, WatchKind};
use command_line::{
    failure::{FAILED, Failure, say},
    globals::Globals,
    wait::WaitLimit,
};
use model::{BuildKey, BuildResult, Sequence};
use settings::Settings;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use crate::{
    exit_code::ExitCodeOf,
    farm::Farm,
    fold::Fold,
    frames::Frames,
    present::{Presenter, Shown},
};

/// Exit codes that shells report for a program that Ctrl-C or SIGTERM ended.
const INTERRUPTED: u8 = 130;
const TERMINATED: u8 = 143;
/// Shells report 128 plus the signal that ended a program.
const SIGNALLED: i32 = 128;
/// Time between two drawings of the live block.
const TICK: Duration = Duration::from_millis(120);

/// Options for following a build.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// Meaning of the exit code: outcome of the build, or exit code of its command
    #[arg(long, value_name = "OF", value_enum, default_value_t)]
    exit_code: ExitCodeOf,
    /// Prefix every event, except console output, with its position; `forebay watch ID --from POSITION` continues after it
    #[arg(long)]
    positions: bool,
    /// Fold the output of each attempt by marks on stdout; auto: as the CI system of this job needs it, unless
    /// this is a terminal. Not with --json
    #[arg(long, value_name = "SYSTEM", value_enum, default_value_t)]
    fold: Fold,
}

impl FollowArgs {
    fn shown<'a>(&self, globals: &Globals, kinds: &'a [WatchKind]) -> Shown<'a> {
        let is_terminal = std::io::stdout().is_terminal() || std::io::stderr().is_terminal();
        let is_set = |name: &str| {
            std::env::var_os(name).is_some_and(|value| !["", "0", "false"].iter().any(|no| value == *no))
        };
        let folder = self.fold.folder(is_terminal, is_set);
        Shown { kinds, json: globals.json, positions: self.positions, folder }
    }
}

/// The signals that stop following.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(FAILED, "cannot listen for signals", &error);
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate()).map_err(failed)? })
    }

    /// Waits for a signal; returns the exit code that it means.
    async fn wanted(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => INTERRUPTED,
            _ = self.terminate.recv() => TERMINATED,
        }
    }
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
        let presenter = Presenter::new(args.shown(globals, kinds), farm.client().bus().clock().clone());
        return ended_before(args, presenter, from, &event);
    }
    let clock = farm.client().bus().clock().clone();
    let mut presenter = Presenter::new(args.shown(globals, kinds), clock);
    let mut frames = Frames::new(farm, globals, settings);
    let mut seen = from;
    let mut stop = Stop::new()?;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let next = {
            let mut next = pin!(watch.next());
            loop {
                tokio::select! {
                    next = &mut next => break next,
                    code = stop.wanted() => {
                        drop(presenter);
                        return Ok(detach(key, seen, code));
                    }
                    refused = farm.client().bus().refused() => {
                        drop(presenter);
                        return Err(refused.into());
                    }
                    _ = tick.tick(), if presenter.is_live() => presenter.tick(),
                }
            }
        };
        match next {
            Ok(Some(Followed::Event(mut event))) => {
                if presenter.shows(&event) {
                    tokio::select! {
                        () = frames.fill(&mut event) => {}
                        code = stop.wanted() => {
                            drop(presenter);
                            return Ok(detach(key, seen, code));
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
    mut presenter: Presenter,
    from: Sequence,
    event: &WatchEvent,
) -> Result<ExitCode, Failure> {
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

fn detach(key: &BuildKey, seen: Sequence, code: u8) -> ExitCode {
    say(&format!("build {key} continues; to watch it again: forebay watch {key} --from {seen}"));
    say(&format!("to cancel it: forebay cancel {key}"));
    ExitCode::from(code)
}

async fn last_result(farm: &Farm, key: &BuildKey) -> Result<BuildResult, Failure> {
    let latest = farm.call(async |client| Ok(client.bus().records().latest(key).await?)).await?;
    let result = latest.as_ref().and_then(|(_, record)| record.result().cloned());
    result.ok_or_else(|| Failure::plain(FAILED, format!("build {key} has no result")))
}
