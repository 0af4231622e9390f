//! How a check ends.

use tonic::{Code, Status};

/// Reason why a check did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The server violates the statement.
    Fail(String),
    /// The statement cannot be checked from outside.
    Skip(String),
}

/// Outcome of a check: a pass with a remark, which may be empty, or a [`Stop`].
pub(crate) type Judged = Result<String, Stop>;

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Self::Fail(format!("unexpected error {}", describe(&status)))
    }
}

/// A pass without a remark.
#[expect(clippy::unnecessary_wraps, reason = "it is the value of a check")]
pub(crate) fn pass() -> Judged {
    Ok(String::new())
}

/// Describes an error in one line.
pub(crate) fn describe(status: &Status) -> String {
    named(status.code(), status.message())
}

/// Describes a code and its message in one line.
pub(crate) fn named(code: Code, message: &str) -> String {
    let short: String = message.chars().take(200).collect();
    format!("{}: {short}", code_name(code))
}

/// Returns a code as the specification writes it.
pub(crate) fn code_name(code: Code) -> &'static str {
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

fn names(codes: &[Code]) -> String {
    codes.iter().map(|code| code_name(*code)).collect::<Vec<_>>().join(" or ")
}

/// Requires that a call was refused with one of these codes, and returns its error.
pub(crate) fn refused<T>(answer: Result<T, Status>, codes: &[Code], what: &str) -> Result<Status, Stop> {
    match answer {
        Ok(_) => Err(Stop::Fail(format!("{what} was accepted, expected {}", names(codes)))),
        Err(status) if codes.contains(&status.code()) => Ok(status),
        Err(status) => Err(Stop::Fail(format!(
            "{what} was answered with {}, expected {}",
            describe(&status),
            names(codes)
        ))),
    }
}

/// Like [`refused`], for a status within a message.
pub(crate) fn has_code(status: Option<&reapi::rpc::Status>, codes: &[Code], what: &str) -> Result<(), Stop> {
    let (code, message) = status.map_or((Code::Ok, ""), |status| (Code::from(status.code), &*status.message));
    if codes.contains(&code) {
        return Ok(());
    }
    Err(Stop::Fail(format!("{what} was answered with {}, expected {}", named(code, message), names(codes))))
}

/// Fails the check unless the condition holds.
macro_rules! need {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::stop::Stop::Fail(format!($($why)+)));
        }
    };
}

macro_rules! fail {
    ($($why:tt)+) => { return Err($crate::stop::Stop::Fail(format!($($why)+))) };
}

macro_rules! skip {
    ($($why:tt)+) => { return Err($crate::stop::Stop::Skip(format!($($why)+))) };
}

pub(crate) use {fail, need, skip};
