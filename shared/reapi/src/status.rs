//! Errors of the protocol: [`Status`] with the details that clients look for.

use std::time::Duration;

use invariant::Present as _;
use model::BlobDigest;
use prost::Message;
use tonic::{Code, Status};

use crate::{protobuf::Any, rpc};

/// `google.rpc.PreconditionFailure`: the preconditions that do not hold.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PreconditionFailure {
    #[prost(message, repeated, tag = "1")]
    pub violations: Vec<Violation>,
}

/// A precondition that does not hold.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Violation {
    /// Kind of the violation: `MISSING` for a blob.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Subject of the violation: `blobs/HASH/SIZE` for a blob.
    #[prost(string, tag = "2")]
    pub subject: String,
    /// Explanation for people to read.
    #[prost(string, tag = "3")]
    pub description: String,
}

/// `google.rpc.BadRequest`: the invalid fields of a request.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BadRequest {
    #[prost(message, repeated, tag = "1")]
    pub field_violations: Vec<FieldViolation>,
}

/// An invalid field of a request.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct FieldViolation {
    #[prost(string, tag = "1")]
    pub field: String,
    /// Explanation for people to read.
    #[prost(string, tag = "2")]
    pub description: String,
}

/// `google.rpc.RetryInfo`: when to try again.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RetryInfo {
    /// Delay before the next attempt.
    #[prost(message, optional, tag = "1")]
    pub retry_delay: Option<crate::protobuf::Duration>,
}

/// `google.rpc.ErrorInfo`: the cause of an error, for programs.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ErrorInfo {
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Name of the service that defines the reason.
    #[prost(string, tag = "2")]
    pub domain: String,
}

/// The kind of violation that names a blob to upload.
pub const MISSING: &str = "MISSING";

const PRECONDITION_FAILURE: &str = "google.rpc.PreconditionFailure";
const BAD_REQUEST: &str = "google.rpc.BadRequest";
const RETRY_INFO: &str = "google.rpc.RetryInfo";
const ERROR_INFO: &str = "google.rpc.ErrorInfo";
/// The reason of an error whose cause is a registry of images, and the service that defines it.
const REGISTRY_UNAVAILABLE: (&str, &str) = ("REGISTRY_UNAVAILABLE", "forebay");
/// The same of an error whose cause is the limit of a trust zone.
const ZONE_LIMIT: (&str, &str) = ("ZONE_LIMIT", "forebay");
const URL: &str = "type.googleapis.com/";

/// Packs a message into an `Any` with its full type name, such as `google.rpc.RetryInfo`.
pub fn any(message: &impl Message, type_name: &str) -> Any {
    Any { type_url: format!("{URL}{type_name}"), value: message.encode_to_vec() }
}

/// Unpacks the message in an `Any`, if it has this type.
pub fn unpack<M: Message + Default>(any: &Any, type_name: &str) -> Option<M> {
    let name = any.type_url.rsplit('/').next().present("a split text has no last part");
    if name == type_name { M::decode(&*any.value).ok() } else { None }
}

/// Creates an error with details.
pub fn with_details(code: Code, message: impl Into<String>, details: Vec<Any>) -> Status {
    let message = message.into();
    let whole = rpc::Status { code: code.into(), message: message.clone(), details };
    Status::with_details(code, message, whole.encode_to_vec().into())
}

/// `FAILED_PRECONDITION` that names every blob to upload. Use it inside a response only: as the status of a call, its
/// details become headers, of which clients accept only a few kilobytes.
pub fn missing(blobs: &[BlobDigest]) -> Status {
    let violation = |blob: &BlobDigest| Violation {
        r#type: MISSING.into(),
        subject: format!("blobs/{blob}"),
        description: String::new(),
    };
    let failure = PreconditionFailure { violations: blobs.iter().map(violation).collect() };
    let message = match blobs {
        [one] => format!("blob {one} is not in the store; upload it and retry"),
        all => format!("{} blobs are not in the store; upload them and retry", all.len()),
    };
    with_details(Code::FailedPrecondition, message, vec![any(&failure, PRECONDITION_FAILURE)])
}

/// Returns the blobs that a [`missing`] error names; empty for any other error.
pub fn missing_blobs(status: &rpc::Status) -> Vec<BlobDigest> {
    let failures = status.details.iter().filter_map(|any| unpack(any, PRECONDITION_FAILURE));
    failures
        .flat_map(|failure: PreconditionFailure| failure.violations)
        .filter(|violation| violation.r#type == MISSING)
        .filter_map(|violation| violation.subject.strip_prefix("blobs/")?.parse().ok())
        .collect()
}

/// `INVALID_ARGUMENT` for a field of the request.
pub fn bad_request(field: &str, description: impl Into<String>) -> Status {
    let description = description.into();
    let message = format!("{field}: {description}");
    let violation = FieldViolation { field: field.into(), description };
    let bad = BadRequest { field_violations: vec![violation] };
    with_details(Code::InvalidArgument, message, vec![any(&bad, BAD_REQUEST)])
}

/// `INVALID_ARGUMENT` for several fields of the request.
pub fn bad_fields(field_violations: Vec<FieldViolation>) -> Status {
    let texts =
        field_violations.iter().map(|violation| format!("{}: {}", violation.field, violation.description));
    let message = texts.collect::<Vec<_>>().join("; ");
    let bad = BadRequest { field_violations };
    with_details(Code::InvalidArgument, message, vec![any(&bad, BAD_REQUEST)])
}

/// Returns the fields that a [`bad_request`] error names.
pub fn field_violations(status: &rpc::Status) -> Vec<FieldViolation> {
    let bad = status.details.iter().filter_map(|any| unpack(any, BAD_REQUEST));
    bad.flat_map(|bad: BadRequest| bad.field_violations).collect()
}

/// Creates an error with the delay before the next attempt.
pub fn retry(code: Code, message: impl Into<String>, after: Duration) -> Status {
    with_details(code, message, vec![any(&retry_info(after), RETRY_INFO)])
}

/// `UNAVAILABLE` because a registry of images does not answer, with the delay before the next attempt.
pub fn registry_unavailable(message: impl Into<String>, after: Duration) -> Status {
    let details = vec![any(&retry_info(after), RETRY_INFO), error_info(REGISTRY_UNAVAILABLE)];
    with_details(Code::Unavailable, message, details)
}

/// `RESOURCE_EXHAUSTED` because a trust zone has as much as it may have; with the delay before the next attempt, if any.
pub fn zone_limit(message: impl Into<String>, after: Option<Duration>) -> Status {
    let retry = after.map(|after| any(&retry_info(after), RETRY_INFO));
    let details = retry.into_iter().chain([error_info(ZONE_LIMIT)]).collect();
    with_details(Code::ResourceExhausted, message, details)
}

fn error_info((reason, domain): (&str, &str)) -> Any {
    any(&ErrorInfo { reason: reason.into(), domain: domain.into() }, ERROR_INFO)
}

/// Whether the cause of an error is a registry of images, and not the server that sent it.
pub fn is_registry_unavailable(status: &Status) -> bool {
    has_cause(status, REGISTRY_UNAVAILABLE)
}

/// Whether the cause of an error is the limit of a trust zone, and not the server that sent it.
pub fn is_zone_limit(status: &Status) -> bool {
    has_cause(status, ZONE_LIMIT)
}

fn has_cause(status: &Status, cause: (&str, &str)) -> bool {
    let mut causes = rpc_status(status).details.into_iter().filter_map(|any| unpack(&any, ERROR_INFO));
    causes.any(|info: ErrorInfo| (info.reason.as_str(), info.domain.as_str()) == cause)
}

fn retry_info(after: Duration) -> RetryInfo {
    let retry_delay = crate::protobuf::Duration {
        seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(after.subsec_nanos()).present("the nanoseconds of a second exceed 32 bits"),
    };
    RetryInfo { retry_delay: Some(retry_delay) }
}

/// Returns the delay before the next attempt, if the error states one.
pub fn retry_delay(status: &rpc::Status) -> Option<Duration> {
    let info: RetryInfo = status.details.iter().find_map(|any| unpack(any, RETRY_INFO))?;
    let delay = info.retry_delay?;
    Some(Duration::new(u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?))
}

/// Converts an error to the status message inside a response, with its details.
pub fn rpc_status(status: &Status) -> rpc::Status {
    let details = rpc::Status::decode(status.details()).map(|whole| whole.details).unwrap_or_default();
    rpc::Status { code: status.code().into(), message: status.message().into(), details }
}

/// Converts the status message inside a response to an error, with its details. `OK` stays `OK`.
pub fn from_rpc(status: &rpc::Status) -> Status {
    let code = Code::from_i32(status.code);
    if status.details.is_empty() {
        return Status::new(code, &status.message);
    }
    with_details(code, &status.message, status.details.clone())
}

#[cfg(test)]
mod tests {
    use model::DigestFunction;

    use super::*;

    #[test]
    fn missing_blobs_are_all_named() {
        let blobs = [DigestFunction::Sha256.digest(b"a"), DigestFunction::Blake3.digest(b"b")];
        let status = missing(&blobs);
        assert_eq!(status.code(), Code::FailedPrecondition);
        let inside = rpc_status(&status);
        assert_eq!(missing_blobs(&inside), blobs);
        let failure: PreconditionFailure = unpack(&inside.details[0], PRECONDITION_FAILURE).unwrap();
        assert_eq!(failure.violations[0].subject, format!("blobs/{}/1", blobs[0].hex()));
        assert_eq!(failure.violations[1].subject, format!("blobs/blake3/{}/1", blobs[1].hex()));
        assert_eq!(rpc_status(&from_rpc(&inside)), inside);
        assert_eq!(inside.details[0].type_url, "type.googleapis.com/google.rpc.PreconditionFailure");
    }

    #[test]
    fn details_are_found_again() {
        let status = retry(Code::ResourceExhausted, "full", Duration::from_millis(1500));
        assert_eq!(retry_delay(&rpc_status(&status)), Some(Duration::from_millis(1500)));
        assert!(missing_blobs(&rpc_status(&status)).is_empty());
        assert!(!is_registry_unavailable(&status));
        let status = registry_unavailable("later", Duration::from_secs(1));
        assert!(is_registry_unavailable(&status) && status.code() == Code::Unavailable);
        assert_eq!(retry_delay(&rpc_status(&status)), Some(Duration::from_secs(1)));
        assert!(!is_zone_limit(&status));
        for after in [None, Some(Duration::from_secs(30))] {
            let status = zone_limit("too much", after);
            assert!(is_zone_limit(&status) && status.code() == Code::ResourceExhausted);
            assert_eq!(retry_delay(&rpc_status(&status)), after);
        }
        let status = bad_request("qualifiers.name", "\"x\" not supported");
        let violations = field_violations(&rpc_status(&status));
        assert_eq!(violations[0].field, "qualifiers.name");
        assert_eq!(violations[0].description, "\"x\" not supported");
    }

    #[test]
    fn an_error_without_details_has_none() {
        let inside = rpc_status(&Status::not_found("gone"));
        assert_eq!((inside.code, inside.details.len()), (5, 0));
        assert_eq!(from_rpc(&inside).message(), "gone");
        assert_eq!(from_rpc(&rpc::Status::default()).code(), Code::Ok);
    }
}
