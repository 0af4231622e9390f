//! The results of tests in several calls of build tools.

use model::{TestGridCall, TestGridReply, TestGridRequest};

use super::{builds::parse, page, query::Query};
use crate::{
    Store, StoreError,
    grid::{self, Attempt},
    plain::natural,
    sql::AnswerRow,
};

const CALLS: usize = 30;
const CALLS_MAX: usize = 100;
/// Number of the last calls among which those with tests are sought.
const CALLS_SEEN: i64 = 1_000;
const TESTS_MAX: usize = 1_000;
/// Maximum number of attempts that are read.
const ATTEMPTS_MAX: i64 = 50_000;
const WHAT: &str = "reading a grid of tests";

impl Store {
    /// The results of tests in the last calls of build tools that ran tests.
    pub async fn test_grid(&self, request: &TestGridRequest) -> Result<TestGridReply, StoreError> {
        let calls = request.calls.unwrap_or(CALLS);
        if !(1..=CALLS_MAX).contains(&calls) {
            return Err(StoreError::Request(format!(
                "invalid field calls {calls}: expected 1 to {CALLS_MAX}"
            )));
        }
        let mut query = Query::new(
            "SELECT c.call, c.build_group, c.tool_invocation, c.build_id, c.started_ms FROM (SELECT call, place, \
             build_group, tool_invocation, build_id, started_ms FROM tool_invocations WHERE place < ",
        );
        query.bind(i64::MAX);
        query.and_if("build_group =", request.group.as_ref().map(model::Group::as_str));
        query.add(" ORDER BY place DESC LIMIT ").bind(CALLS_SEEN);
        query.add(
            ") c WHERE EXISTS (SELECT 1 FROM tests t WHERE t.call = c.call) ORDER BY c.place DESC LIMIT ",
        );
        query.bind(page::with_next(calls).saturating_sub(1));
        let rows = self.fetch(&query, WHAT).await?;
        let found: Vec<(i64, TestGridCall)> = rows.iter().map(call).collect::<Result<_, _>>()?;
        let (numbers, calls): (Vec<i64>, Vec<TestGridCall>) = found.into_iter().unzip();
        let (attempts, is_cut) = self.attempts(&numbers, request.text.as_deref()).await?;
        let rows = grid::rows(&attempts).into_iter().map(|row| (row.label.clone(), row)).collect();
        let (tests, next) = page::cut(rows, TESTS_MAX);
        Ok(TestGridReply { calls, tests, truncated: is_cut || next.is_some() })
    }

    /// The attempts of all tests in these calls whose label contains a text, and whether some were left out.
    async fn attempts(&self, calls: &[i64], text: Option<&str>) -> Result<(Vec<Attempt>, bool), StoreError> {
        let (mut attempts, mut left) = (Vec::new(), ATTEMPTS_MAX);
        for (number, call) in calls.iter().enumerate() {
            let mut query = Query::new(
                "SELECT label, run, shard, configuration, status, cached, duration_ms FROM tests WHERE call = ",
            );
            query.bind(*call).add(" ORDER BY label, run, shard, attempt, configuration LIMIT ").bind(left);
            let rows = self.fetch(&query, WHAT).await?;
            left -= i64::try_from(rows.len()).unwrap_or(left);
            for row in &rows {
                let attempt = attempt(number, row).map_err(StoreError::while_(WHAT))?;
                if text.is_none_or(|text| attempt.label.contains(text)) {
                    attempts.push(attempt);
                }
            }
            if left <= 0 {
                return Ok((attempts, true));
            }
        }
        Ok((attempts, false))
    }
}

fn call(row: &AnswerRow) -> Result<(i64, TestGridCall), StoreError> {
    let failed = |error| StoreError::while_(WHAT)(error);
    let build = row.text(3).map_err(failed)?;
    let view = TestGridCall {
        group: parse(&row.word(1).map_err(failed)?)?,
        id: parse(&row.word(2).map_err(failed)?)?,
        build: build.as_deref().map(parse).transpose()?,
        started_at_ms: row.integer(4).map_err(failed)?.map(|at| model::Millis(natural(at))),
    };
    Ok((row.whole(0).map_err(failed)?, view))
}

fn attempt(call: usize, row: &AnswerRow) -> Result<Attempt, sqlx::Error> {
    Ok(Attempt {
        call,
        label: row.word(0)?,
        part: (row.whole(1)?, row.whole(2)?, row.word(3)?),
        status: row.word(4)?,
        cached: row.whole(5)? > 0,
        duration_ms: row.integer(6)?.map(natural),
    })
}
