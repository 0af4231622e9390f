//! Closes a worker that cannot run builds, and lets it try again after a growing pause.

use std::{sync::Arc, time::Duration};

use model::{Attempt, BuildKey, BuildRecord, Reason, ReasonCode};
use policy::was_prepared_elsewhere;
use tracing::{debug, warn};

use crate::{ending::Ending, shared::Shared};

/// First and longest time between two looks at what became of a build.
const LOOK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Notes how a run ended: faults of this worker in a row close it.
pub(crate) fn note(shared: &Arc<Shared>, record: &BuildRecord, ending: &Ending) {
    match ending {
        Ending::GiveBack(Reason { code: ReasonCode::WorkerFault, message }) => close(shared, message),
        Ending::GiveBack(Reason { code: ReasonCode::ContextUnavailable, message })
        | Ending::NotFetched(Reason { code: ReasonCode::ContextUnavailable, message }) => {
            let key = BuildKey { group: record.build.group.clone(), id: record.build.id };
            tokio::spawn(learn(Arc::clone(shared), key, record.attempt, message.clone()));
        }
        Ending::Exited(_) | Ending::Tasks { .. } | Ending::TimedOut(_) => {
            shared.workspaces.note_success(&record.build.group, shared.context.bus.now());
        }
        Ending::GiveBack(_)
        | Ending::Failed(..)
        | Ending::NoContent(_)
        | Ending::NotFetched(_)
        | Ending::NotOurs => {}
    }
}

fn close(shared: &Arc<Shared>, message: &str) {
    let Some(pause) = shared.workspaces.note_fault(message) else { return };
    warn!(seconds = pause.as_secs(), why = message, "the worker accepts no builds for a while");
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        shared.workspaces.try_again();
    });
}

/// Notes a fault of this worker once another one has prepared what this one could not, until the build ends.
async fn learn(shared: Arc<Shared>, key: BuildKey, given_back: Attempt, message: String) {
    let [mut pause, longest] = LOOK;
    loop {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
        let record = match shared.context.bus.records().latest(&key).await {
            Ok(Some((_, record))) => record,
            Ok(None) => return,
            Err(error) => {
                debug!(%key, error = telemetry::error_chain(&error), "cannot read what became of a build");
                continue;
            }
        };
        match was_prepared_elsewhere(&record, given_back, &shared.id) {
            Some(true) if shared.workspaces.note_source_fault(&key.group, shared.context.bus.now()) => {
                return close(&shared, &format!("{message}, which another worker could do"));
            }
            Some(_) => return,
            None => {}
        }
    }
}
