//! Reads images from registries (OCI Distribution Specification 1.1, "Pull").

use std::{collections::HashMap, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use cas::Cas;
use download::{Downloader, HeaderMap, HeaderName, Response, StatusCode, header};
use futures::StreamExt as _;
use model::{BlobDigest, Digest, ImageReference, PinnedImage};
use parking_lot::Mutex;
use settings::{ImageSettings, RegistrySettings};
use tokio::time::{Instant, timeout};
use tracing::debug;
use url::Url;

use crate::{
    challenge::Challenge,
    error::ImageError,
    manifest::{MANIFEST_BYTES_MAX, MANIFEST_TYPES},
};

/// Where the registry of Docker Hub is.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// Time limit for a manifest with its token, from each server.
const SMALL: Duration = Duration::from_secs(60);
/// Bytes of a layer that a registry must send in each second, on average after [`SMALL`].
const PACE: u64 = 64 << 10;
/// Maximum bytes of the response with a token.
const TOKEN_BYTES_MAX: u64 = 1 << 20;
/// How long a token lasts if its response does not say so (Docker Registry v2 token authentication).
const TOKEN_SECONDS: u64 = 60;
/// A token is renewed this long before its end.
const TOKEN_MARGIN: Duration = Duration::from_secs(10);

/// The registries that the farm reads images from. Clones share connections and tokens.
#[derive(Debug, Clone)]
pub struct Registries {
    downloader: Downloader,
    settings: Arc<ImageSettings>,
    tokens: Arc<Mutex<HashMap<String, Token>>>,
    /// [`SMALL`], except in tests.
    patience: Duration,
}

/// A header that authorises requests, for a while.
#[derive(Clone)]
struct Token {
    header: String,
    until: Instant,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("until", &self.until).finish_non_exhaustive()
    }
}

/// A server that may have an image: the registry of its name, or a mirror.
struct Endpoint<'a> {
    /// Its name for messages, and the key of its settings.
    host: String,
    /// Scheme, host and path before `/v2/`.
    base: String,
    settings: Option<&'a RegistrySettings>,
}

impl Endpoint<'_> {
    /// Notes that it did not give an image. The error of the registry itself, which is asked last, is the result.
    fn note(&self, error: &ImageError) {
        debug!(
            server = self.base,
            error = telemetry::error_chain(error),
            "a registry does not give an image"
        );
    }
}

impl Registries {
    /// Registries as the settings describe them, which `downloader` connects to.
    pub fn new(settings: ImageSettings, downloader: Downloader) -> Self {
        Self { downloader, settings: Arc::new(settings), tokens: Arc::default(), patience: SMALL }
    }

    /// What a name means now. The manifest of a name with a digest is looked for in the store first.
    ///
    /// Fails if the settings do not allow the image, or no registry gives its manifest.
    pub(crate) async fn pin(&self, image: &ImageReference, cas: &Cas) -> Result<PinnedImage, ImageError> {
        self.check_allowed(image)?;
        let stored = match image.digest() {
            Some(digest) => cas.resolve(digest, None).await.ok(),
            None => None,
        };
        let manifest = match stored {
            Some(manifest) => manifest,
            None => self.manifest(image, cas).await?,
        };
        Ok(PinnedImage { reference: image.pinned(Digest::of_blob(&manifest)), manifest })
    }

    /// The manifest or index of an image, checked against its digest if the name has one, and stored.
    ///
    /// Fails if the settings do not allow the image, or no registry gives it.
    pub(crate) async fn manifest(&self, image: &ImageReference, cas: &Cas) -> Result<BlobDigest, ImageError> {
        self.check_allowed(image)?;
        let path = format!("manifests/{}", image.version());
        let mut result = Err(not_found(image));
        for endpoint in self.endpoints(image) {
            let content = timeout(self.patience, self.read(image, &endpoint, &path)).await;
            result = content.unwrap_or_else(|_| Err(too_slow(&endpoint.host, self.patience)));
            match &result {
                Ok(_) => break,
                Err(error) => endpoint.note(error),
            }
        }
        let content = result?;
        let found = Digest::of(&content);
        if let Some(wanted) = image.digest().filter(|wanted| **wanted != found) {
            return Err(ImageError::Invalid(format!(
                "its registry sent a manifest {found} instead of {wanted}"
            )));
        }
        let blob = found.of_size(content.len() as u64);
        cas.put(&blob, content).await.map_err(ImageError::stored)?;
        Ok(blob)
    }

    /// Copies a blob of an image to the store, which checks its digest. `progress` gets the number of bytes of each piece.
    ///
    /// Fails if the settings do not allow the image, no registry gives the blob, or the store does not take it.
    pub(crate) async fn blob(
        &self,
        image: &ImageReference,
        digest: &BlobDigest,
        cas: &Cas,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), ImageError> {
        self.check_allowed(image)?;
        let most = self.patience.saturating_add(Duration::from_secs(digest.size / PACE));
        let mut result = Err(not_found(image));
        for endpoint in self.endpoints(image) {
            let copied = timeout(most, self.copy(image, &endpoint, digest, (cas, progress))).await;
            result = copied.unwrap_or_else(|_| Err(too_slow(&endpoint.host, most)));
            match &result {
                Ok(()) => break,
                Err(error) => endpoint.note(error),
            }
        }
        result
    }

    async fn read(
        &self,
        image: &ImageReference,
        endpoint: &Endpoint<'_>,
        path: &str,
    ) -> Result<Bytes, ImageError> {
        let response = self.get(image, endpoint, path, &MANIFEST_TYPES.join(", ")).await?;
        read(response, MANIFEST_BYTES_MAX, &endpoint.host).await
    }

    async fn copy(
        &self,
        image: &ImageReference,
        endpoint: &Endpoint<'_>,
        digest: &BlobDigest,
        (cas, progress): (&Cas, &(dyn Fn(u64) + Send + Sync)),
    ) -> Result<(), ImageError> {
        let path = format!("blobs/{}", Digest::of_blob(digest));
        let response = self.get(image, endpoint, &path, "*/*").await?;
        let mut writer = cas.writer(*digest).await.map_err(ImageError::stored)?;
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| ImageError::request(&endpoint.host, &error.into()))?;
            progress(piece.len() as u64);
            writer.write(piece).await.map_err(ImageError::stored)?;
        }
        writer.finish().await.map_err(ImageError::stored)
    }

    /// How long a tag that was looked up stands for the same content.
    pub(crate) fn tag_ttl(&self) -> Duration {
        self.settings.tag_ttl
    }

    /// Whether the settings allow an image.
    ///
    /// Fails if they do not, and says which setting.
    pub(crate) fn check_allowed(&self, image: &ImageReference) -> Result<(), ImageError> {
        let allowed = &self.settings.repositories;
        if image.is_of_farm() {
            return Ok(());
        }
        let place = image.place();
        let is_in = |prefix: &String| {
            place.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if allowed.is_empty() || allowed.iter().any(is_in) {
            return Ok(());
        }
        let why = format!("{place} is in none of {}", allowed.join(", "));
        Err(ImageError::NotAllowed { setting: "image_repositories", why })
    }

    /// The mirrors of a registry, then the registry.
    fn endpoints(&self, image: &ImageReference) -> Vec<Endpoint<'_>> {
        if image.is_of_farm() {
            return Vec::new();
        }
        let registry = image.registry();
        let of = |host: &str| self.settings.registries.get(host);
        let own = of(registry);
        let mirrors = own.map(|own| own.mirrors.as_slice()).unwrap_or_default();
        let mirror = |base: &String| {
            let base = base.trim_end_matches('/').to_owned();
            let host = base.split_once("://").map_or(base.as_str(), |(_, rest)| rest);
            let host = host.split('/').next().unwrap_or(host).to_owned();
            Endpoint { settings: of(&host), host, base }
        };
        let scheme = if own.is_some_and(|own| own.plain_http) { "http" } else { "https" };
        let server = if registry == DOCKER_HUB.0 { DOCKER_HUB.1 } else { registry };
        let base = format!("{scheme}://{server}");
        let own = Endpoint { host: registry.to_owned(), base, settings: own };
        mirrors.iter().map(mirror).chain([own]).collect()
    }

    /// Requests a path of a repository; authorises the request if the registry wants that.
    async fn get(
        &self,
        image: &ImageReference,
        endpoint: &Endpoint<'_>,
        path: &str,
        accept: &str,
    ) -> Result<Response, ImageError> {
        let url = format!("{}/v2/{}/{path}", endpoint.base, image.repository());
        let scope = format!("{} {}", endpoint.base, image.repository());
        let token = self.tokens.lock().get(&scope).filter(|it| it.until > Instant::now()).cloned();
        let response = self.send(endpoint, &url, accept, token.map(|it| it.header)).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return accepted(response, endpoint, image, path);
        }
        let token = self.authorise(image, endpoint, response.headers()).await?;
        let response = self.send(endpoint, &url, accept, Some(token.header.clone())).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            self.tokens.lock().insert(scope, token);
        }
        accepted(response, endpoint, image, path)
    }

    async fn send(
        &self,
        endpoint: &Endpoint<'_>,
        url: &str,
        accept: &str,
        authorization: Option<String>,
    ) -> Result<Response, ImageError> {
        let mut headers: Vec<(HeaderName, String)> = vec![(header::ACCEPT, accept.to_owned())];
        headers.extend(authorization.map(|value| (header::AUTHORIZATION, value)));
        match timeout(SMALL, self.downloader.respond(url, &headers)).await {
            Ok(response) => response.map_err(|error| ImageError::request(&endpoint.host, &error)),
            Err(_) => Err(too_slow(&endpoint.host, SMALL)),
        }
    }

    /// Answers the challenge of a registry.
    async fn authorise(
        &self,
        image: &ImageReference,
        endpoint: &Endpoint<'_>,
        headers: &HeaderMap,
    ) -> Result<Token, ImageError> {
        let host = &endpoint.host;
        let basic = credentials(endpoint).await?;
        let denied =
            || ImageError::Denied { registry: host.clone(), status: StatusCode::UNAUTHORIZED.to_string() };
        let challenge = Challenge::find(headers.get_all(header::WWW_AUTHENTICATE)).ok_or_else(denied)?;
        let (realm, service) = match challenge {
            Challenge::Basic => {
                let header = basic.ok_or_else(denied)?;
                return Ok(Token { header, until: after(TOKEN_SECONDS) });
            }
            Challenge::Bearer { realm, service } => (realm, service),
        };
        let wrong = |why: &str| ImageError::Invalid(format!("the registry {host} wants a token {why}"));
        let mut url = Url::parse(&realm).map_err(|_| wrong("from an invalid URL"))?;
        let is_plain = endpoint.base.starts_with("http://");
        if url.scheme() != "https" && !(is_plain && url.scheme() == "http") {
            return Err(wrong("from a URL that is not https"));
        }
        let scope = format!("repository:{}:pull", image.repository());
        url.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", &service);
        }
        let response = self.send(endpoint, url.as_str(), "application/json", basic).await?;
        if !response.status().is_success() {
            return Err(refusal(&response, host, denied));
        }
        let content = read(response, TOKEN_BYTES_MAX, host).await?;
        Token::read(&content).ok_or_else(|| wrong("but its token server sends none"))
    }
}

impl Token {
    /// Reads the response of a token server.
    fn read(content: &[u8]) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Response {
            token: Option<String>,
            access_token: Option<String>,
            expires_in: Option<u64>,
        }
        let response: Response = serde_json::from_slice(content).ok()?;
        let token = response.token.or(response.access_token)?;
        let is_visible = token.bytes().all(|byte| byte.is_ascii_graphic());
        let until = after(response.expires_in.unwrap_or(TOKEN_SECONDS).max(1));
        is_visible.then(|| Self { header: format!("Bearer {token}"), until })
    }
}

/// The moment from which a token of so many seconds is not used any more.
fn after(seconds: u64) -> Instant {
    let life = Duration::from_secs(seconds.min(24 * 3600));
    Instant::now() + life.saturating_sub(TOKEN_MARGIN)
}

/// The header with the configured credentials of a registry.
async fn credentials(endpoint: &Endpoint<'_>) -> Result<Option<String>, ImageError> {
    let Some(settings) = endpoint.settings.filter(|settings| !settings.username.is_empty()) else {
        return Ok(None);
    };
    let password = tokio::fs::read_to_string(&settings.password_file).await;
    let doing =
        || format!("reading the password of {} from {}", endpoint.host, settings.password_file.display());
    let password = password.map_err(|source| ImageError::file(doing(), source))?;
    Ok(Some(format!("Basic {}", STANDARD.encode(format!("{}:{}", settings.username, password.trim_end())))))
}

/// The response if it is a success.
fn accepted(
    response: Response,
    endpoint: &Endpoint<'_>,
    image: &ImageReference,
    path: &str,
) -> Result<Response, ImageError> {
    if response.status().is_success() {
        return Ok(response);
    }
    Err(refusal(&response, &endpoint.host, || match response.status() {
        StatusCode::NOT_FOUND => ImageError::NotFound(format!("{path} of {}", image.place())),
        status => ImageError::Denied { registry: endpoint.host.clone(), status: status.to_string() },
    }))
}

/// The error for a response that is not a success. `own` is the one for a fault of the request.
fn refusal(response: &Response, registry: &str, own: impl Fn() -> ImageError) -> ImageError {
    let status = response.status();
    let is_temporary = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
    if !is_temporary && status.is_client_error() {
        return own();
    }
    let seconds =
        response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let retry_after = seconds.map(Duration::from_secs);
    ImageError::Unavailable {
        registry: registry.to_owned(),
        why: format!("it responds with {status}"),
        retry_after,
    }
}

/// Before any server was asked.
fn not_found(image: &ImageReference) -> ImageError {
    match image.digest() {
        Some(_) if image.is_of_farm() => ImageError::Gone,
        None if image.is_of_farm() => {
            ImageError::Invalid("images of the farm are named by digest, or as env = NAME".to_owned())
        }
        Some(_) | None => ImageError::NotFound(image.to_string()),
    }
}

fn too_slow(registry: &str, limit: Duration) -> ImageError {
    let why = format!("it took more than {} s", limit.as_secs_f64());
    ImageError::Unavailable { registry: registry.to_owned(), why, retry_after: None }
}

/// The whole content of a response, of at most `most` bytes.
async fn read(response: Response, most: u64, registry: &str) -> Result<Bytes, ImageError> {
    let mut content = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece.map_err(|error| ImageError::request(registry, &error.into()))?);
        if content.len() as u64 > most {
            return Err(ImageError::Invalid(format!("a response of {registry} is larger than {most} bytes")));
        }
    }
    Ok(content.into())
}

#[cfg(test)]
mod tests;
