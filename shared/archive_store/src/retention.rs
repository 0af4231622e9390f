//! Removing what is older than the archive keeps, in small transactions between batches.

use std::time::Duration;

use model::Millis;

use crate::{
    StoreError, Writer,
    plain::{natural, whole},
    sql::{Dialect, Value},
    tool_rows::first_place,
};

/// Maximum number of builds, and of actions, that one sweep removes.
const SWEEP_MAX: i64 = 500;
/// Tables whose rows belong to builds.
const OF_BUILDS: [&str; 8] = [
    "build_records",
    "build_texts",
    "build_properties",
    "outputs",
    "invocations",
    "consoles",
    "tasks",
    "builds",
];

/// Maximum number of calls of build tools that one sweep removes: each has a row for every target and test.
const CALLS_MAX: i64 = 20;
/// Tables whose rows belong to calls of build tools.
const OF_CALLS: [&str; 3] = ["targets", "tests", "tool_invocations"];

/// What the archive keeps.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// How long builds and actions are kept after their submission.
    pub age: Duration,
    /// Size in bytes above which the oldest builds are removed; 0: no limit. Only SQLite reports a size that falls when
    /// rows are removed, so it does not apply to PostgreSQL.
    pub size_max: u64,
}

impl Writer {
    /// Removes some of what is too old at `now`. Returns whether there may be more.
    pub async fn sweep(&mut self, retention: Retention, now: Millis) -> Result<bool, StoreError> {
        let failed = |error| StoreError::while_("removing old builds")(error);
        let limit = Value::Integer(whole(now.0).saturating_sub(whole(bus::millis(retention.age))));
        let mut old = self
            .places(
                "SELECT place FROM builds WHERE submitted_ms < $1 ORDER BY submitted_ms, place LIMIT $2",
                &[limit.clone(), SWEEP_MAX.into()],
            )
            .await
            .map_err(failed)?;
        if old.is_empty() && self.is_too_large(retention).await.map_err(failed)? {
            let oldest = "SELECT place FROM builds WHERE finished_ms IS NOT NULL ORDER BY place LIMIT $1";
            old = self.places(oldest, &[SWEEP_MAX.into()]).await.map_err(failed)?;
        }
        let actions = self
            .places(
                "SELECT place FROM (SELECT place, accepted_ms FROM actions ORDER BY place LIMIT $2) s WHERE accepted_ms < $1",
                &[limit, SWEEP_MAX.into()],
            )
            .await
            .map_err(failed)?;
        let first = first_place(whole(now.0).saturating_sub(whole(bus::millis(retention.age))));
        let calls = self
            .places(
                "SELECT call FROM tool_invocations WHERE place < $1 ORDER BY place LIMIT $2",
                &[first.into(), CALLS_MAX.into()],
            )
            .await
            .map_err(failed)?;
        if old.is_empty() && actions.is_empty() && calls.is_empty() {
            return Ok(false);
        }
        let more = old.len().max(actions.len()) as u64 >= natural(SWEEP_MAX)
            || calls.len() as u64 >= natural(CALLS_MAX);
        self.transaction("removing old builds", async |writer| {
            for table in OF_BUILDS {
                writer.remove(table, "place", &old).await.map_err(failed)?;
            }
            if writer.dialect == Dialect::Sqlite {
                writer.remove("build_search", "rowid", &old).await.map_err(failed)?;
            }
            for table in OF_CALLS {
                writer.remove(table, "call", &calls).await.map_err(failed)?;
            }
            writer.remove("actions", "place", &actions).await.map_err(failed)
        })
        .await?;
        Ok(more)
    }

    async fn places(&mut self, sql: &'static str, values: &[Value]) -> Result<Vec<i64>, sqlx::Error> {
        let rows = self.connection.fetch(&sql.into(), values).await?;
        rows.iter().map(|row| row.whole(0)).collect()
    }

    async fn remove(
        &mut self,
        table: &'static str,
        column: &'static str,
        places: &[i64],
    ) -> Result<(), sqlx::Error> {
        if places.is_empty() {
            return Ok(());
        }
        let rows = match self.dialect {
            Dialect::Sqlite => "SELECT value FROM json_each($1)",
            Dialect::Postgres => {
                "SELECT CAST(value AS BIGINT) FROM jsonb_array_elements_text(CAST(CAST($1 AS TEXT) AS JSONB))"
            }
        };
        let sql = format!("DELETE FROM {table} WHERE {column} IN ({rows})");
        let list = places.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        self.run(&sql.into(), &[format!("[{list}]").into()]).await.map(drop)
    }

    async fn is_too_large(&mut self, retention: Retention) -> Result<bool, sqlx::Error> {
        if retention.size_max == 0 || self.dialect == Dialect::Postgres {
            return Ok(false);
        }
        let sql = "SELECT (page_count - freelist_count) * page_size \
                   FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()";
        let used = self.places(sql, &[]).await?.first().copied().unwrap_or_default();
        Ok(natural(used) > retention.size_max)
    }
}
