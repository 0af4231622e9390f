//! `archive`: keeps builds, their runs and actions in SQL, longer than the bus, and answers questions about them.
//!
//! in: `forebay.build.event.>`, `forebay.action.event.>` from the archive's own cursors, `forebay.archive.*` · out: rows,
//! with the position in the same transaction · Redis: none · decides with `archive_store` (which rows a message gives)
//!
//! It is a consumer only: builds never wait for it. Of several processes on one database, one writes and all answer.

mod answers;
mod reader;
mod writing;

use archive_store::{Retention, Store};
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
    let retention = Retention { age: settings.retention, size_max: settings.size_max };
    tokio::select! {
        () = context.stop.cancelled() => {}
        () = writing::write(&context, &store, retention) => {}
    }
    answers.drain().await;
    Ok(())
}
