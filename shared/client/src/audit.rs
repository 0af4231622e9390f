//! Audit events: from the archive, or from the bus where no archive runs.

use std::collections::VecDeque;

use bus::{ArchiveCall, AuditSubject, Message as _, Subject, stream};
use model::{AuditEntry, AuditReply, AuditRequest, Sequence};

use crate::{
    Client, ClientError,
    calls::{ARCHIVE, TRIES},
};

/// Events that are read at a time.
const BATCH: usize = 500;
/// Number of events of a reply, if the request does not say it.
const LIMIT: usize = 100;

impl Client {
    /// Audit events that match, newest first. Without an archive, those that the bus has, in one page.
    pub async fn audit(&self, request: &AuditRequest) -> Result<AuditReply, ClientError> {
        let subject = Subject::Archive(ArchiveCall::Audit);
        match self.call(&subject, ARCHIVE, request.to_json(), None, TRIES).await {
            Err(ClientError::Unreachable { .. }) if request.cursor.is_none() => {
                self.audit_on_bus(request).await
            }
            answered => answered,
        }
    }

    /// The newest events of the stream that match. It is read from its beginning: a filter has no index here.
    async fn audit_on_bus(&self, request: &AuditRequest) -> Result<AuditReply, ClientError> {
        let (limit, mut from) = (request.limit.unwrap_or(LIMIT), Sequence(1));
        let mut newest: VecDeque<AuditEntry> = VecDeque::new();
        loop {
            let tail = self.bus().stream(stream::AUDIT).read_from(AuditSubject::ALL, from, BATCH).await?;
            let Some(last) = tail.events.last() else { break };
            from = Sequence(last.sequence.0.saturating_add(1));
            // Other versions may write what this one cannot read.
            let read = |stored: &bus::Stored| {
                Some(AuditEntry { position: stored.sequence, event: stored.read().ok()? })
            };
            for entry in tail.events.iter().filter_map(read).filter(|entry| request.matches(&entry.event)) {
                newest.push_front(entry);
                newest.truncate(limit);
            }
            if !tail.more {
                break;
            }
        }
        Ok(AuditReply { events: newest.into(), next: None })
    }
}
