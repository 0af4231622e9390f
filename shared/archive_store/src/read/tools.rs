//! Calls of build tools, their targets and their tests.

use model::{
    Attempt, Group, Millis, TargetView, TargetsReply, TargetsRequest, TestView, TestsReply, TestsRequest,
    ToolInvocation, ToolInvocationView, ToolInvocationsReply, ToolInvocationsRequest,
};

use super::{builds::parse, page, query::Query};
use crate::{Store, StoreError, plain::natural, sql::AnswerRow, tool_rows::call};

const LIMIT: usize = 100;
/// Separates the parts of a cursor: no label contains it.
const SEPARATOR: char = '\n';

impl Store {
    /// A page of calls, the one whose first event came last first.
    pub async fn tool_invocations(
        &self,
        request: &ToolInvocationsRequest,
    ) -> Result<ToolInvocationsReply, StoreError> {
        let what = "reading calls of build tools";
        let limit = page::limit(request.limit, LIMIT)?;
        let mut query = Query::new(
            "SELECT place, build_group, tool_invocation, build_id, build_attempt, command, patterns, version, tool_user, \
             tool_host, started_ms, finished_ms, exit_name, exit_code, last_number, complete FROM tool_invocations \
             WHERE place < ",
        );
        query.bind(page::before(request.cursor.as_deref())?);
        query.and_if("build_group =", request.group.as_ref().map(Group::as_str));
        query.and_if("build_id =", request.build.map(|build| build.to_string()));
        match (&request.id, &request.group) {
            (Some(id), Some(group)) => query.and("call =", call(group, id.as_str())),
            (Some(id), None) => query.and("tool_invocation =", id.as_str()),
            (None, _) => &mut query,
        };
        query.add(" ORDER BY place DESC LIMIT ").bind(page::with_next(limit));
        let rows = self.fetch(&query, what).await?;
        let last = rows.get(limit.saturating_sub(1)).filter(|_| rows.len() > limit);
        let next = last.map(|row| row.whole(0)).transpose().map_err(StoreError::while_(what))?;
        let tool_invocations = rows.iter().take(limit).map(invocation).collect::<Result<_, _>>()?;
        Ok(ToolInvocationsReply { tool_invocations, next: next.map(page::cursor) })
    }

    /// A page of the targets of a call, by label.
    pub async fn targets(&self, request: &TargetsRequest) -> Result<TargetsReply, StoreError> {
        let limit = page::limit(request.limit, LIMIT)?;
        let mut query = of_call(
            "SELECT label, aspect, kind, test_size, tags, status, test_status FROM targets WHERE call = ",
            &request.group,
            &request.id,
        );
        query.and_if("status =", request.status.as_deref());
        if let Some(cursor) = &request.cursor {
            let [label, aspect] = parts(cursor)?;
            query.and("(label, aspect) > (", label).add(", ").bind(aspect).add(")");
        }
        query.add(" ORDER BY label, aspect LIMIT ").bind(page::with_next(limit));
        let rows = self.fetch(&query, "reading targets").await?;
        let mut targets = rows.iter().map(target).collect::<Result<Vec<_>, _>>()?;
        let next = cut(&mut targets, limit, |last| {
            format!("{}{SEPARATOR}{}", last.label, last.aspect.as_deref().unwrap_or_default())
        });
        Ok(TargetsReply { targets, next })
    }

    /// A page of the attempts of the tests of a call, by label, run, shard and attempt.
    pub async fn tests(&self, request: &TestsRequest) -> Result<TestsReply, StoreError> {
        let limit = page::limit(request.limit, LIMIT)?;
        let mut query = of_call(
            "SELECT label, run, shard, attempt, status, cached, started_ms, duration_ms, strategy, log, configuration \
             FROM tests WHERE call = ",
            &request.group,
            &request.id,
        );
        query.and_if("status =", request.status.as_deref());
        if let Some(cursor) = &request.cursor {
            let [label, run, shard, attempt, configuration] = parts(cursor)?;
            let number = |text: &str| text.parse::<i64>().map_err(|_| forged(cursor));
            query.and("(label, run, shard, attempt, configuration) > (", label);
            for number in [number(run)?, number(shard)?, number(attempt)?] {
                query.add(", ").bind(number);
            }
            query.add(", ").bind(configuration).add(")");
        }
        query.add(" ORDER BY label, run, shard, attempt, configuration LIMIT ").bind(page::with_next(limit));
        let rows = self.fetch(&query, "reading tests").await?;
        let mut tests = rows.iter().map(test).collect::<Result<Vec<_>, _>>()?;
        let next = cut(&mut tests, limit, |(last, configuration)| {
            let TestView { label, run, shard, attempt, .. } = last;
            [label.clone(), run.to_string(), shard.to_string(), attempt.to_string(), configuration.clone()]
                .join(&SEPARATOR.to_string())
        });
        Ok(TestsReply { tests: tests.into_iter().map(|(test, _)| test).collect(), next })
    }
}

fn of_call(sql: &'static str, group: &Group, id: &ToolInvocation) -> Query {
    let mut query = Query::new(sql);
    query.bind(call(group, id.as_str()));
    query
}

/// Cuts a page to its length; returns the cursor of the next one, if there is one.
fn cut<T>(rows: &mut Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Option<String> {
    let more = rows.len() > limit;
    rows.truncate(limit);
    rows.last().filter(|_| more).map(cursor)
}

fn parts<const N: usize>(cursor: &str) -> Result<[&str; N], StoreError> {
    let parts: Vec<&str> = cursor.split(SEPARATOR).collect();
    parts.try_into().map_err(|_| forged(cursor))
}

fn forged(cursor: &str) -> StoreError {
    StoreError::Cursor { text: cursor.chars().take(80).collect() }
}

fn invocation(row: &AnswerRow) -> Result<ToolInvocationView, StoreError> {
    let failed = |error| StoreError::while_("reading a call of a build tool")(error);
    let text = |column| row.text(column).map_err(failed);
    let integer = |column| row.integer(column).map_err(failed);
    let time = |column| integer(column).map(|at| at.map(|at| Millis(natural(at))));
    let attempt = integer(4)?.map(|attempt| Attempt(u32::try_from(attempt).unwrap_or(u32::MAX)));
    Ok(ToolInvocationView {
        group: parse(&row.word(1).map_err(failed)?)?,
        id: parse(&row.word(2).map_err(failed)?)?,
        build: text(3)?.map(|id| parse(&id)).transpose()?,
        attempt,
        command: text(5)?,
        patterns: text(6)?,
        version: text(7)?,
        user: text(8)?,
        host: text(9)?,
        started_at_ms: time(10)?,
        finished_at_ms: time(11)?,
        exit_name: text(12)?,
        exit_code: integer(13)?,
        events: natural(row.whole(14).map_err(failed)?),
        complete: row.whole(15).map_err(failed)? > 0,
    })
}

fn target(row: &AnswerRow) -> Result<TargetView, StoreError> {
    let failed = |error| StoreError::while_("reading a target")(error);
    let text = |column| row.text(column).map_err(failed);
    Ok(TargetView {
        label: row.word(0).map_err(failed)?,
        aspect: text(1)?.filter(|aspect| !aspect.is_empty()),
        kind: text(2)?,
        test_size: text(3)?,
        tags: text(4)?,
        status: text(5)?,
        test_status: text(6)?,
    })
}

/// A test, and the configuration that is a part of its cursor.
fn test(row: &AnswerRow) -> Result<(TestView, String), StoreError> {
    let failed = |error| StoreError::while_("reading a test")(error);
    let whole = |column| row.whole(column).map_err(failed);
    let number = |column| row.integer(column).map_err(failed).map(|number| number.map(natural));
    let view = TestView {
        label: row.word(0).map_err(failed)?,
        run: whole(1)?,
        shard: whole(2)?,
        attempt: whole(3)?,
        status: row.word(4).map_err(failed)?,
        cached: whole(5)? > 0,
        started_at_ms: number(6)?.map(Millis),
        duration_ms: number(7)?,
        strategy: row.text(8).map_err(failed)?,
        log: row.text(9).map_err(failed)?,
    };
    Ok((view, row.word(10).map_err(failed)?))
}
