//! Calls of build tools, their targets and their tests.

use model::{
    Attempt, Group, Millis, TargetView, TargetsReply, TargetsRequest, TestView, TestsReply, TestsRequest,
    ToolInvocation, ToolInvocationView, ToolInvocationsReply, ToolInvocationsRequest,
};

use super::{builds::parse, page, query::Query};
use crate::{Store, StoreError, plain::natural, sql::AnswerRow, tool_rows::call};

const LIMIT: usize = 100;

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
        let place = |row: &AnswerRow| row.whole(0).map_err(StoreError::while_(what));
        let found =
            rows.iter().map(|row| Ok((place(row)?, invocation(row)?))).collect::<Result<_, StoreError>>()?;
        let (tool_invocations, next) = page::cut(found, limit);
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
            let [label, aspect] = page::texts(cursor)?;
            query.and("(label, aspect) > (", label).add(", ").bind(aspect).add(")");
        }
        query.add(" ORDER BY label, aspect LIMIT ").bind(page::with_next(limit));
        let rows = self.fetch(&query, "reading targets").await?;
        let found = rows.iter().map(target).collect::<Result<_, _>>()?;
        let (targets, next) = page::cut(found, limit);
        let next = next.as_ref().map(page::text_cursor);
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
            let [label, run, shard, attempt, configuration] = page::texts(cursor)?;
            let number = |part: &str| page::number(part, cursor);
            query.and("(label, run, shard, attempt, configuration) > (", label);
            for number in [number(&run)?, number(&shard)?, number(&attempt)?] {
                query.add(", ").bind(number);
            }
            query.add(", ").bind(configuration).add(")");
        }
        query.add(" ORDER BY label, run, shard, attempt, configuration LIMIT ").bind(page::with_next(limit));
        let rows = self.fetch(&query, "reading tests").await?;
        let found = rows.iter().map(test).collect::<Result<_, _>>()?;
        let (tests, next) = page::cut(found, limit);
        let next = next.as_ref().map(page::text_cursor);
        Ok(TestsReply { tests, next })
    }
}

fn of_call(sql: &'static str, group: &Group, id: &ToolInvocation) -> Query {
    let mut query = Query::new(sql);
    query.bind(call(group, id.as_str()));
    query
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

/// A target, and its key.
fn target(row: &AnswerRow) -> Result<([String; 2], TargetView), StoreError> {
    let failed = |error| StoreError::while_("reading a target")(error);
    let text = |column| row.text(column).map_err(failed);
    let key = [row.word(0).map_err(failed)?, text(1)?.unwrap_or_default()];
    let view = TargetView {
        label: key[0].clone(),
        aspect: Some(key[1].clone()).filter(|aspect| !aspect.is_empty()),
        kind: text(2)?,
        test_size: text(3)?,
        tags: text(4)?,
        status: text(5)?,
        test_status: text(6)?,
    };
    Ok((key, view))
}

/// A test, and its key.
fn test(row: &AnswerRow) -> Result<([String; 5], TestView), StoreError> {
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
    let numbers = [view.run, view.shard, view.attempt].map(|number| number.to_string());
    let ([run, shard, attempt], configuration) = (numbers, row.word(10).map_err(failed)?);
    Ok(([view.label.clone(), run, shard, attempt, configuration], view))
}
