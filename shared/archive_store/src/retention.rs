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

const REMOVING: &str = "removing old builds";

/// Rows that are removed together: places of builds and actions, and calls.
pub(crate) struct OldRows {
    pub(crate) builds: Vec<i64>,
    pub(crate) actions: Vec<i64>,
    pub(crate) calls: Vec<i64>,
    /// Messages that were set aside are removed if they are older than this, in milliseconds.
    pub(crate) set_aside_before: i64,
    /// The same for audit events.
    pub(crate) audit_before: i64,
}

/// What the archive keeps.
#[derive(Debug, Clone)]
pub struct Retention {
    /// How long builds, actions and calls of build tools are kept after their submission.
    pub age: Duration,
    /// The same for groups with an age of their own.
    pub age_by_group: BTreeMap<Group, Duration>,
    /// Size in bytes above which the oldest rows are removed; 0: no limit. Only SQLite reports a size that falls when
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

fn failed(error: sqlx::Error) -> StoreError {
    StoreError::while_(REMOVING)(error)
}

impl Retention {
    /// The oldest time in milliseconds of what is kept of a group at `now`.
    fn limit(&self, group: &str, now: Millis) -> i64 {
        let own = group.parse().ok().and_then(|group: Group| self.age_by_group.get(&group));
        whole(now.0).saturating_sub(whole(bus::millis(own.copied().unwrap_or(self.age))))
    }
}

impl Writer {
    /// Removes some of what is too old at `now`, or of the oldest rows if the archive is too large. Returns whether
    /// there may be more.
    pub async fn sweep(&mut self, retention: &Retention, now: Millis) -> Result<bool, StoreError> {
        self.check_file()?;
        let by_age = self.sweep_by_age(retention, now).await?;
        Ok(self.sweep_by_size(retention.size_max).await? || by_age)
    }

    async fn sweep_by_age(&mut self, retention: &Retention, now: Millis) -> Result<bool, StoreError> {
        let limit = |group: &str| retention.limit(group, now);
        let builds = self.old(&BUILDS, limit).await.map_err(failed)?;
        let actions = self.old(&ACTIONS, limit).await.map_err(failed)?;
        let calls = self.old(&CALLS, |group| first_place(limit(group))).await.map_err(failed)?;
        let set_aside_before = whole(now.0).saturating_sub(whole(bus::millis(retention.age)));
        let full = |keys: &[i64], of: &Aged| keys.len() as u64 >= natural(of.most);
        let more = full(&builds, &BUILDS) || full(&actions, &ACTIONS) || full(&calls, &CALLS);
        let audit_before = set_aside_before;
        let old = OldRows { builds, actions, calls, set_aside_before, audit_before };
        self.transaction(REMOVING, async |writer| writer.remove_rows(&old).await.map_err(failed)).await?;
        Ok(more)
    }

    /// Removes rows, and all that belongs to them. Returns their number.
    pub(crate) async fn remove_rows(&mut self, old: &OldRows) -> Result<u64, sqlx::Error> {
        let mut removed = self.remove_builds(&old.builds).await?;
        for table in OF_CALLS {
            removed += self.remove(table, "call", &old.calls).await?;
        }
        removed += self.remove("actions", "place", &old.actions).await?;
        let set_aside = "DELETE FROM set_aside WHERE at_ms < $1".into();
        removed += self.run(&set_aside, &[old.set_aside_before.into()]).await?;
        let audit = "DELETE FROM audit WHERE at_ms < $1".into();
        Ok(removed + self.run(&audit, &[old.audit_before.into()]).await?)
    }

    /// Removes the builds at these places. Returns the number of rows.
    pub(crate) async fn remove_builds(&mut self, places: &[i64]) -> Result<u64, sqlx::Error> {
        let mut removed = 0;
        for table in OF_BUILDS {
            removed += self.remove(table, "place", places).await?;
        }
        if self.dialect == Dialect::Sqlite {
            removed += self.remove("build_search", "rowid", places).await?;
        }
        Ok(removed)
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

    pub(crate) async fn keys(
        &mut self,
        sql: &'static str,
        values: &[Value],
    ) -> Result<Vec<i64>, sqlx::Error> {
        let rows = self.connection.fetch(&sql.into(), values).await?;
        rows.iter().map(|row| row.whole(0)).collect()
    }

    async fn remove(
        &mut self,
        table: &'static str,
        column: &'static str,
        keys: &[i64],
    ) -> Result<u64, sqlx::Error> {
        if keys.is_empty() {
            return Ok(0);
        }
        let rows = self.dialect.list();
        let sql =
            format!("DELETE FROM {table} WHERE {column} IN (SELECT CAST(e.value AS BIGINT) FROM {rows})");
        let list = keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        self.run(&sql.into(), &[format!("[{list}]").into()]).await
    }
}
