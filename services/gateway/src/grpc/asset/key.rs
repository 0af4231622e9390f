//! Keys of assets in the store, and the supported qualifiers.

use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use reapi::{
    asset::Qualifier,
    status::{self, FieldViolation},
};
use tonic::Status;

/// The kind of an asset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AssetKind {
    /// A single blob, without references.
    Blob,
    /// A directory with everything below it.
    Directory,
}

/// The instance name under which assets are stored. No client can use it, because it contains
/// the reserved word `operations`.
pub(crate) fn instance(instance: &str) -> String {
    format!("{instance}/operations/assets")
}

/// The key of the asset with this `uri` and these `qualifiers`, in any order.
pub(crate) fn key(
    kind: AssetKind,
    function: DigestFunction,
    uri: &str,
    qualifiers: &[Qualifier],
) -> BlobDigest {
    let mut sorted: Vec<(&str, &str)> =
        qualifiers.iter().map(|qualifier| (qualifier.name.as_str(), qualifier.value.as_str())).collect();
    sorted.sort_unstable();
    let kind = match kind {
        AssetKind::Blob => "blob",
        AssetKind::Directory => "directory",
    };
    let mut hasher = function.hasher();
    let texts = [kind, uri].into_iter().chain(sorted.into_iter().flat_map(|(name, value)| [name, value]));
    for text in texts {
        // The length prefix makes the encoding of the list unambiguous.
        hasher.update(&(text.len() as u64).to_be_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.finish()
}

/// Checks the fields that every request of the API has.
pub(crate) fn check(uris: &[String], qualifiers: &[Qualifier]) -> Result<(), Status> {
    if uris.is_empty() {
        return Err(status::bad_request("uris", "expected at least one URI"));
    }
    if uris.iter().any(String::is_empty) {
        return Err(status::bad_request("uris", "a URI is empty"));
    }
    let mut names: Vec<&str> = qualifiers.iter().map(|qualifier| qualifier.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair.first() == pair.last()) {
        Some(pair) => {
            let name = pair.first().copied().present("a window of two names is empty");
            Err(status::bad_request("qualifiers.name", format!("duplicate qualifier {name:?}")))
        }
        None => Ok(()),
    }
}

/// The options of a download that qualifiers set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DownloadOptions {
    /// Value of the qualifier `checksum.sri`.
    pub(crate) checksum: Option<String>,
    /// HTTP headers to send with the request.
    pub(crate) headers: Vec<(String, String)>,
}

/// Reads the qualifiers for a download from the URI at `index`; rejects unknown ones.
pub(crate) fn download_options(qualifiers: &[Qualifier], index: usize) -> Result<DownloadOptions, Status> {
    let mut options = DownloadOptions::default();
    let mut unknown = Vec::new();
    for Qualifier { name, value } in qualifiers {
        if name == "checksum.sri" {
            options.checksum = Some(value.clone());
        } else if let Some(header) = name.strip_prefix("http_header:") {
            options.headers.push((header.to_owned(), value.clone()));
        } else if let Some((url, header)) =
            name.strip_prefix("http_header_url:").and_then(|rest| rest.split_once(':'))
        {
            if url.parse() == Ok(index) {
                options.headers.push((header.to_owned(), value.clone()));
            }
        } else if !matches!(name.as_str(), "bazel.canonical_id" | "resource_type") {
            unknown.push(name);
        }
    }
    if unknown.is_empty() {
        return Ok(options);
    }
    let violation = |name: &String| FieldViolation {
        field: "qualifiers.name".into(),
        description: format!("\"{name}\" not supported"),
    };
    let violations: Vec<FieldViolation> = unknown.into_iter().map(violation).collect();
    Err(status::bad_fields(violations))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qualifier(name: &str, value: &str) -> Qualifier {
        Qualifier { name: name.into(), value: value.into() }
    }

    #[test]
    fn a_key_does_not_depend_on_the_order_of_qualifiers() {
        let (a, b) = (qualifier("a", "1"), qualifier("b", "2"));
        let of = |uri: &str, qualifiers: &[Qualifier]| {
            key(AssetKind::Blob, DigestFunction::Sha256, uri, qualifiers)
        };
        assert_eq!(of("u", &[a.clone(), b.clone()]), of("u", &[b.clone(), a.clone()]));
        assert_ne!(of("u", &[a]), of("u", &[b]));
        assert_ne!(of("u", &[qualifier("ab", "c")]), of("u", &[qualifier("a", "bc")]));
        assert_ne!(of("u", &[]), key(AssetKind::Directory, DigestFunction::Sha256, "u", &[]));
        assert!(reapi::instance::check(&instance("main")).is_err());
    }

    #[test]
    fn requests_are_checked() {
        let uris = ["http://x/".to_owned()];
        assert!(check(&uris, &[qualifier("a", "1"), qualifier("b", "1")]).is_ok());
        for status in [
            check(&[], &[]).unwrap_err(),
            check(&[String::new()], &[]).unwrap_err(),
            check(&uris, &[qualifier("a", "1"), qualifier("b", "1"), qualifier("a", "2")]).unwrap_err(),
        ] {
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
        }
    }

    #[test]
    fn unknown_qualifiers_are_named() {
        let status = download_options(&[qualifier("x", "1"), qualifier("y", "1")], 0).unwrap_err();
        let violations = status::field_violations(&status::rpc_status(&status));
        let texts: Vec<&str> = violations.iter().map(|violation| violation.description.as_str()).collect();
        assert_eq!(texts, ["\"x\" not supported", "\"y\" not supported"]);
        let known = [
            qualifier("checksum.sri", "sha256-x"),
            qualifier("http_header:Accept", "a"),
            qualifier("http_header_url:1:Auth", "b"),
            qualifier("bazel.canonical_id", "c"),
        ];
        assert_eq!(download_options(&known, 0).unwrap().headers, [("Accept".to_owned(), "a".to_owned())]);
        assert_eq!(download_options(&known, 1).unwrap().headers.len(), 2);
    }
}
