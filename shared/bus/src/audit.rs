//! The audit stream: its subjects, and writing to it.

use std::fmt;

use async_nats::HeaderMap;
use model::{AuditEvent, AuditKind};

use crate::{
    Bus, BusError, Encoding, Message as _,
    headers::{CONTENT_TYPE, MESSAGE_ID},
    message,
};

message!(AuditEvent);

/// Subject under which audit events of a kind are stored. Written by gateways, `web`, `cas`, enqueuers and the command line;
/// read by the archive and by `forebay audit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditSubject(pub AuditKind);

impl AuditSubject {
    /// Matches the events of all kinds.
    pub const ALL: &str = "forebay.audit.*";
}

impl fmt::Display for AuditSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forebay.audit.{}", self.0)
    }
}

impl Bus {
    /// Stores an audit event. With the same `id`, a repetition within two minutes is not stored.
    pub async fn write_audit(&self, id: &str, event: &AuditEvent) -> Result<(), BusError> {
        let what = "writing an audit event";
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, Encoding::Json.content_type());
        headers.insert(MESSAGE_ID, id);
        let subject = AuditSubject(event.kind).to_string();
        let sent = self.js.publish_with_headers(subject, headers, event.to_json()).await;
        sent.map_err(BusError::failed(what))?.await.map_err(BusError::failed(what))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_subject_of_the_stream() {
        for kind in AuditKind::ALL {
            let subject = AuditSubject(kind).to_string();
            let token = subject.strip_prefix(AuditSubject::ALL.trim_end_matches('*')).unwrap();
            assert_eq!(token.parse::<AuditKind>().unwrap(), kind);
        }
    }
}
