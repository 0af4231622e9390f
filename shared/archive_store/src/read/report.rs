//! Builds and actions by priority.

use std::collections::BTreeMap;

use model::{Group, Priority, PriorityReport, ReportReply, ReportRequest};

use super::query::Query;
use crate::{
    Store, StoreError,
    plain::{natural, whole},
    sql::AnswerRow,
};

/// Maximum number of builds, and of actions, that a report reads: the newest.
const ROWS_MAX: i64 = 1_000_000;
const READING: &str = "reading a report";

impl Store {
    /// What builds and actions of each priority cost since a time.
    pub async fn report(&self, request: &ReportRequest) -> Result<ReportReply, StoreError> {
        let builds = self.by_priority(&builds(request)).await?;
        let actions = self.by_priority(&actions(request)).await?;
        let sum = |rows: &BTreeMap<String, Sums>| rows.values().map(|sums| sums.rows).sum::<u64>();
        let (all, read) = (sum(&builds), natural(ROWS_MAX));
        let of = |priority: Priority| {
            let (of_builds, of_actions) = (builds.get(priority.as_str()), actions.get(priority.as_str()));
            let mean = |index: usize| of_builds?.means.get(index).copied().flatten();
            let count = |sums: Option<&Sums>| sums.map_or(0, |sums| sums.rows);
            PriorityReport {
                priority,
                builds: count(of_builds),
                share: if all == 0 { 0.0 } else { count(of_builds) as f64 / all as f64 },
                size_bytes: mean(0),
                targets: mean(1),
                queue_ms: mean(2),
                preparation_ms: mean(3),
                execution_ms: mean(4),
                actions: count(of_actions),
                action_queue_ms: of_actions.and_then(|sums| sums.means.first().copied().flatten()),
            }
        };
        let truncated = all >= read || sum(&actions) >= read;
        Ok(ReportReply { priorities: Priority::ALL.map(of).into(), truncated })
    }

    async fn by_priority(&self, query: &Query) -> Result<BTreeMap<String, Sums>, StoreError> {
        let rows = self.fetch(query, READING).await?;
        rows.iter().map(Sums::read).collect::<Result<_, _>>().map_err(StoreError::while_(READING))
    }
}

/// Figures of the rows of a priority.
struct Sums {
    rows: u64,
    means: Vec<Option<f64>>,
}

impl Sums {
    /// Reads priority and number of rows, then a sum and a number of values for each mean.
    fn read(row: &AnswerRow) -> Result<(String, Self), sqlx::Error> {
        let (priority, rows, columns) = (row.word(0)?, natural(row.whole(1)?), row.whole(2)?);
        let mut means = Vec::new();
        for column in (3..).step_by(2).take(usize::try_from(columns).unwrap_or_default()) {
            let (sum, count) = (row.integer(column)?, row.whole(column + 1)?);
            means.push(sum.filter(|_| count > 0).map(|sum| sum as f64 / count as f64));
        }
        Ok((priority, Self { rows, means }))
    }
}

fn builds(request: &ReportRequest) -> Query {
    let mut query = Query::new(
        "SELECT b.priority, COUNT(*), CAST(5 AS BIGINT), \
         CAST(SUM(b.build_bytes) AS BIGINT), COUNT(b.build_bytes), \
         CAST(SUM(b.target_count) AS BIGINT), COUNT(b.target_count), \
         CAST(SUM(b.started_ms - b.enqueued_ms) AS BIGINT), COUNT(b.started_ms), \
         CAST(SUM(i.prepared_ms - i.started_ms) AS BIGINT), COUNT(i.prepared_ms - i.started_ms), \
         CAST(SUM(b.finished_ms - COALESCE(i.prepared_ms, b.started_ms)) AS BIGINT), \
         COUNT(b.finished_ms - b.started_ms) \
         FROM (SELECT place, attempt, priority, build_bytes, target_count, enqueued_ms, started_ms, finished_ms \
         FROM builds WHERE submitted_ms >= ",
    );
    query.bind(whole(request.since_ms.0)).add(" AND (outcome IS NULL OR outcome <> 'rejected')");
    query.and_if("build_group =", request.group.as_ref().map(Group::as_str));
    query.add(" ORDER BY submitted_ms DESC, place DESC LIMIT ").bind(ROWS_MAX);
    query.add(
        ") b LEFT JOIN invocations i ON i.place = b.place AND i.attempt = b.attempt GROUP BY b.priority",
    );
    query
}

/// Places of actions follow their time, so that the newest are found without an index of times.
fn actions(request: &ReportRequest) -> Query {
    let mut query = Query::new(
        "SELECT band, COUNT(*), CAST(1 AS BIGINT), CAST(SUM(queue_ms) AS BIGINT), COUNT(queue_ms) \
         FROM (SELECT band, queue_ms, accepted_ms, action_group FROM actions ORDER BY place DESC LIMIT ",
    );
    query.bind(ROWS_MAX).add(") a WHERE accepted_ms >= ").bind(whole(request.since_ms.0));
    query.and_if("action_group =", request.group.as_ref().map(Group::as_str)).add(" GROUP BY band");
    query
}
