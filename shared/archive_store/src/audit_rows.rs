//! The row that an audit event gives.

use bus::Stored;
use model::{AuditEvent, AuditText};

use crate::{
    plain::{INDEXED_MAX, clean, whole},
    rows::AuditRow,
    unreadable::Unreadable,
};

/// The row of an audit event at `position`.
pub(crate) fn row(stored: &Stored, position: i64) -> Result<AuditRow, Unreadable> {
    let event: AuditEvent = stored.read()?;
    let text = |text: &AuditText| clean(text.as_str(), INDEXED_MAX);
    Ok(AuditRow {
        position,
        at_ms: whole(event.at_ms.0),
        kind: event.kind.as_str(),
        decision: event.decision.as_str(),
        who: text(&event.who),
        proof: event.proof.as_str(),
        address: event.address.as_ref().map(text),
        call: text(&event.call),
        target: event.target.as_ref().map(text),
        reason: event.reason.as_ref().map(text),
        source: text(&event.source),
        dropped: whole(event.dropped),
    })
}
