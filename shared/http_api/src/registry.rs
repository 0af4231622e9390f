//! A registry of the environments that the farm stores, to read from (OCI Distribution Specification 1.1, "Pull").
//!
//! A repository is an environment, its tags are the numbers of its ready versions, and `latest`. Only blobs of such a version are
//! sent: other content of the store is not.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Extension as FromExtensions, Path, State as FromState},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing,
};
use callers::Caller;
use cas::CasError;
use client::ClientError;
use model::{BlobDigest, Digest, Environment, EnvironmentName, EnvironmentState, ErrorCode};
use policy::access::Right;
use serde::Deserialize;
use serde_json::json;

use crate::{
    access::{RouteNeed, Routes},
    environments::may_see,
    state::Api,
};

const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const VERSION: (HeaderName, &str) =
    (HeaderName::from_static("docker-distribution-api-version"), "registry/2.0");
/// Maximum bytes of a manifest, which the specification suggests.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// The tag of the newest version.
const LATEST: &str = "latest";

/// The routes of the registry.
pub(crate) fn routes() -> Routes<Api> {
    let need = RouteNeed::Right(Right::CacheRead);
    Routes::default().route(Method::GET, "/v2/", RouteNeed::Known, routing::get(check)).route(
        Method::GET,
        "/v2/{*path}",
        need,
        routing::get(read),
    )
}

/// An error in the form of the specification.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, code, message: message.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let errors = json!({ "errors": [{ "code": self.code, "message": self.message }] });
        (self.status, [VERSION], Json(errors)).into_response()
    }
}

impl From<ClientError> for Refusal {
    fn from(error: ClientError) -> Self {
        let message = telemetry::error_chain(&error);
        if matches!(error, ClientError::Api(error) if error.error == ErrorCode::NotFound) {
            return Self::new("NAME_UNKNOWN", message);
        }
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code: "UNKNOWN", message }
    }
}

impl From<CasError> for Refusal {
    fn from(error: CasError) -> Self {
        let message = telemetry::error_chain(&error);
        if error.is_about_content() {
            return Self::new("BLOB_UNKNOWN", message);
        }
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code: "UNKNOWN", message }
    }
}

/// Handles `GET /v2/`: says that this is a registry.
async fn check() -> impl IntoResponse {
    ([VERSION], Json(json!({})))
}

/// What a path below `/v2/` names.
#[derive(Debug, PartialEq, Eq)]
enum Asked<'a> {
    Catalog,
    Tags { name: &'a str },
    Manifest { name: &'a str, reference: &'a str },
    Blob { name: &'a str, digest: &'a str },
}

impl<'a> Asked<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        if path == "_catalog" {
            return Some(Self::Catalog);
        }
        if let Some(name) = path.strip_suffix("/tags/list") {
            return Some(Self::Tags { name });
        }
        if let Some((name, reference)) = path.rsplit_once("/manifests/") {
            return Some(Self::Manifest { name, reference });
        }
        path.rsplit_once("/blobs/").map(|(name, digest)| Self::Blob { name, digest })
    }
}

/// Handles `GET /v2/…`: sends a manifest, a blob or a list.
async fn read(
    FromState(api): FromState<Api>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    Path(path): Path<String>,
) -> Result<Response, Refusal> {
    let asked = Asked::parse(&path);
    match asked.ok_or_else(|| Refusal::new("UNSUPPORTED", "no resource of a registry is at this path"))? {
        Asked::Catalog => {
            let all = api.client.environments().await?;
            let names = all.iter().map(|environment| &environment.name);
            let names: Vec<String> =
                names.filter(|name| may_see(&caller.rights, name)).map(ToString::to_string).collect();
            Ok(([VERSION], Json(json!({ "repositories": names }))).into_response())
        }
        Asked::Tags { name } => {
            let tags = tags(&environment(&api, &caller, name).await?);
            Ok(([VERSION], Json(json!({ "name": name, "tags": tags }))).into_response())
        }
        Asked::Manifest { name, reference } => {
            let found = manifest(&environment(&api, &caller, name).await?, reference);
            let unknown = || {
                let message = format!("the farm stores no image {reference} of the environment {name}");
                Refusal::new("MANIFEST_UNKNOWN", message)
            };
            send_manifest(&api, &found.ok_or_else(unknown)?).await
        }
        Asked::Blob { name, digest } => {
            let environment = environment(&api, &caller, name).await?;
            let blob = digest.parse().ok().and_then(|digest| blob_of(&environment, &digest));
            let unknown = || {
                Refusal::new(
                    "BLOB_UNKNOWN",
                    format!("{digest} is in no ready version of the environment {name}"),
                )
            };
            send_blob(&api, &blob.ok_or_else(unknown)?).await
        }
    }
}

async fn environment(api: &Api, caller: &Caller, name: &str) -> Result<Environment, Refusal> {
    let name: EnvironmentName =
        name.parse().map_err(|error: model::ParseIdError| Refusal::new("NAME_INVALID", error.to_string()))?;
    // The answer does not say whether another group has it.
    if !may_see(&caller.rights, &name) {
        return Err(Refusal::new("NAME_UNKNOWN", format!("there is no environment {name}")));
    }
    Ok(api.client.environment(&name).await?)
}

/// The blobs of each version that the farm stores, with its number, the oldest first.
fn stored(environment: &Environment) -> impl DoubleEndedIterator<Item = (u32, &[BlobDigest])> {
    environment.versions.iter().filter_map(|version| match &version.state {
        EnvironmentState::Ready { blobs, .. } if !blobs.is_empty() => {
            Some((version.number, blobs.as_slice()))
        }
        EnvironmentState::Ready { .. }
        | EnvironmentState::Proposed
        | EnvironmentState::Approved { .. }
        | EnvironmentState::Failed { .. } => None,
    })
}

fn tags(environment: &Environment) -> Vec<String> {
    let numbers = stored(environment).map(|(number, _)| number.to_string());
    let mut tags: Vec<String> = numbers.collect();
    if !tags.is_empty() {
        tags.push(LATEST.to_owned());
    }
    tags
}

/// The manifest that a tag or a digest means.
fn manifest(environment: &Environment, reference: &str) -> Option<BlobDigest> {
    if reference.contains(':') {
        return blob_of(environment, &reference.parse().ok()?);
    }
    let is_meant = |number: u32| reference == LATEST || reference == number.to_string();
    let (_, blobs) = stored(environment).rev().find(|(number, _)| is_meant(*number))?;
    blobs.first().copied()
}

fn blob_of(environment: &Environment, digest: &Digest) -> Option<BlobDigest> {
    stored(environment).flat_map(|(_, blobs)| blobs).find(|blob| Digest::of_blob(blob) == *digest).copied()
}

async fn send_manifest(api: &Api, manifest: &BlobDigest) -> Result<Response, Refusal> {
    let content = api.cas.read_whole(manifest, MANIFEST_BYTES_MAX).await?;
    let media_type = media_type(&content).ok_or_else(|| {
        Refusal::new("MANIFEST_UNKNOWN", "it is a part of the environment, but not a manifest")
    })?;
    let head =
        [VERSION, (DIGEST, &Digest::of_blob(manifest).to_string()), (header::CONTENT_TYPE, media_type)];
    Ok((head, content).into_response())
}

/// The media type that a manifest or index says, or that of its form.
fn media_type(content: &[u8]) -> Option<&'static str> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Form {
        media_type: Option<String>,
        layers: Option<serde::de::IgnoredAny>,
        manifests: Option<serde::de::IgnoredAny>,
    }
    const TYPES: [&str; 4] = [
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    ];
    let form: Form = serde_json::from_slice(content).ok()?;
    let said = form.media_type.and_then(|said| TYPES.into_iter().find(|known| *known == said));
    let [manifest, index, ..] = TYPES;
    said.or(form.layers.map(|_| manifest)).or(form.manifests.map(|_| index))
}

async fn send_blob(api: &Api, blob: &BlobDigest) -> Result<Response, Refusal> {
    let parts = api.cas.read(blob, 0, None).await?.ok_or(CasError::Missing { digest: *blob })?;
    let digest = Digest::of_blob(blob).to_string();
    let head = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_LENGTH, HeaderValue::from(blob.size)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((head, [VERSION, (DIGEST, &digest)], Body::from_stream(parts)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        let version = |number: u32, state: serde_json::Value| {
            let mut version = json!({
                "number": number, "definition": { "debian": "bookworm" }, "proposed": { "at_ms": 1 }
            });
            version.as_object_mut().unwrap().extend(state.as_object().unwrap().clone());
            version
        };
        let ready = |number: u32| {
            let blobs: Vec<BlobDigest> =
                [number, number + 100].map(|it| Digest::of(&it.to_le_bytes()).of_size(4)).into();
            let image = format!("docker://forebay.internal/gcc@{}", Digest::of(&number.to_le_bytes()));
            version(number, json!({ "state": "ready", "image": image, "blobs": blobs }))
        };
        let failed = version(4, json!({ "state": "failed", "reason": "no" }));
        let versions = [ready(1), ready(3), failed];
        serde_json::from_value(json!({ "name": "gcc", "versions": versions, "last_number": 4 })).unwrap()
    }

    #[test]
    fn a_tag_is_a_ready_version() {
        let environment = environment();
        assert_eq!(tags(&environment), ["1", "3", "latest"]);
        let of = |reference: &str| manifest(&environment, reference).map(|blob| Digest::of_blob(&blob));
        assert_eq!(of("latest"), Some(Digest::of(&3_u32.to_le_bytes())));
        assert_eq!(of("1"), Some(Digest::of(&1_u32.to_le_bytes())));
        assert_eq!((of("2"), of("4"), of("01")), (None, None, None));
        assert_eq!(of(Digest::of(&101_u32.to_le_bytes()).as_str()), Some(Digest::of(&101_u32.to_le_bytes())));
        assert_eq!(of(Digest::of(b"other").as_str()), None);
    }

    #[test]
    fn a_path_names_a_repository_that_may_have_a_group() {
        assert_eq!(Asked::parse("_catalog"), Some(Asked::Catalog));
        assert_eq!(Asked::parse("g/gcc/tags/list"), Some(Asked::Tags { name: "g/gcc" }));
        let manifest = Asked::Manifest { name: "gcc", reference: "latest" };
        assert_eq!(Asked::parse("gcc/manifests/latest"), Some(manifest));
        let blob = Asked::Blob { name: "g/gcc", digest: "sha256:0" };
        assert_eq!(Asked::parse("g/gcc/blobs/sha256:0"), Some(blob));
        assert_eq!(Asked::parse("gcc"), None);
    }

    #[test]
    fn a_manifest_without_media_type_has_that_of_its_form() {
        let oci = |kind: &str| format!("application/vnd.oci.image.{kind}.v1+json");
        assert_eq!(media_type(br#"{"layers":[]}"#), Some(oci("manifest").as_str()));
        assert_eq!(media_type(br#"{"manifests":[]}"#), Some(oci("index").as_str()));
        let docker = "application/vnd.docker.distribution.manifest.v2+json";
        assert_eq!(media_type(format!(r#"{{"mediaType":"{docker}","layers":[]}}"#).as_bytes()), Some(docker));
        assert_eq!(media_type(br#"{"mediaType":"text/html"}"#), None);
        assert_eq!(media_type(b"layer"), None);
    }
}
