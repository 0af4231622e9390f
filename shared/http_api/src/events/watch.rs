//! Counts event streams as calls of the API.

use std::time::Instant;

use client::Followed;
use telemetry::metrics::{Counter, Histogram, Label, count, observe};

use super::ahead::Next;

/// Name of event streams among the calls of the API. The route counts the time to the head of the answer.
pub(crate) const ENDPOINT: &str = "watch";

/// An open event stream, which is counted when it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    began: Instant,
    status: &'static str,
}

impl Watch {
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), status: "left" }
    }

    /// Notes what the client is sent next; `None` is the end of the stream.
    pub(super) fn note(&mut self, next: Option<&Next>) {
        match next {
            Some(Next::BrokeOff) => self.status = "unavailable",
            Some(Next::Ended) => self.status = "ok",
            Some(Next::Followed(Followed::Event(event))) if event.is_last() => self.status = "ok",
            Some(Next::Followed(_)) | None => {}
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        count(Counter::ApiRequests, &[(Label::Endpoint, ENDPOINT), (Label::Status, self.status)], 1);
        observe(Histogram::ApiSeconds, &[(Label::Endpoint, ENDPOINT)], self.began.elapsed());
    }
}
