//! Resource names of `ByteStream`: blobs to read and write, and log streams.
//!
//! ```text
//! {instance/}blobs/{blake3/}HASH/SIZE
//! {instance/}compressed-blobs/COMPRESSOR/{blake3/}HASH/SIZE
//! {instance/}uploads/UUID/blobs/{blake3/}HASH/SIZE{/ANYTHING}
//! {instance/}uploads/UUID/compressed-blobs/COMPRESSOR/{blake3/}HASH/SIZE{/ANYTHING}
//! {instance/}logstreams/ID
//! {instance/}logstreams/ID/TOKEN
//! ```

use std::fmt;

use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use tonic::Status;

use crate::{execution::compressor, instance};

/// Maximum length of a resource name in bytes.
pub const LENGTH_MAX: usize = 4096;

/// The encoding in which the bytes of a blob are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compressor {
    Identity,
    Zstd,
}

impl Compressor {
    /// Converts the protocol's value; `None` if it is not supported.
    pub fn from_proto(value: i32) -> Option<Self> {
        match compressor::Value::try_from(value) {
            Ok(compressor::Value::Identity) => Some(Self::Identity),
            Ok(compressor::Value::Zstd) => Some(Self::Zstd),
            Ok(compressor::Value::Deflate | compressor::Value::Brotli) | Err(_) => None,
        }
    }

    /// Converts to the protocol's value.
    pub fn to_proto(self) -> compressor::Value {
        match self {
            Self::Identity => compressor::Value::Identity,
            Self::Zstd => compressor::Value::Zstd,
        }
    }
}

/// A resource name of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobName {
    pub instance: String,
    pub digest: BlobDigest,
    /// Encoding in which the bytes are sent.
    pub compressor: Compressor,
}

/// A resource that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadName {
    Blob(BlobName),
    Log {
        /// The instance, or whatever else the stream belongs to.
        parent: String,
        /// Id of the log stream.
        id: String,
    },
}

/// A resource that can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteName {
    Blob {
        blob: BlobName,
        /// Id of the upload, chosen by the client.
        uuid: String,
    },
    Log {
        /// The instance, or whatever else the stream belongs to.
        parent: String,
        /// Id of the log stream.
        id: String,
        /// Secret that authorises writing to the stream.
        token: String,
    },
}

/// A text that is not a valid resource name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid resource name {name:?}: {wrong}")]
pub struct ResourceNameError {
    name: String,
    wrong: String,
}

impl From<ResourceNameError> for Status {
    fn from(error: ResourceNameError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl ReadName {
    /// Parses the name of a resource that a client wants to read.
    pub fn parse(name: &str) -> Result<Self, ResourceNameError> {
        parse(name, Self::parse_segments)
    }

    fn parse_segments(name: &str) -> Result<Self, String> {
        let segments: Vec<&str> = name.split('/').collect();
        if let Some(at) = segments.iter().position(|segment| is_blob_word(segment)) {
            let (instance, rest) = split_instance(&segments, at)?;
            let (digest, compressor, rest) = parse_blob(rest)?;
            if !rest.is_empty() {
                return Err("unexpected text after the size".into());
            }
            return Ok(Self::Blob(BlobName { instance, digest, compressor }));
        }
        match parse_log(&segments)? {
            (parent, [id]) => Ok(Self::Log { parent, id: (*id).to_owned() }),
            (_, [_, _]) => Err("it names a log stream for writing".into()),
            _ => Err("expected LOGSTREAM after logstreams".into()),
        }
    }
}

impl WriteName {
    /// Parses the name of a resource that a client wants to write.
    pub fn parse(name: &str) -> Result<Self, ResourceNameError> {
        parse(name, Self::parse_segments)
    }

    fn parse_segments(name: &str) -> Result<Self, String> {
        let segments: Vec<&str> = name.split('/').collect();
        if let Some(at) = segments.iter().position(|segment| *segment == "uploads") {
            let (instance, rest) = split_instance(&segments, at)?;
            let [_, uuid, rest @ ..] = rest else { return Err("expected a UUID after uploads".into()) };
            if uuid.is_empty() {
                return Err("the UUID is empty".into());
            }
            let (digest, compressor, _) = parse_blob(rest)?;
            let blob = BlobName { instance, digest, compressor };
            return Ok(Self::Blob { blob, uuid: (*uuid).to_owned() });
        }
        if segments.iter().any(|segment| is_blob_word(segment)) {
            return Err("expected uploads/UUID before the blob".into());
        }
        match parse_log(&segments)? {
            (parent, [id, token]) => {
                Ok(Self::Log { parent, id: (*id).to_owned(), token: (*token).to_owned() })
            }
            (_, [_]) => Err("it names a log stream for reading".into()),
            _ => Err("expected LOGSTREAM/TOKEN after logstreams".into()),
        }
    }
}

fn parse<T>(name: &str, parse_segments: impl Fn(&str) -> Result<T, String>) -> Result<T, ResourceNameError> {
    let wrong = |wrong| ResourceNameError { name: name.chars().take(200).collect(), wrong };
    if name.is_empty() {
        return Err(wrong("it is empty".into()));
    }
    if name.len() > LENGTH_MAX {
        return Err(wrong(format!("it is longer than {LENGTH_MAX} bytes")));
    }
    parse_segments(name).map_err(wrong)
}

fn is_blob_word(segment: &str) -> bool {
    matches!(segment, "blobs" | "compressed-blobs")
}

/// Splits off the instance, which ends before the keyword at `at`.
fn split_instance<'s, 'n>(segments: &'s [&'n str], at: usize) -> Result<(String, &'s [&'n str]), String> {
    let (instance, rest) = segments.split_at_checked(at).present("a segment of the name is beyond its end");
    if instance.first().is_some_and(|first| first.is_empty()) {
        return Err("it starts with /".into());
    }
    let instance = instance.join("/");
    instance::check(&instance).map_err(|error| error.to_string())?;
    Ok((instance, rest))
}

/// Returns the parent of a log stream and the segments after `logstreams`.
fn parse_log<'s, 'n>(segments: &'s [&'n str]) -> Result<(String, &'s [&'n str]), String> {
    let at = segments.iter().position(|segment| *segment == "logstreams");
    let at = at.ok_or("expected blobs, compressed-blobs, uploads or logstreams")?;
    let (parent, rest) = split_instance(segments, at)?;
    let rest = rest.get(1..).present("the keyword is not among the segments");
    if rest.iter().any(|segment| segment.is_empty()) {
        return Err("a segment is empty".into());
    }
    Ok((parent, rest))
}

/// A blob, its encoding, and the segments that follow.
type Parsed<'s, 'n> = (BlobDigest, Compressor, &'s [&'n str]);

fn parse_blob<'s, 'n>(segments: &'s [&'n str]) -> Result<Parsed<'s, 'n>, String> {
    let (compressor, rest) = match segments {
        ["blobs", rest @ ..] => (Compressor::Identity, rest),
        ["compressed-blobs", "zstd", rest @ ..] => (Compressor::Zstd, rest),
        ["compressed-blobs", other, ..] => {
            return Err(format!("compressor {other:?} is not supported; use zstd"));
        }
        _ => return Err("expected blobs or compressed-blobs/zstd".into()),
    };
    let (function, rest) = match rest {
        ["blake3", rest @ ..] => (DigestFunction::Blake3, rest),
        _ => (DigestFunction::Sha256, rest),
    };
    let [hash, size, rest @ ..] = rest else { return Err("expected HASH/SIZE".into()) };
    let digest = BlobDigest::from_parts(function, hash, parse_size(size)?);
    Ok((digest.map_err(|error| error.to_string())?, compressor, rest))
}

fn parse_size(text: &str) -> Result<i64, String> {
    let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()));
    let size = if canonical { text.parse().ok() } else { None };
    size.ok_or_else(|| format!("invalid size {text:?}: expected a number of bytes"))
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_parent(f, &self.instance)?;
        write_blob(f, self)
    }
}

impl fmt::Display for ReadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blob(blob) => blob.fmt(f),
            Self::Log { parent, id } => {
                write_parent(f, parent)?;
                write!(f, "logstreams/{id}")
            }
        }
    }
}

impl fmt::Display for WriteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blob { blob, uuid } => {
                write_parent(f, &blob.instance)?;
                write!(f, "uploads/{uuid}/")?;
                write_blob(f, blob)
            }
            Self::Log { parent, id, token } => {
                write_parent(f, parent)?;
                write!(f, "logstreams/{id}/{token}")
            }
        }
    }
}

fn write_parent(f: &mut fmt::Formatter<'_>, parent: &str) -> fmt::Result {
    if parent.is_empty() { Ok(()) } else { write!(f, "{parent}/") }
}

fn write_blob(f: &mut fmt::Formatter<'_>, blob: &BlobName) -> fmt::Result {
    match blob.compressor {
        Compressor::Identity => write!(f, "blobs/{}", blob.digest),
        Compressor::Zstd => write!(f, "compressed-blobs/zstd/{}", blob.digest),
    }
}

#[cfg(test)]
mod tests;
