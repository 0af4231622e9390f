//! Connections for answers, once the tables are there: the process that writes the archive creates and changes them when it
//! starts, while others answer already.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{
    postgres::{PgConnectOptions, PgPool, PgPoolOptions},
    sqlite::{SqlitePool, SqlitePoolOptions},
};

use crate::{StoreError, file_id::FileId, migrations::VERSION, sql::Connection, sqlite::sqlite};

/// Connections for answers, of one process.
const READERS: u32 = 4;
/// How long an answer waits for a connection, and for the tables.
const READER_WAIT: Duration = Duration::from_secs(3);
/// Time between two looks for the tables.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const READER_CACHE: &str = "-16384";

/// Connections to one database.
#[derive(Debug, Clone)]
pub(crate) struct Pool<P> {
    connections: P,
    /// Whether its tables were seen in this version or a later one.
    has_tables: Arc<AtomicBool>,
}

impl<P> From<P> for Pool<P> {
    fn from(connections: P) -> Self {
        Self { connections, has_tables: Arc::default() }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Readers {
    Sqlite(Arc<SqliteReaders>),
    Postgres(Pool<PgPool>),
}

impl Readers {
    pub(crate) fn of_file(path: Arc<PathBuf>) -> Self {
        let current = Mutex::new((FileId::of(&path), readers_of(&path)));
        Self::Sqlite(Arc::new(SqliteReaders { path, current }))
    }

    pub(crate) fn of_server(options: PgConnectOptions) -> Self {
        let pool = PgPoolOptions::new().max_connections(READERS).acquire_timeout(READER_WAIT);
        Self::Postgres(pool.connect_lazy_with(options).into())
    }

    /// A connection. Waits at most 3 seconds for tables of this version.
    pub(crate) async fn acquire(&self) -> Result<Connection, StoreError> {
        let until = Instant::now() + READER_WAIT;
        loop {
            match self.connect().await {
                Err(StoreError::NoTables) if Instant::now() < until => tokio::time::sleep(LOOK_AGAIN).await,
                result => return result,
            }
        }
    }

    async fn connect(&self) -> Result<Connection, StoreError> {
        let failed = StoreError::while_("connecting");
        let (mut connection, has_tables) = match self {
            Self::Sqlite(readers) => {
                let pool = readers.pool().ok_or(StoreError::NoTables)?;
                (Connection::SqliteReader(pool.connections.acquire().await.map_err(failed)?), pool.has_tables)
            }
            Self::Postgres(pool) => {
                let connection = pool.connections.acquire().await.map_err(failed)?;
                (Connection::PostgresReader(connection), pool.has_tables.clone())
            }
        };
        if !has_tables.load(Ordering::Relaxed) {
            check_tables(&mut connection).await?;
            has_tables.store(true, Ordering::Relaxed);
        }
        Ok(connection)
    }
}

/// Connections to the file that is at a path. A file that was removed has no reader any more.
#[derive(Debug)]
pub(crate) struct SqliteReaders {
    path: Arc<PathBuf>,
    current: Mutex<(Option<FileId>, Pool<SqlitePool>)>,
}

impl SqliteReaders {
    /// `None` if there is no file.
    fn pool(&self) -> Option<Pool<SqlitePool>> {
        let found = FileId::of(&self.path);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.0 != found {
            *current = (found, readers_of(&self.path));
        }
        found.map(|_| current.1.clone())
    }
}

fn readers_of(path: &Path) -> Pool<SqlitePool> {
    let pool = SqlitePoolOptions::new().max_connections(READERS).acquire_timeout(READER_WAIT);
    let options = sqlite(path).read_only(true).pragma("cache_size", READER_CACHE).pragma("query_only", "1");
    pool.connect_lazy_with(options).into()
}

/// Fails with [`StoreError::NoTables`] if the tables are missing or those of an earlier version.
async fn check_tables(connection: &mut Connection) -> Result<(), StoreError> {
    let newest = "SELECT COALESCE(MAX(version), 0) FROM _sqlx_migrations WHERE success".into();
    match connection.fetch(&newest, &[]).await {
        Ok(rows) => match rows.first().map(|row| row.whole(0)) {
            Some(Ok(version)) if version >= VERSION => Ok(()),
            Some(Ok(_)) | None => Err(StoreError::NoTables),
            Some(Err(error)) => Err(StoreError::while_("reading the version of its tables")(error)),
        },
        Err(sqlx::Error::Database(error)) if is_missing_table(&*error) => Err(StoreError::NoTables),
        Err(error) => Err(StoreError::while_("reading the version of its tables")(error)),
    }
}

/// Whether a statement failed because its table does not exist. SQLite has only a general code for it.
fn is_missing_table(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().is_some_and(|code| code == "42P01") || error.message().starts_with("no such table")
}
