//! Names, numbers, digests, URLs and subjects in texts.

use std::{fmt::Display, str::FromStr};

use bus::{
    ActionSubject, BazelSubject, EventSubject, ExecutorLeaseSubject, LeaseSubject, RequestId, RequestSubject,
};
use fuzz_tests::{Target, fuzz};
use model::{
    ActionOrder, Amount, BlobDigest, BuildKey, Digest, EnvironmentName, ExecutionKey, ExecutorId, FetchHost,
    Group, ImageReference, Priority, PublicUrl, RequirementsId, ScaledPool, SecretRequest, SecretVariable,
    SendingBuild, ServiceName, TaskId, WorkerId, Workspace, Zone,
};
use policy::zones::Zones;
use reapi::resource::{ReadName, WriteName};

use crate::choice::{Reader, outcome, read, seed};

const WORDS: &[&[u8]] = &[
    b"/",
    b".",
    b":",
    b"@",
    b"*",
    b">",
    b"-",
    b"_",
    b" ",
    b"\0",
    b"..",
    b"//",
    b"://",
    b"https://",
    b"user:pw@",
    b"[::1]",
    b"%2e",
    b"sha256:",
    b"blake3/",
    b"blobs/",
    b"uploads/",
    b"compressed-blobs/zstd/",
    b"operations/",
    b"logstreams/",
    b"live.",
    b"0198c5d3-0000-7000-8000-000000000001",
    b"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    b"GB",
    b"KiB",
    b"1e300",
    b"NaN",
    b"-0",
    b"forebay.build.event.",
    b"forebay.action.event.",
    b"$KV.FOREBAY_LEASES.",
    b"lifecycle",
    b"bazel.",
    "\u{202e}".as_bytes(),
    "é".as_bytes(),
];

/// What is accepted is the same when it is written and read again.
fn name<T: FromStr + Display>(input: &[u8]) -> String
where
    T::Err: Display,
{
    let Ok(text) = str::from_utf8(input) else { return String::new() };
    let parsed: T = match text.parse() {
        Err(error) => return format!("{error}"),
        Ok(parsed) => parsed,
    };
    let written = parsed.to_string();
    let again: T = written.parse().unwrap_or_else(|error| panic!("{text:?} is written {written:?}: {error}"));
    assert_eq!(again.to_string(), written, "{text:?}");
    "read".to_owned()
}

/// A name that is only read.
fn parsed<T: FromStr>(input: &[u8]) -> String
where
    T::Err: Display,
{
    str::from_utf8(input).map_or_else(|_| String::new(), |text| outcome(text.parse::<T>()))
}

macro_rules! resource {
    ($name:ident: $kind:ty) => {
        fn $name(input: &[u8]) -> String {
            let Ok(text) = str::from_utf8(input) else { return String::new() };
            let parsed = match <$kind>::parse(text) {
                Err(error) => return error.to_string(),
                Ok(parsed) => parsed,
            };
            let written = parsed.to_string();
            assert_eq!(<$kind>::parse(&written).ok(), Some(parsed), "{text:?} is written {written:?}");
            "read".to_owned()
        }
    };
}
resource!(read_name: ReadName);
resource!(write_name: WriteName);

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const ID: &str = "0198c5d3-0000-7000-8000-000000000001";

/// Parsers of identifiers and of subjects, each with a good text.
fn identifiers() -> Vec<(Reader, String)> {
    vec![
        (name::<Group>, "web".into()),
        (name::<WorkerId>, "worker-1.0a".into()),
        (name::<ExecutorId>, "executor-1.0a".into()),
        (name::<Workspace>, "worker-1.0a/1".into()),
        (name::<TaskId>, "compile".into()),
        (name::<Zone>, "web".into()),
        (name::<Priority>, "batch".into()),
        (name::<BuildKey>, format!("web/{ID}")),
        (name::<ExecutionKey>, format!("web/{ID}")),
        (name::<SendingBuild>, format!("worker-1.0a/{ID}/1")),
        (name::<RequestId>, format!("web/{ID}")),
        (name::<RequirementsId>, HASH[..16].into()),
        (name::<RequestSubject>, "forebay.build.request.web.batch".into()),
        (parsed::<EventSubject>, format!("forebay.build.event.web.{ID}.lifecycle")),
        (name::<LeaseSubject>, format!("$KV.FOREBAY_LEASES.web.{ID}")),
        (name::<ActionSubject>, format!("forebay.action.event.web.{ID}")),
        (name::<ExecutorLeaseSubject>, "$KV.FOREBAY_EXECUTORS.executor-1.0a".into()),
        (parsed::<BazelSubject>, format!("forebay.bazel.event.web.{ID}")),
    ]
}

/// Parsers of digests, URLs and of what requests ask for.
fn values() -> Vec<(Reader, String)> {
    vec![
        (name::<Digest>, format!("sha256:{HASH}")),
        (name::<BlobDigest>, format!("{HASH}/5")),
        (name::<Amount>, "2.5".into()),
        (name::<PublicUrl>, "https://farm.example.com/forebay".into()),
        (name::<FetchHost>, "*.example.com:8443".into()),
        (name::<ImageReference>, format!("registry.example.com/a/b:1@sha256:{HASH}")),
        (name::<EnvironmentName>, "web/gcc".into()),
        (name::<SecretRequest>, "token".into()),
        (name::<SecretVariable>, "TOKEN=token".into()),
        (name::<ServiceName>, "db".into()),
        (name::<ScaledPool>, "workers".into()),
        (parsed::<ActionOrder>, "fair".into()),
        (parsed::<Zones>, "web=web other=other".into()),
        (read_name, format!("main/blobs/{HASH}/5")),
        (read_name, format!("logstreams/live.web.{ID}.stdout")),
        (write_name, format!("main/uploads/{ID}/compressed-blobs/zstd/blake3/{HASH}/5/file")),
        (write_name, format!("logstreams/{ID}/token")),
    ]
}

fn run(target: &str, all: &[(Reader, String)]) {
    let seeds = all.iter().enumerate().map(|(place, (_, text))| seed(place, text)).collect();
    let readers: Vec<Reader> = all.iter().map(|(reader, _)| *reader).collect();
    fuzz(&Target { name: target, seeds, words: WORDS, check: &|input| read(&readers, input) });
}

#[test]
fn identifiers_are_refused_or_written_as_they_were_read() {
    run("identifiers", &identifiers());
}

#[test]
fn digests_urls_and_resource_names_are_refused_or_written_as_they_were_read() {
    run("values", &values());
}
