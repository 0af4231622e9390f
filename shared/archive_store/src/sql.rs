//! One way to run statements on SQLite and PostgreSQL. The statements are the same but for what [`Dialect`] names.

use std::sync::Arc;

use sqlx::{
    AssertSqlSafe, Connection as _, Row as _, Sqlite,
    pool::PoolConnection,
    postgres::{PgConnection, PgRow, Postgres},
    sqlite::{SqliteConnection, SqliteRow},
};

/// A database that the archive can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
}

/// SQL text that this crate wrote: it never contains data.
pub(crate) type Sql = Arc<str>;

/// A bound value. The parameters of a statement are `$1`, `$2` and so on.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Integer(i64),
    Text(String),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

/// A row of an answer. Its columns are integers, text and bytes only.
pub(crate) enum AnswerRow {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

impl AnswerRow {
    pub(crate) fn integer(&self, column: usize) -> Result<Option<i64>, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }

    pub(crate) fn text(&self, column: usize) -> Result<Option<String>, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }

    pub(crate) fn bytes(&self, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }

    /// The integer of a column that is never NULL.
    pub(crate) fn whole(&self, column: usize) -> Result<i64, sqlx::Error> {
        self.integer(column)?.ok_or_else(|| null(column))
    }

    /// The text of a column that is never NULL.
    pub(crate) fn word(&self, column: usize) -> Result<String, sqlx::Error> {
        self.text(column)?.ok_or_else(|| null(column))
    }
}

fn null(column: usize) -> sqlx::Error {
    sqlx::Error::ColumnDecode { index: column.to_string(), source: "the value is NULL".into() }
}

/// A connection to either database.
pub(crate) enum Connection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    SqliteReader(PoolConnection<Sqlite>),
    PostgresReader(PoolConnection<Postgres>),
}

/// Binds `$values` to the statement `$sql`.
macro_rules! bound {
    ($sql:expr, $values:expr) => {{
        let mut query = sqlx::query(AssertSqlSafe(Arc::clone($sql)));
        for value in $values {
            query = match value {
                Value::Integer(value) => query.bind(*value),
                Value::Text(value) => query.bind(value.as_str()),
            };
        }
        query
    }};
}

impl Connection {
    /// Runs a statement; returns the number of changed rows.
    pub(crate) async fn execute(&mut self, sql: &Sql, values: &[Value]) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(to) => bound!(sql, values).execute(to).await?.rows_affected(),
            Self::SqliteReader(to) => bound!(sql, values).execute(&mut **to).await?.rows_affected(),
            Self::Postgres(to) => bound!(sql, values).execute(to).await?.rows_affected(),
            Self::PostgresReader(to) => bound!(sql, values).execute(&mut **to).await?.rows_affected(),
        })
    }

    /// Runs a query; returns all its rows.
    pub(crate) async fn fetch(&mut self, sql: &Sql, values: &[Value]) -> Result<Vec<AnswerRow>, sqlx::Error> {
        let (of_sqlite, of_postgres) = match self {
            Self::Sqlite(to) => (bound!(sql, values).fetch_all(to).await?, Vec::new()),
            Self::SqliteReader(to) => (bound!(sql, values).fetch_all(&mut **to).await?, Vec::new()),
            Self::Postgres(to) => (Vec::new(), bound!(sql, values).fetch_all(to).await?),
            Self::PostgresReader(to) => (Vec::new(), bound!(sql, values).fetch_all(&mut **to).await?),
        };
        let rows = of_sqlite.into_iter().map(AnswerRow::Sqlite);
        Ok(rows.chain(of_postgres.into_iter().map(AnswerRow::Postgres)).collect())
    }

    /// Closes a writer's connection, which releases the right to write; a reader's goes back to its pool.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(connection) => connection.close().await,
            Self::Postgres(connection) => connection.close().await,
            Self::SqliteReader(_) | Self::PostgresReader(_) => Ok(()),
        }
    }
}

/// Type of a column in a statement that writes many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Integer,
    Text,
    /// Bytes, in hexadecimal in the JSON.
    Bytes,
}

impl Dialect {
    /// The rows of the JSON array `$1`, each an array: a table `e` with one column `value`.
    pub(crate) fn rows(self) -> &'static str {
        match self {
            Self::Sqlite => "json_each($1) AS e",
            Self::Postgres => "jsonb_array_elements(CAST(CAST($1 AS TEXT) AS JSONB)) AS e(value)",
        }
    }

    /// The elements of the JSON array `$1` of numbers: a table `e` with one column `value`.
    pub(crate) fn list(self) -> &'static str {
        match self {
            Self::Sqlite => "json_each($1) AS e",
            Self::Postgres => "jsonb_array_elements_text(CAST(CAST($1 AS TEXT) AS JSONB)) AS e(value)",
        }
    }

    /// The value in column `index` of a row of [`Self::rows`].
    pub(crate) fn column(self, index: usize, kind: Kind) -> String {
        match (kind, self) {
            (Kind::Integer, _) => format!("CAST(e.value ->> {index} AS BIGINT)"),
            (Kind::Text, _) => format!("CAST(e.value ->> {index} AS TEXT)"),
            (Kind::Bytes, Self::Sqlite) => format!("unhex(e.value ->> {index})"),
            (Kind::Bytes, Self::Postgres) => format!("decode(e.value ->> {index}, 'hex')"),
        }
    }

    /// The statement that starts a writing transaction.
    pub(crate) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
        }
    }

    /// The larger of two values.
    pub(crate) fn greatest(self) -> &'static str {
        match self {
            Self::Sqlite => "MAX",
            Self::Postgres => "GREATEST",
        }
    }

    /// The smaller of two values.
    pub(crate) fn least(self) -> &'static str {
        match self {
            Self::Sqlite => "MIN",
            Self::Postgres => "LEAST",
        }
    }
}
