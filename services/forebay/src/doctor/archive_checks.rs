//! Checks of the archive.

use std::time::Duration;

use bus::stream;
use client::{Client, ClientError};
use model::{ArchiveStatus, Millis};
use telemetry::error_chain;

use super::Finding;

const ARCHIVE: &str = "archive";
const SEE: &str = "see its log; builds go on, and it catches up (docs/archive.md)";
/// Time limit of the answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Messages that the archive may be behind while it keeps up.
const BEHIND_MAX: u64 = 10_000;

/// Checks that an archive answers, keeps up, and lacks nothing. A farm may have none.
pub(super) async fn run(client: &Client) -> Finding {
    match tokio::time::timeout(PATIENCE, client.archive_status()).await {
        Ok(Ok(status)) => finding(client, &status).await,
        Ok(Err(error)) if is_absent(&error) => {
            Finding::ok(ARCHIVE, "none: builds are known for the retention of the bus")
        }
        Ok(Err(error)) => Finding::fail(ARCHIVE, error_chain(&error), SEE),
        Err(_) => Finding::fail(ARCHIVE, format!("no answer within {} s", PATIENCE.as_secs()), SEE),
    }
}

fn is_absent(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. })
}

async fn finding(client: &Client, status: &ArchiveStatus) -> Finding {
    let bus = client.bus();
    let last = match bus.stream(stream::EVENTS).positions().await {
        Ok((_, last)) => last,
        Err(error) => return Finding::fail(ARCHIVE, error_chain(&error), "see the log of nats-server"),
    };
    let read = status.streams.get(stream::EVENTS);
    let behind = last.0.saturating_sub(read.map_or(0, |read| read.position.0));
    let at = read.map_or(Millis(0), |read| read.at_ms);
    if behind > BEHIND_MAX {
        let age = bus.now().since(at).as_secs();
        return Finding::warn(
            ARCHIVE,
            format!("{behind} events behind, the last one read is {age} s old"),
            SEE,
        );
    }
    if let Some(aside) = status.set_aside.first() {
        let found =
            format!("{} or more messages are set aside; first: {}", status.set_aside.len(), aside.reason);
        return Finding::warn(ARCHIVE, found, "GET /v1/archive lists them");
    }
    Finding::ok(ARCHIVE, format!("{behind} events behind, {} gaps", status.gaps.len()))
}
