//! The database of an archive: where it is, and connections to it.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::{
    ConnectOptions as _,
    postgres::{PgConnectOptions, PgPool, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous},
};

use crate::{
    StoreError,
    file_id::FileId,
    sql::{Connection, Dialect},
};

/// Connections for answers, of one process.
const READERS: u32 = 4;
/// How long an answer waits for a connection.
const READER_WAIT: Duration = Duration::from_secs(3);
/// How long SQLite waits for another process that writes.
const BUSY: Duration = Duration::from_secs(5);
/// Memory of a SQLite connection for pages: negative numbers are KiB.
const WRITER_CACHE: &str = "-131072";
const READER_CACHE: &str = "-16384";
/// How much of a SQLite file is mapped into memory, in bytes.
const MAPPED: &str = "1073741824";
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

#[derive(Debug, Clone)]
enum Readers {
    Sqlite(Arc<SqliteReaders>),
    Postgres(PgPool),
}

/// Connections to the file that is at a path. A file that was removed has no reader any more.
#[derive(Debug)]
struct SqliteReaders {
    path: Arc<PathBuf>,
    current: Mutex<(Option<FileId>, SqlitePool)>,
}

impl SqliteReaders {
    fn new(path: Arc<PathBuf>) -> Self {
        let current = Mutex::new((FileId::of(&path), readers_of(&path)));
        Self { path, current }
    }

    fn pool(&self) -> SqlitePool {
        let found = FileId::of(&self.path);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != found {
            *current = (found, readers_of(&self.path));
        }
        current.1.clone()
    }
}

fn readers_of(path: &Path) -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(READERS).acquire_timeout(READER_WAIT);
    let options = sqlite(path).read_only(true).pragma("cache_size", READER_CACHE).pragma("query_only", "1");
    pool.connect_lazy_with(options)
}

impl Store {
    /// The database at `url`: `postgres://...`, or the path of a SQLite file, relative to the folder `data`.
    pub fn new(url: &str, data: &Path) -> Result<Self, StoreError> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let options: PgConnectOptions =
                url.parse().map_err(|_| StoreError::Url { url: without_password(url) })?;
            let options = options.application_name("forebay archive").disable_statement_logging();
            let pool = PgPoolOptions::new().max_connections(READERS).acquire_timeout(READER_WAIT);
            let readers = Readers::Postgres(pool.connect_lazy_with(options.clone()));
            return Ok(Self { target: Target::Postgres(Arc::new(options)), readers });
        }
        let path = url.strip_prefix("sqlite://").unwrap_or(url);
        if path.is_empty() || path.contains("://") {
            return Err(StoreError::Url { url: without_password(url) });
        }
        let path = Arc::new(data.join(path));
        let readers = Readers::Sqlite(Arc::new(SqliteReaders::new(path.clone())));
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
        let failed = StoreError::while_("connecting");
        match &self.readers {
            Readers::Sqlite(readers) => {
                readers.pool().acquire().await.map(Connection::SqliteReader).map_err(failed)
            }
            Readers::Postgres(pool) => pool.acquire().await.map(Connection::PostgresReader).map_err(failed),
        }
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

fn sqlite(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY)
        .foreign_keys(false)
        .pragma("mmap_size", MAPPED)
        .pragma("temp_store", "memory")
        .disable_statement_logging()
}

/// The URL without user and password, for messages.
fn without_password(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
        Some((scheme, rest)) => format!("{scheme}://{rest}"),
        None => url.to_owned(),
    }
}
