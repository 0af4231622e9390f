//! Past runs of similar builds, and of tasks.

use model::{HistoryOf, HistoryReply, HistoryRequest, Millis};

use super::query::Query;
use crate::{
    Store, StoreError,
    build_rows::command_hash,
    figures::{PastRun, figures},
    plain::{INDEXED_MAX, clean, natural, whole},
    sql::AnswerRow,
};

/// Maximum number of runs that a history reads.
const RUNS_MAX: i64 = 5_000;
const DAYS: u32 = 30;
const DAYS_MAX: u32 = 365;
const DAY_MS: i64 = 86_400_000;

impl Store {
    /// Figures by day of the last runs, up to `now`.
    pub async fn history(&self, request: &HistoryRequest, now: Millis) -> Result<HistoryReply, StoreError> {
        let days = request.days.unwrap_or(DAYS);
        if !(1..=DAYS_MAX).contains(&days) {
            return Err(StoreError::Request(format!("invalid field days {days}: expected 1 to {DAYS_MAX}")));
        }
        let since = whole(now.0).saturating_sub(i64::from(days) * DAY_MS);
        let mut query = match &request.of {
            HistoryOf::Task(task) => task_runs(task),
            HistoryOf::Test(label) => test_runs(label),
            HistoryOf::Command(line) => {
                let mut places = Query::new("SELECT place FROM builds WHERE command_hash = ");
                places.bind(command_hash(line)).add(" ORDER BY place DESC LIMIT ").bind(RUNS_MAX);
                build_runs(&places)
            }
            HistoryOf::Label(label) => {
                let expected =
                    || StoreError::Request(format!("invalid label {label:?}: expected NAME=VALUE"));
                let (name, value) = label.split_once('=').ok_or_else(expected)?;
                let mut places =
                    Query::new("SELECT place FROM build_properties WHERE kind = 'label' AND name = ");
                places.bind(clean(name, INDEXED_MAX)).and("value =", clean(value, INDEXED_MAX));
                places.add(" ORDER BY place DESC LIMIT ").bind(RUNS_MAX);
                build_runs(&places)
            }
        };
        query.and_if("b.build_group =", request.group.as_ref().map(model::Group::as_str));
        let rows = self.fetch(&query, "reading a history").await?;
        // Runs without a result are among the places that were read; a few are not counted here.
        let truncated = rows.len() as u64 >= natural(RUNS_MAX);
        let mut runs = rows
            .iter()
            .map(read)
            .collect::<Result<Vec<_>, _>>()
            .map_err(StoreError::while_("reading a run"))?;
        runs.sort_by_key(|(place, ..)| std::cmp::Reverse(*place));
        let recent = runs.into_iter().filter(|(_, ended, _)| *ended >= since).map(|(.., run)| run);
        Ok(figures(&recent.collect::<Vec<_>>(), truncated))
    }
}

fn build_runs(places: &Query) -> Query {
    let mut query =
        Query::new("SELECT b.place, b.finished_ms, b.outcome, b.finished_ms - b.started_ms FROM (");
    query.values.clone_from(&places.values);
    query.sql.push_str(&places.sql);
    query.add(") s CROSS JOIN builds b WHERE b.place = s.place AND b.finished_ms IS NOT NULL ");
    query.add("AND b.outcome IN ('succeeded', 'failed', 'timed_out', 'lost')");
    query
}

fn task_runs(task: &str) -> Query {
    let mut query = Query::new("SELECT s.place, s.ended_ms, s.status, s.wall_ms FROM ");
    query.add("(SELECT place, ended_ms, status, wall_ms FROM tasks WHERE task = ").bind(task);
    query.add(" ORDER BY place DESC LIMIT ").bind(RUNS_MAX);
    query.add(") s CROSS JOIN builds b WHERE b.place = s.place AND s.status <> 'skipped'");
    query
}

/// Runs of a test that ended; a flaky one passed at last, and its attempts are runs of their own.
fn test_runs(label: &str) -> Query {
    let mut query = Query::new("SELECT s.place, s.place / 1048576, s.outcome, s.duration_ms FROM ");
    query.add("(SELECT place, call, duration_ms, CASE WHEN status IN ('passed', 'flaky') THEN 'succeeded' ELSE status END ");
    query.add(
        "AS outcome FROM tests WHERE cached = 0 AND status IN ('passed', 'flaky', 'timeout', 'failed', ",
    );
    query.add("'remote_failure') AND label = ").bind(clean(label, INDEXED_MAX));
    query.add(" ORDER BY place DESC LIMIT ").bind(RUNS_MAX);
    query.add(") s CROSS JOIN tool_invocations b WHERE b.call = s.call");
    query
}

fn read(row: &AnswerRow) -> Result<(i64, i64, PastRun), sqlx::Error> {
    let (place, ended, outcome) = (row.whole(0)?, row.whole(1)?, row.word(2)?);
    let took_ms = natural(row.integer(3)?.unwrap_or_default().max(0));
    Ok((place, ended, PastRun { day: ended.div_euclid(DAY_MS), passed: outcome == "succeeded", took_ms }))
}
