//! Removing the oldest rows of an archive that is too large: builds, actions, calls of build tools, audit events, and
//! messages that were set aside, alike by their time.

use crate::{
    StoreError, Writer,
    plain::{natural, whole},
    retention::OldRows,
    sql::{Dialect, Value},
};

/// Number of rows that are removed before the size is read again, each with all that belongs to it.
const STEP: usize = 10;
/// Number of rows after which a transaction removes no more, so that batches can be written.
const ROWS_MAX: u64 = 50_000;
const REMOVING: &str = "removing the oldest builds of an archive that is too large";

/// A row that has a time of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Build,
    Action,
    Call,
    SetAside,
    Audit,
}

/// The oldest rows of each kind: key and time in milliseconds.
const OLDEST: [(Kind, &str); 5] = [
    (
        Kind::Build,
        "SELECT place, submitted_ms FROM builds WHERE finished_ms IS NOT NULL ORDER BY place LIMIT $1",
    ),
    (Kind::Action, "SELECT place, accepted_ms FROM actions ORDER BY place LIMIT $1"),
    (Kind::Call, "SELECT call, place / 1048576 FROM tool_invocations ORDER BY place LIMIT $1"),
    (Kind::SetAside, "SELECT at_ms, at_ms FROM set_aside ORDER BY at_ms LIMIT $1"),
    (Kind::Audit, "SELECT at_ms, at_ms FROM audit ORDER BY at_ms LIMIT $1"),
];

impl Writer {
    /// Removes some of the oldest rows while the archive is larger than `size_max` bytes. Returns whether there may be more.
    pub(crate) async fn sweep_by_size(&mut self, size_max: u64) -> Result<bool, StoreError> {
        let failed = |error| StoreError::while_(REMOVING)(error);
        if !self.is_too_large(size_max).await.map_err(failed)? {
            return Ok(false);
        }
        self.transaction(REMOVING, async |writer| {
            let mut removed = 0;
            while removed < ROWS_MAX {
                let step = writer.remove_oldest().await.map_err(failed)?;
                if step == 0 || !writer.is_too_large(size_max).await.map_err(failed)? {
                    return Ok(false);
                }
                removed += step;
            }
            Ok(true)
        })
        .await
    }

    /// Removes the oldest rows of all kinds together. Returns their number.
    async fn remove_oldest(&mut self) -> Result<u64, sqlx::Error> {
        let mut oldest: Vec<(i64, Kind, i64)> = Vec::new();
        for (kind, sql) in OLDEST {
            let most = Value::Integer(whole(STEP as u64));
            for row in self.connection.fetch(&sql.into(), &[most]).await? {
                oldest.push((row.whole(1)?, kind, row.whole(0)?));
            }
        }
        oldest.sort_unstable();
        oldest.truncate(STEP);
        let of =
            |wanted: Kind| oldest.iter().filter(move |(_, kind, _)| *kind == wanted).map(|(.., key)| *key);
        let before = |kind| of(kind).max().map_or(0, |at: i64| at.saturating_add(1));
        let old = OldRows {
            builds: of(Kind::Build).collect(),
            actions: of(Kind::Action).collect(),
            calls: of(Kind::Call).collect(),
            set_aside_before: before(Kind::SetAside),
            audit_before: before(Kind::Audit),
        };
        self.remove_rows(&old).await
    }

    /// Whether rows take more than this size in bytes. Only SQLite has a size that falls when rows are removed.
    async fn is_too_large(&mut self, size_max: u64) -> Result<bool, sqlx::Error> {
        if size_max == 0 || self.dialect == Dialect::Postgres {
            return Ok(false);
        }
        let sql = "SELECT (page_count - freelist_count) * page_size \
                   FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()";
        let used = self.keys(sql, &[]).await?.first().copied().unwrap_or_default();
        Ok(natural(used) > size_max)
    }
}
