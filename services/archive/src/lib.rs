//! `archive`: keeps builds, their runs and actions in SQL, longer than the bus, and answers questions about them.
//!
//! in: `forebay.build.event.>`, `forebay.action.event.>`, `forebay.bazel.event.>` from the archive's own cursors, large
//! build events from the store, `forebay.archive.*` · out: rows, with the position in the same transaction · Redis: none · decides with `archive_store` (which rows a message gives)
//!
//! It is a consumer only: builds never wait for it. Of several processes on one database, one writes and all answer.

mod answers;
mod blobs;
mod lag;
mod reader;
mod retries;
mod writing;

use archive_store::{Retention, Store};
use blobs::Blobs;
use bus::ArchivedBlobs;
use reader::Source;
use service::{Context, Ready, Running, ServiceError};
use settings::ArchiveSettings;

/// Runs the service until it is asked to stop.
pub fn run(context: Context, settings: ArchiveSettings) -> Running {
    Box::pin(serve(context, settings))
}

async fn serve(context: Context, settings: ArchiveSettings) -> Result<(), ServiceError> {
    let store = Store::new(&settings.url, &settings.data)
        .map_err(|error| ServiceError::failed("reading the settings of the archive", error))?;
    let answers = answers::start(&context, &store).await?;
    context.ready(Ready::default()).await?;
    let source = Source { bus: context.bus.clone(), blobs: Blobs::default() };
    let kept = ArchivedBlobs { seconds: settings.blobs_retention.as_secs() };
    let retention = Retention {
        age: settings.retention,
        age_by_group: settings.retention_by_group,
        size_max: settings.size_max,
    };
    let working = async {
        let writing = writing::write(&context, &store, &source, &retention, kept);
        tokio::join!(source.blobs.open(&context), writing)
    };
    tokio::select! {
        () = context.stop.cancelled() => {}
        ((), ()) = working => {}
    }
    answers.drain().await;
    Ok(())
}
