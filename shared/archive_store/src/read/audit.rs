//! Audit events that match, the last one first.

use model::{AuditEntry, AuditEvent, AuditKind, AuditReply, AuditRequest, AuditText, Millis, Sequence};
use serde::de::DeserializeOwned;

use super::{page, query::Query};
use crate::{
    Store, StoreError,
    plain::{natural, whole},
    sql::AnswerRow,
};

const LIMIT: usize = 100;
const READING: &str = "reading audit events";

impl Store {
    /// A page of audit events, the last one first.
    pub async fn audit(&self, request: &AuditRequest) -> Result<AuditReply, StoreError> {
        let limit = page::limit(request.limit, LIMIT)?;
        let mut query = Query::new(
            "SELECT position, at_ms, kind, decision, who, proof, address, call, target, reason, source, dropped FROM audit \
             WHERE position < ",
        );
        query.bind(page::before(request.cursor.as_deref())?);
        query.and_if("kind =", request.kind.map(AuditKind::as_str));
        query.and_if("at_ms >=", request.since_ms.map(|since| whole(since.0)));
        if let Some(who) = &request.who {
            matching(&mut query, who, ["who =", "who >=", "who <"])?;
        }
        if let Some(target) = &request.target {
            matching(&mut query, target, ["target =", "target >=", "target <"])?;
        }
        query.add(" ORDER BY position DESC LIMIT ").bind(page::with_next(limit));
        let rows = self.fetch(&query, READING).await?;
        let found = rows.iter().map(entry).collect::<Result<_, StoreError>>()?;
        let (events, next) = page::cut(found, limit);
        Ok(AuditReply { events, next: next.map(page::cursor) })
    }
}

/// Adds the condition that a column has this text, or begins with what is before a `*` at its end. Texts are compared by
/// their bytes, so those that begin alike follow each other in the index.
fn matching(
    query: &mut Query,
    wanted: &str,
    [equal, from, before]: [&'static str; 3],
) -> Result<(), StoreError> {
    if wanted.contains('\0') {
        return Err(StoreError::Request("who and target cannot contain the character 0".to_owned()));
    }
    match wanted.strip_suffix('*') {
        None => query.and(equal, wanted),
        Some("") => query,
        Some(beginning) => query.and(from, beginning).and(before, format!("{beginning}{}", char::MAX)),
    };
    Ok(())
}

/// An event, and its position.
fn entry(row: &AnswerRow) -> Result<(i64, AuditEntry), StoreError> {
    let failed = |error| StoreError::while_(READING)(error);
    let word = |column| row.word(column).map_err(failed);
    let whole = |column| row.whole(column).map_err(failed);
    let text = |column| row.text(column).map_err(failed).map(|text| text.map(AuditText::from));
    let position = whole(0)?;
    let event = AuditEvent {
        at_ms: Millis(natural(whole(1)?)),
        kind: named(word(2)?)?,
        decision: named(word(3)?)?,
        who: word(4)?.into(),
        proof: named(word(5)?)?,
        address: text(6)?,
        call: word(7)?.into(),
        target: text(8)?,
        reason: text(9)?,
        source: word(10)?.into(),
        dropped: natural(whole(11)?),
    };
    Ok((position, AuditEntry { position: Sequence(natural(position)), event }))
}

/// The value with this name in messages.
fn named<T: DeserializeOwned>(name: String) -> Result<T, StoreError> {
    serde_json::from_value(name.into()).map_err(|error| StoreError::Record(error.into()))
}
