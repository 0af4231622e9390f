//! The database of an archive: where it is, and connections to it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use sqlx::{
    ConnectOptions as _,
    postgres::PgConnectOptions,
    sqlite::{SqliteJournalMode, SqliteSynchronous},
};

use crate::{
    StoreError,
    readers::Readers,
    sql::{Connection, Dialect},
    sqlite::sqlite,
};

/// Memory of a SQLite connection for pages: negative numbers are KiB.
const WRITER_CACHE: &str = "-131072";
/// Pages of the write-ahead log after which SQLite moves them into the file. Many batches change the same pages of
/// indexes, which are then written to the file once.
const CHECKPOINT_PAGES: &str = "32000";

/// The database of an archive. Cheap to clone; connects when it is used.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) target: Target,
    readers: Readers,
}

#[derive(Debug, Clone)]
pub(crate) enum Target {
    Sqlite(Arc<PathBuf>),
    Postgres(Arc<PgConnectOptions>),
}

impl Store {
    /// The database at `url`: `postgres://...`, or the path of a SQLite file, relative to the folder `data`.
    pub fn new(url: &str, data: &Path) -> Result<Self, StoreError> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let options: PgConnectOptions =
                url.parse().map_err(|_| StoreError::Url { url: without_password(url) })?;
            let options = options.application_name("forebay archive").disable_statement_logging();
            let readers = Readers::of_server(options.clone());
            return Ok(Self { target: Target::Postgres(Arc::new(options)), readers });
        }
        let path = url.strip_prefix("sqlite://").unwrap_or(url);
        if path.is_empty() || path.contains("://") {
            return Err(StoreError::Url { url: without_password(url) });
        }
        let path = Arc::new(data.join(path));
        let readers = Readers::of_file(path.clone());
        Ok(Self { target: Target::Sqlite(path), readers })
    }

    /// The kind of database.
    pub fn dialect(&self) -> Dialect {
        match self.target {
            Target::Sqlite(_) => Dialect::Sqlite,
            Target::Postgres(_) => Dialect::Postgres,
        }
    }

    /// The error with the file and what to do, if the file is damaged.
    pub fn explain(&self, error: StoreError) -> StoreError {
        match &self.target {
            Target::Sqlite(path) if error.is_damage() => {
                StoreError::Damaged { path: path.display().to_string(), source: Box::new(error) }
            }
            Target::Sqlite(_) | Target::Postgres(_) => error,
        }
    }

    /// A connection for answers.
    pub(crate) async fn reader(&self) -> Result<Connection, StoreError> {
        self.readers.acquire().await
    }

    /// A new connection for writing, without the right to write.
    pub(crate) async fn writer_connection(&self) -> Result<Connection, StoreError> {
        let failed = StoreError::while_("connecting");
        match &self.target {
            Target::Sqlite(path) => {
                let options = sqlite(path)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    // Without it, a power cut could undo the last transactions.
                    .synchronous(SqliteSynchronous::Full)
                    .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
                    .pragma("journal_size_limit", "268435456")
                    .pragma("cache_size", WRITER_CACHE);
                options.connect().await.map(Connection::Sqlite).map_err(failed)
            }
            Target::Postgres(options) => options.connect().await.map(Connection::Postgres).map_err(failed),
        }
    }
}

/// The URL without user and password, for messages.
fn without_password(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
        Some((scheme, rest)) => format!("{scheme}://{rest}"),
        None => url.to_owned(),
    }
}
