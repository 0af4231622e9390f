//! Counts the calls of a gRPC server by method and status.

use std::{collections::HashSet, sync::LazyLock, time::Instant};

use parking_lot::RwLock;
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tonic::{
    Code,
    codegen::http::{HeaderMap, Uri},
};

const STATUS: &str = "grpc-status";
/// Endpoint of calls of methods that do not exist: clients must not be able to create labels.
const UNKNOWN: &str = "unknown";

/// Paths of the methods that have answered a call.
static METHODS: LazyLock<RwLock<HashSet<String>>> = LazyLock::new(RwLock::default);

/// A call, which is counted when it is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    /// Its path is that of the method.
    uri: Uri,
    began: Instant,
    /// `None` until the status was sent.
    code: Option<Code>,
}

impl Call {
    pub(crate) fn begin(uri: Uri) -> Self {
        Self { uri, began: Instant::now(), code: None }
    }

    /// Notes the head of the answer, which has the status if the answer is nothing else.
    pub(crate) fn answered(&mut self, head: &HeaderMap) {
        self.note(head);
        if self.code != Some(Code::Unimplemented) && !METHODS.read().contains(self.uri.path()) {
            METHODS.write().insert(self.uri.path().to_owned());
        }
    }

    /// Notes the status, if these headers or trailers have it.
    pub(crate) fn note(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get(STATUS) {
            self.code = Some(Code::from_bytes(status.as_bytes()));
        }
    }
}

impl Drop for Call {
    /// Without a status, the client dropped the call before its end.
    fn drop(&mut self) {
        let is_method = match self.code {
            Some(code) => code != Code::Unimplemented,
            // A call that is dropped at once may be of any path.
            None => METHODS.read().contains(self.uri.path()),
        };
        let code = self.code.unwrap_or(Code::Cancelled);
        let endpoint = if is_method { self.uri.path().trim_start_matches('/') } else { UNKNOWN };
        count(Counter::ApiRequests, &[(Label::Endpoint, endpoint), (Label::Status, name(code))], 1);
        observe(Histogram::ApiSeconds, &[(Label::Endpoint, endpoint)], self.began.elapsed());
    }
}

/// Name of a code as in the specification of gRPC.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests;
