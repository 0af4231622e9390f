//! Executions of actions that builds sent.

use model::{ActionView, ActionsReply, ActionsRequest, Attempt, Millis};

use super::{builds::parse, page, query::Query};
use crate::{Store, StoreError, plain::natural, sql::AnswerRow};

const LIMIT: usize = 100;

impl Store {
    /// A page of executions, the one accepted last first.
    pub async fn actions(&self, request: &ActionsRequest) -> Result<ActionsReply, StoreError> {
        let limit = page::limit(request.limit, LIMIT)?;
        let mut query = Query::new(
            "SELECT place, action_group, execution_id, action_digest, target, mnemonic, executor, attempt, copies, code, \
             exit_code, accepted_ms, finished_ms, queue_ms, fetch_ms, run_ms, upload_ms FROM actions WHERE ",
        );
        match (&request.build, &request.tool_invocation, &request.action) {
            (Some(build), ..) => query.add("build_id = ").bind(build.to_string()),
            (None, Some(invocation), _) => query.add("tool_invocation = ").bind(invocation.as_str()),
            (None, None, Some(action)) => query.add("action_digest = ").bind(action.as_str()),
            (None, None, None) => {
                let what = "expected field build, tool_invocation or action";
                return Err(StoreError::Request(what.to_owned()));
            }
        };
        query.and_if("action_group =", request.group.as_ref().map(model::Group::as_str));
        query.and_if("build_attempt =", request.attempt.map(|attempt| i64::from(attempt.0)));
        query.and("place <", page::before(request.cursor.as_deref())?);
        query.add(" ORDER BY place DESC LIMIT ").bind(page::with_next(limit));
        let rows = self.fetch(&query, "reading actions").await?;
        let place = |row: &AnswerRow| row.whole(0).map_err(StoreError::while_("reading actions"));
        let found =
            rows.iter().map(|row| Ok((place(row)?, read(row)?))).collect::<Result<_, StoreError>>()?;
        let (actions, next) = page::cut(found, limit);
        Ok(ActionsReply { actions, next: next.map(page::cursor) })
    }
}

fn read(row: &AnswerRow) -> Result<ActionView, StoreError> {
    let failed = |error| StoreError::while_("reading an action")(error);
    let word = |column| row.word(column).map_err(failed);
    let text = |column| row.text(column).map_err(failed);
    let integer = |column| row.integer(column).map_err(failed);
    let number = |column| integer(column).map(|number| number.map(natural));
    Ok(ActionView {
        group: parse(&word(1)?)?,
        id: parse(&word(2)?)?,
        action: word(3)?,
        target: text(4)?,
        mnemonic: text(5)?,
        executor: text(6)?,
        attempt: Attempt(u32::try_from(row.whole(7).map_err(failed)?).unwrap_or(u32::MAX)),
        copies: number(8)?.unwrap_or_default(),
        code: integer(9)?,
        exit_code: integer(10)?,
        accepted_at_ms: Millis(number(11)?.unwrap_or_default()),
        finished_at_ms: number(12)?.map(Millis),
        queue_ms: number(13)?,
        fetch_ms: number(14)?,
        run_ms: number(15)?,
        upload_ms: number(16)?,
    })
}
