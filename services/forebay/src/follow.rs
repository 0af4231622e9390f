//! Following a build to its end, for `submit --follow` and `watch`.

use std::process::ExitCode;

use bus::Patience;
use client::{Followed, WatchKind};
use model::{BuildKey, BuildRecord, Outcome, Sequence};
use tokio::signal::unix::SignalKind;

use crate::{
    failure::{FAILED, Failure, say},
    farm::Farm,
    present::Presenter,
};

/// What shells report for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Shows the events behind `from`, of `kinds` only unless that is empty, and exits as the build does.
pub(crate) async fn follow(
    farm: &Farm,
    key: &BuildKey,
    from: Sequence,
    kinds: &[WatchKind],
    json: bool,
) -> Result<ExitCode, Failure> {
    // All that is stored is read: the end tells the exit code. Its place is asked for only if it is shown.
    let unwanted = |kind: &WatchKind| *kind == WatchKind::Queue && !kinds.is_empty() && !kinds.contains(kind);
    let read: Vec<WatchKind> = WatchKind::ALL.into_iter().filter(|kind| !unwanted(kind)).collect();
    let mut watch = farm.client().follow(key, from, &read);
    if farm.patience() == Patience::None {
        watch = watch.giving_up();
    }
    let mut presenter = Presenter::new(kinds, json);
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
            Ok(None) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let outcome = match presenter.outcome() {
        Some(outcome) => outcome,
        // It had ended before the position that we began behind.
        None => last_outcome(farm, key).await?,
    };
    Ok(ExitCode::from(outcome.exit_code()))
}

fn detach(key: &BuildKey, seen: Sequence) -> ExitCode {
    say(&format!("build {key} goes on; watch it again: forebay watch {key} --from {seen}"));
    say(&format!("to end it: forebay cancel {key}"));
    ExitCode::from(INTERRUPTED)
}

async fn last_outcome(farm: &Farm, key: &BuildKey) -> Result<Outcome, Failure> {
    let latest = farm.call(async |client| Ok(client.bus().latest(key).await?)).await?;
    let outcome = latest.as_ref().and_then(|(_, record)| outcome_of(record));
    outcome.ok_or_else(|| Failure::plain(FAILED, format!("build {key} has no result")))
}

fn outcome_of(record: &BuildRecord) -> Option<Outcome> {
    record.result().map(|result| result.outcome)
}
