//! How files of SQLite are opened.

use std::{path::Path, time::Duration};

use sqlx::{ConnectOptions as _, sqlite::SqliteConnectOptions};

/// How long SQLite waits for another process that writes.
const BUSY: Duration = Duration::from_secs(5);
/// How much of a file is mapped into memory, in bytes.
const MAPPED: &str = "1073741824";

/// Options for writing and for reading.
pub(crate) fn sqlite(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY)
        .foreign_keys(false)
        .pragma("mmap_size", MAPPED)
        .pragma("temp_store", "memory")
        .disable_statement_logging()
}
