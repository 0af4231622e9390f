//! Conversions between the protocol's digests and [`BlobDigest`].

use model::{BlobDigest, DigestFunction, ParseBlobDigestError};
use tonic::Status;

use crate::execution::{self, digest_function::Value};

/// Converts a digest to the protocol's message.
pub fn to_proto(digest: &BlobDigest) -> execution::Digest {
    execution::Digest { hash: digest.hex(), size_bytes: i64::try_from(digest.size).unwrap_or(i64::MAX) }
}

/// Converts the protocol's message: 64 lower-case hex digits and a size that is not negative.
pub fn from_proto(
    digest: &execution::Digest,
    function: DigestFunction,
) -> Result<BlobDigest, ParseBlobDigestError> {
    BlobDigest::from_parts(function, &digest.hash, digest.size_bytes)
}

/// Reads the required digest `field` of a request; `INVALID_ARGUMENT` if it is absent.
pub fn required(
    digest: Option<&execution::Digest>,
    function: DigestFunction,
    field: &str,
) -> Result<BlobDigest, Status> {
    let digest = digest.ok_or_else(|| Status::invalid_argument(format!("{field} is not set")))?;
    from_proto(digest, function).map_err(|error| Status::invalid_argument(format!("{field}: {error}")))
}

/// Reads all digests in the repeated field `field` of a request.
pub fn all(
    digests: &[execution::Digest],
    function: DigestFunction,
    field: &str,
) -> Result<Vec<BlobDigest>, Status> {
    let wrong = |error| Status::invalid_argument(format!("{field}: {error}"));
    digests.iter().map(|digest| from_proto(digest, function).map_err(wrong)).collect()
}

/// Converts a digest function to the protocol's value.
pub fn value(function: DigestFunction) -> Value {
    match function {
        DigestFunction::Sha256 => Value::Sha256,
        DigestFunction::Blake3 => Value::Blake3,
    }
}

/// The supported digest functions, as listed in the capabilities.
pub fn values() -> Vec<i32> {
    DigestFunction::ALL.iter().map(|function| value(*function).into()).collect()
}

/// Returns the digest function of a request: the one that it names, or else the one implied by the length of a hash.
/// Both supported functions have 64 hex digits, and only SHA-256 may be left unnamed.
pub fn function(request_field: i32, a_digest: Option<&execution::Digest>) -> Result<DigestFunction, Status> {
    let served = "SHA256 and BLAKE3 are supported";
    match Value::try_from(request_field) {
        Ok(Value::Sha256) => Ok(DigestFunction::Sha256),
        Ok(Value::Blake3) => Ok(DigestFunction::Blake3),
        Ok(Value::Unknown) => match a_digest.map(|digest| digest.hash.len()) {
            None | Some(64) => Ok(DigestFunction::Sha256),
            Some(other) => Err(Status::invalid_argument(format!(
                "no digest function is set, and a hash of {other} digits implies none; {served}"
            ))),
        },
        Ok(other) => Err(Status::invalid_argument(format!(
            "digest function {} is not supported; {served}",
            other.as_str_name()
        ))),
        Err(_) => Err(Status::invalid_argument(format!("unknown digest function {request_field}; {served}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_crosses_and_comes_back() {
        for function in DigestFunction::ALL {
            let digest = function.digest(b"content");
            assert_eq!(from_proto(&to_proto(&digest), function), Ok(digest));
            assert_eq!(super::function(value(function).into(), None).unwrap(), function);
        }
    }

    #[test]
    fn what_is_malformed_or_missing_is_an_invalid_argument() {
        let good = to_proto(&DigestFunction::Sha256.digest(b"x"));
        let odd = execution::Digest { hash: good.hash[1..].to_owned(), ..good.clone() };
        let upper = execution::Digest { hash: good.hash.to_uppercase(), ..good.clone() };
        let negative = execution::Digest { size_bytes: -1, ..good.clone() };
        for bad in [Some(&odd), Some(&upper), Some(&negative), None] {
            let error = required(bad, DigestFunction::Sha256, "blob_digest").unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            assert!(error.message().starts_with("blob_digest"), "{error}");
        }
        assert!(all(&[good, odd], DigestFunction::Sha256, "digests").is_err());
    }

    #[test]
    fn a_function_that_is_not_named_follows_from_the_hash() {
        let digest = |length| execution::Digest { hash: "a".repeat(length), size_bytes: 1 };
        assert_eq!(function(0, Some(&digest(64))).unwrap(), DigestFunction::Sha256);
        assert_eq!(function(0, None).unwrap(), DigestFunction::Sha256);
        for refused in [function(0, Some(&digest(40))), function(3, None), function(77, None)] {
            assert_eq!(refused.unwrap_err().code(), tonic::Code::InvalidArgument);
        }
    }
}
