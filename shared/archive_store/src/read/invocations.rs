//! The runs of builds.

use std::collections::BTreeMap;

use model::{
    Attempt, BuildKey, ConsoleExtent, InvocationEnd, InvocationId, InvocationReply, InvocationView, Millis,
    Outcome,
};

use super::{
    builds::{RECORD, parse, sequence, view},
    query::Query,
};
use crate::{Store, StoreError, plain::natural, sql::AnswerRow};

const COLUMNS: &str = "i.place, b.build_group, b.build_id, i.attempt, i.invocation_id, i.worker, i.workspace, i.fencing, \
    i.enqueued_ms, i.started_ms, i.prepared_ms, i.ended_ms, i.outcome, i.reason, i.message, i.exit_code";
/// Number of columns in [`COLUMNS`].
const WIDTH: usize = 16;

impl Store {
    /// All runs of a build, the first one first.
    pub async fn invocations(&self, key: &BuildKey) -> Result<Vec<InvocationView>, StoreError> {
        let mut query = Query::new("SELECT ");
        query.add(COLUMNS).add(" FROM builds b JOIN invocations i ON i.place = b.place WHERE b.build_id = ");
        query.bind(key.id.to_string()).and("b.build_group =", key.group.as_str()).add(" ORDER BY i.attempt");
        let mut connection = self.reader().await?;
        let rows = query.fetch(&mut connection, "reading the invocations of a build").await?;
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let mut query = console_query(first)?;
        let consoles = query.add("").fetch(&mut connection, "reading where output is").await?;
        rows.iter().map(|row| read(row, &consoles)).collect()
    }

    /// A run and its build.
    pub async fn invocation(&self, id: InvocationId) -> Result<Option<InvocationReply>, StoreError> {
        let mut query = Query::new("SELECT ");
        query
            .add(COLUMNS)
            .add(", ")
            .add(RECORD)
            .add(" FROM invocations i JOIN builds b ON b.place = i.place ");
        query.add("JOIN build_records r ON r.place = i.place WHERE i.invocation_id = ").bind(id.to_string());
        let mut connection = self.reader().await?;
        let rows = query.fetch(&mut connection, "reading an invocation").await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let consoles = console_query(row)?.fetch(&mut connection, "reading where output is").await?;
        Ok(Some(InvocationReply { invocation: read(row, &consoles)?, build: view(row, WIDTH)? }))
    }
}

fn console_query(row: &AnswerRow) -> Result<Query, StoreError> {
    let place = row.whole(0).map_err(StoreError::while_("reading a place"))?;
    let mut query = Query::new("SELECT attempt, output, first_position, last_position, bytes, ");
    query
        .add("(SELECT base FROM cursors WHERE stream = 'FOREBAY_EVENTS') FROM consoles WHERE place = ")
        .bind(place);
    Ok(query)
}

fn read(row: &AnswerRow, consoles: &[AnswerRow]) -> Result<InvocationView, StoreError> {
    let failed = |error| StoreError::while_("reading an invocation")(error);
    let attempt = row.whole(3).map_err(failed)?;
    let number = |column| row.integer(column).map_err(failed).map(|number| number.map(natural));
    let time = |column| number(column).map(|at| at.map(Millis));
    let text = |column| row.text(column).map_err(failed);
    let end = match time(11)? {
        Some(at_ms) => Some(InvocationEnd {
            at_ms,
            outcome: text(12)?.as_deref().and_then(outcome),
            reason: text(13)?,
            message: text(14)?,
            exit_code: row.integer(15).map_err(failed)?,
        }),
        None => None,
    };
    let id = text(4)?.map(|id| parse(&id)).transpose()?;
    Ok(InvocationView {
        group: parse(&row.word(1).map_err(failed)?)?,
        build: parse(&row.word(2).map_err(failed)?)?,
        attempt: Attempt(u32::try_from(attempt).unwrap_or(u32::MAX)),
        id,
        worker: text(5)?.map(|worker| parse(&worker)).transpose()?,
        workspace: number(6)?,
        lease_revision: number(7)?,
        enqueued_at_ms: time(8)?,
        started_at_ms: time(9)?,
        prepared_at_ms: time(10)?,
        end,
        console: consoles_of(attempt, consoles).map_err(failed)?,
    })
}

/// The outcome of a build; none for an attempt after which it waited again.
pub(crate) fn outcome(name: &str) -> Option<Outcome> {
    Outcome::ALL.into_iter().find(|outcome| outcome.as_str() == name)
}

fn consoles_of(attempt: i64, rows: &[AnswerRow]) -> Result<BTreeMap<String, ConsoleExtent>, sqlx::Error> {
    let mut found = BTreeMap::new();
    for row in rows {
        if row.whole(0)? == attempt {
            let base = row.integer(5)?.unwrap_or_default();
            let (first, last) = (sequence(row.whole(2)?, base), sequence(row.whole(3)?, base));
            found.insert(row.word(1)?, ConsoleExtent { first, last, bytes: natural(row.whole(4)?) });
        }
    }
    Ok(found)
}
