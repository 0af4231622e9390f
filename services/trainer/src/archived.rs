//! Expired builds to learn from, which the archive has.

use bus::{ArchiveCall, AskError, Bus, BusError, EventSubject, FromJson as _, Message as _, Subject, stream};
use model::{ArchivedBuildsRequest, ListReply, ListRequest, Millis, Sequence, State};
use tracing::{debug, warn};

use crate::lessons::TrainingData;

/// Maximum number of builds of the archive to learn from: each call gives at most a thousand.
const BUILDS_MAX: u64 = 100_000;
const PAGE: usize = 1000;

/// Adds builds that ended since `since` and before the first event of the stream, the latest ones. Without an archive,
/// or if it fails, what the stream has is all.
pub(crate) async fn add(bus: &Bus, lessons: &mut TrainingData, since: Millis) -> Result<(), BusError> {
    let first = bus.stream(stream::EVENTS).first_from(EventSubject::LIFECYCLES, Sequence(1)).await?;
    let before = first.map_or_else(|| bus.now(), |stored| stored.at);
    if before <= since {
        return Ok(());
    }
    match add_ended(bus, lessons, since, before).await {
        Ok(0) | Err(AskError::NobodyListens { .. }) => {}
        Ok(builds) => debug!(builds, "builds of the archive read"),
        Err(error) => {
            warn!(
                error = telemetry::error_chain(&error),
                "cannot read builds of the archive, training without them"
            );
        }
    }
    Ok(())
}

async fn add_ended(
    bus: &Bus,
    lessons: &mut TrainingData,
    since: Millis,
    before: Millis,
) -> Result<u64, AskError> {
    let subject = Subject::Archive(ArchiveCall::List);
    let (mut cursor, mut read) = (None, 0);
    while read < BUILDS_MAX {
        let list = ListRequest {
            state: Some(State::Finished),
            since_ms: Some(since),
            until_ms: Some(before),
            limit: Some(PAGE),
            cursor,
            ..ListRequest::default()
        };
        let request = ArchivedBuildsRequest { group: None, list };
        let page = bus.ask(&subject, None, request.to_json()).await?;
        let page = match ListReply::from_json(&page) {
            Ok(page) => page,
            Err(error) => {
                warn!(error = telemetry::error_chain(&error), "cannot read an answer of the archive");
                break;
            }
        };
        read += page.builds.len() as u64;
        for build in page.builds.iter().filter(|build| build.record.at_ms < before) {
            lessons.add_record(&build.record, since);
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    Ok(read)
}
