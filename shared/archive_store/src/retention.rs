//! Removing what is older than the archive keeps, in small transactions between batches.

use std::{collections::BTreeMap, time::Duration};

use model::{Group, Millis};

use crate::{
    StoreError, Writer,
    plain::{natural, whole},
    sql::{Dialect, Value},
    tool_rows::first_place,
};

/// Maximum number of builds, and of actions, that one sweep removes.
const SWEEP_MAX: i64 = 500;
/// Tables whose rows belong to builds.
const OF_BUILDS: [&str; 9] = [
    "build_records",
    "build_texts",
    "build_properties",
    "outputs",
    "invocations",
    "consoles",
    "console_pieces",
    "tasks",
    "builds",
];

/// Maximum number of calls of build tools that one sweep removes: each has a row for every target and test.
const CALLS_MAX: i64 = 20;
/// Tables whose rows belong to calls of build tools.
const OF_CALLS: [&str; 3] = ["targets", "tests", "tool_invocations"];

/// What the archive keeps.
#[derive(Debug, Clone)]
pub struct Retention {
    /// How long builds, actions and calls of build tools are kept after their submission.
    pub age: Duration,
    /// The same for groups with an age of their own.
    pub age_by_group: BTreeMap<Group, Duration>,
    /// Size in bytes above which the oldest builds are removed; 0: no limit. Only SQLite reports a size that falls when
    /// rows are removed, so it does not apply to PostgreSQL.
    pub size_max: u64,
}

/// A table whose rows have an age.
struct Aged {
    /// Groups that have rows. An index gives them one by one.
    groups: &'static str,
    /// Keys of the oldest rows of group `$1`, at most `$3`, that are older than the limit `$2`.
    old: &'static str,
    /// Maximum number of rows that one sweep removes.
    most: i64,
}

/// The statements on a table with a column of groups; places order its rows by age.
macro_rules! aged {
    ($table:literal, $group:literal, $key:literal, $time:literal, $most:expr) => {
        Aged {
            groups: concat!(
                "WITH RECURSIVE g(name) AS (SELECT MIN(",
                $group,
                ") FROM ",
                $table,
                " UNION ALL SELECT (SELECT MIN(",
                $group,
                ") FROM ",
                $table,
                " WHERE ",
                $group,
                " > g.name) FROM g WHERE g.name IS NOT NULL) ",
                "SELECT name FROM g WHERE name IS NOT NULL"
            ),
            old: concat!(
                "SELECT key FROM (SELECT ",
                $key,
                " AS key, ",
                $time,
                " AS time FROM ",
                $table,
                " WHERE ",
                $group,
                " = $1 ORDER BY place LIMIT $3) s WHERE time < $2"
            ),
            most: $most,
        }
    };
}

const BUILDS: Aged = aged!("builds", "build_group", "place", "submitted_ms", SWEEP_MAX);
const ACTIONS: Aged = aged!("actions", "action_group", "place", "accepted_ms", SWEEP_MAX);
const CALLS: Aged = aged!("tool_invocations", "build_group", "call", "place", CALLS_MAX);

impl Retention {
    /// The oldest time in milliseconds of what is kept of a group at `now`.
    fn limit(&self, group: &str, now: Millis) -> i64 {
        let own = group.parse().ok().and_then(|group: Group| self.age_by_group.get(&group));
        whole(now.0).saturating_sub(whole(bus::millis(own.copied().unwrap_or(self.age))))
    }
}

impl Writer {
    /// Removes some of what is too old at `now`. Returns whether there may be more.
    pub async fn sweep(&mut self, retention: &Retention, now: Millis) -> Result<bool, StoreError> {
        let failed = |error| StoreError::while_("removing old builds")(error);
        let limit = |group: &str| retention.limit(group, now);
        let mut builds = self.old(&BUILDS, limit).await.map_err(failed)?;
        if builds.is_empty() && self.is_too_large(retention).await.map_err(failed)? {
            let oldest = "SELECT place FROM builds WHERE finished_ms IS NOT NULL ORDER BY place LIMIT $1";
            builds = self.keys(oldest, &[SWEEP_MAX.into()]).await.map_err(failed)?;
        }
        let actions = self.old(&ACTIONS, limit).await.map_err(failed)?;
        let calls = self.old(&CALLS, |group| first_place(limit(group))).await.map_err(failed)?;
        if builds.is_empty() && actions.is_empty() && calls.is_empty() {
            return Ok(false);
        }
        let full = |keys: &[i64], of: &Aged| keys.len() as u64 >= natural(of.most);
        let more = full(&builds, &BUILDS) || full(&actions, &ACTIONS) || full(&calls, &CALLS);
        self.transaction("removing old builds", async |writer| {
            for table in OF_BUILDS {
                writer.remove(table, "place", &builds).await.map_err(failed)?;
            }
            if writer.dialect == Dialect::Sqlite {
                writer.remove("build_search", "rowid", &builds).await.map_err(failed)?;
            }
            for table in OF_CALLS {
                writer.remove(table, "call", &calls).await.map_err(failed)?;
            }
            writer.remove("actions", "place", &actions).await.map_err(failed)
        })
        .await?;
        Ok(more)
    }

    /// Keys of rows that are older than the limit of their group.
    async fn old(&mut self, of: &Aged, limit: impl Fn(&str) -> i64) -> Result<Vec<i64>, sqlx::Error> {
        let groups = self.connection.fetch(&of.groups.into(), &[]).await?;
        let mut found = Vec::new();
        for row in &groups {
            let group = row.word(0)?;
            let room = of.most.saturating_sub(whole(found.len() as u64));
            let values = [group.as_str().into(), limit(&group).into(), room.into()];
            found.extend(self.keys(of.old, &values).await?);
        }
        Ok(found)
    }

    async fn keys(&mut self, sql: &'static str, values: &[Value]) -> Result<Vec<i64>, sqlx::Error> {
        let rows = self.connection.fetch(&sql.into(), values).await?;
        rows.iter().map(|row| row.whole(0)).collect()
    }

    async fn remove(
        &mut self,
        table: &'static str,
        column: &'static str,
        keys: &[i64],
    ) -> Result<(), sqlx::Error> {
        if keys.is_empty() {
            return Ok(());
        }
        let rows = self.dialect.list();
        let sql =
            format!("DELETE FROM {table} WHERE {column} IN (SELECT CAST(e.value AS BIGINT) FROM {rows})");
        let list = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        self.run(&sql.into(), &[format!("[{list}]").into()]).await.map(drop)
    }

    async fn is_too_large(&mut self, retention: &Retention) -> Result<bool, sqlx::Error> {
        if retention.size_max == 0 || self.dialect == Dialect::Postgres {
            return Ok(false);
        }
        let sql = "SELECT (page_count - freelist_count) * page_size \
                   FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()";
        let used = self.keys(sql, &[]).await?.first().copied().unwrap_or_default();
        Ok(natural(used) > retention.size_max)
    }
}
