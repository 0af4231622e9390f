//! Errors of the archive's database.

/// Messages of SQLite's general error that are about values.
const ABOUT_VALUES: [&str; 2] = ["integer overflow", "malformed JSON"];

/// An error of the archive's database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The setting `archive_url` is not a URL of a database.
    #[error("invalid archive_url {url:?}: expected postgres://... or the path of a SQLite file")]
    Url { url: String },
    #[error("cannot open {path}")]
    File {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The file of the database was removed or replaced while it was open.
    #[error(
        "{path} is not the file any more that the archive had opened: it was removed or replaced; starting over with what is there"
    )]
    Replaced { path: String },
    #[error(
        "{path} is damaged, or is not a database of SQLite; put a backup in its place, or move it away with its -wal file: \
         then the archive is built again from the streams"
    )]
    Damaged {
        path: String,
        #[source]
        source: Box<StoreError>,
    },
    #[error("the archive's database failed while {what}")]
    Database {
        what: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot bring the archive's tables to this version")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// The process that writes the archive has not yet created its tables, or not yet changed them to this version.
    #[error(
        "the archive has no tables of this version yet: the process that writes it creates them when it starts; retry, and \
         look at its log if they do not come"
    )]
    NoTables,
    /// Another process moved the cursor: it writes, and this one must not.
    #[error("another process has written to the archive: expected the cursor of {stream} at {expected}")]
    Overtaken {
        stream: &'static str,
        /// The position that this process wrote last.
        expected: i64,
    },
    #[error("the archive contains an unreadable record of a build")]
    Record(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("invalid cursor {text:?}: expected the `next` of an earlier reply")]
    Cursor { text: String },
    /// The request can never be answered.
    #[error("{0}")]
    Request(String),
}

impl StoreError {
    pub(crate) fn while_(what: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { what, source }
    }

    /// Whether the database refuses these rows, and not all rows: a smaller batch may succeed.
    pub fn is_about_rows(&self) -> bool {
        let Self::Database { source: sqlx::Error::Database(error), .. } = self else { return false };
        // PostgreSQL: classes of the SQL standard for data and constraints, and program limits. SQLite: constraint,
        // mismatch, too big, and the general error if a function refuses a value: others, as of a missing table, have the
        // same code.
        let code = error.code().unwrap_or_default();
        match code.parse::<u32>() {
            Ok(1) => ABOUT_VALUES.iter().any(|text| error.message().contains(text)),
            Ok(number) if code.len() < 5 => matches!(number & 0xff, 18..=20),
            Ok(_) | Err(_) => ["22", "23", "54"].iter().any(|class| code.starts_with(class)),
        }
    }

    /// Whether the content of a SQLite file is not a sound database.
    pub(crate) fn is_damage(&self) -> bool {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = next {
            if let Some(sqlx::Error::Database(found)) = error.downcast_ref::<sqlx::Error>() {
                // SQLITE_CORRUPT and SQLITE_NOTADB, with any detail.
                let code = found.code().and_then(|code| code.parse::<u32>().ok());
                return code.is_some_and(|code| matches!(code & 0xff, 11 | 26));
            }
            next = error.source();
        }
        false
    }

    /// Whether the request is at fault, and not the database.
    pub fn is_misuse(&self) -> bool {
        matches!(self, Self::Cursor { .. } | Self::Request(_) | Self::Url { .. })
    }
}
