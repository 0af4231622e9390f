//! The HTTP client of downloads.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use futures::StreamExt as _;
use hashing::{ContentHasher, CopyError, copy_stream};
use parking_lot::Mutex;
use reqwest::{
    Client, ClientBuilder, Request, Response, StatusCode,
    header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, LOCATION, PROXY_AUTHORIZATION},
    redirect::Policy,
};
use url::{Host, Url};

use crate::{download_error::DownloadError, reach::Reach};

/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(15);
/// Maximum time without data from the server.
const SILENCE: Duration = Duration::from_secs(60);
const REDIRECTS_MAX: usize = 10;

/// Downloads files over HTTP and HTTPS. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Downloader {
    reach: Reach,
    /// Makes requests, and sends those to hosts that need no check of their addresses.
    client: Client,
    /// The client of the last host whose addresses were checked.
    last: Arc<Mutex<Option<HostClient>>>,
}

/// A client that connects to one host at these addresses only.
#[derive(Debug)]
struct HostClient {
    host: String,
    addresses: Vec<SocketAddr>,
    client: Client,
}

impl Downloader {
    /// Creates a downloader without connections, which connects to hosts within `reach`.
    pub fn new(reach: Reach) -> Result<Self, DownloadError> {
        // reqwest panics without a provider, even for plain HTTP. A provider that is already installed stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = builder().build().map_err(DownloadError::Client)?;
        Ok(Self { reach, client, last: Arc::default() })
    }

    /// Returns the content of `url` with a query, of at most `bytes_max` bytes.
    pub async fn read(
        &self,
        url: &str,
        query: &[(&str, &str)],
        bytes_max: u64,
    ) -> Result<Vec<u8>, DownloadError> {
        let mut request = self.client.get(url).build()?;
        request.url_mut().query_pairs_mut().extend_pairs(query);
        content(self.execute(request).await?, bytes_max).await
    }

    /// Sends `body` to `url`, and returns the response with at most `bytes_max` bytes, whatever its status. Redirects are not
    /// followed: what is sent is for this server.
    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: Vec<u8>,
        bytes_max: u64,
    ) -> Result<(StatusCode, HeaderMap, Vec<u8>), DownloadError> {
        let request = self.client.post(url).headers(headers).body(body).build()?;
        let response = self.client_for(request.url()).await?.execute(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        Ok((status, headers, content(response, bytes_max).await?))
    }

    /// Downloads `url`, of at most `bytes_max` bytes, into the file `path`, and returns the result of `hasher` for the
    /// content. A failure may leave an incomplete file.
    pub async fn download<H: ContentHasher>(
        &self,
        url: &str,
        headers: &[(String, String)],
        path: &Path,
        bytes_max: u64,
        hasher: H,
    ) -> Result<H::Output, DownloadError> {
        let mut request = self.client.get(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = self.execute(request.build()?).await?;
        if response.content_length().is_some_and(|length| length > bytes_max) {
            return Err(DownloadError::TooLarge { bytes_max });
        }
        let mut file = tokio::fs::File::create(path).await.map_err(DownloadError::Write)?;
        let mut room = bytes_max;
        let pieces = response.bytes_stream().map(move |piece| {
            let piece = piece?;
            room = room.checked_sub(piece.len() as u64).ok_or(DownloadError::TooLarge { bytes_max })?;
            Ok::<_, DownloadError>(piece)
        });
        copy_stream(pieces, &mut file, hasher).await.map_err(|error| match error {
            CopyError::Read(error) => error,
            CopyError::Write(error) => DownloadError::Write(error),
        })
    }

    /// Requests `url` and returns the response, whatever its status, after redirects.
    ///
    /// Fails if there is no response, or if its host may not be connected to.
    pub async fn respond(
        &self,
        url: &str,
        headers: &[(HeaderName, String)],
    ) -> Result<Response, DownloadError> {
        let mut request = self.client.get(url);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        self.follow(request.build()?).await
    }

    /// Sends a request without a body, and returns the response after redirects if it is a success.
    async fn execute(&self, request: Request) -> Result<Response, DownloadError> {
        let response = self.follow(request).await?;
        let status = response.status();
        if status.is_success() { Ok(response) } else { Err(DownloadError::Refused(status)) }
    }

    /// Sends a request without a body, and follows redirects. The addresses of each host on the way are checked: a redirect
    /// may lead to another host.
    async fn follow(&self, mut request: Request) -> Result<Response, DownloadError> {
        for _ in 0..=REDIRECTS_MAX {
            let client = self.client_for(request.url()).await?;
            let (from, headers) = (request.url().clone(), request.headers().clone());
            let response = client.execute(request).await?;
            let Some(to) = redirection(&from, &response)? else { return Ok(response) };
            request = self.client.get(to).build()?;
            let is_same_host = from.origin() == request.url().origin();
            for (name, value) in &headers {
                // Credentials are for the host that they were given for.
                let is_secret = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].contains(name);
                if (is_same_host || !is_secret) && !request.headers().contains_key(name) {
                    request.headers_mut().append(name, value.clone());
                }
            }
        }
        Err(DownloadError::Redirect("too many redirects"))
    }

    /// A client that connects only to addresses that are open now: a name may resolve to others the next time.
    async fn client_for(&self, url: &Url) -> Result<Client, DownloadError> {
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Ok(self.client.clone());
        };
        let name = match host {
            // Numbers in any notation are addresses here.
            Host::Ipv4(address) => {
                self.reach.resolve(&address.to_string(), port).await?;
                return Ok(self.client.clone());
            }
            Host::Ipv6(address) => {
                self.reach.resolve(&address.to_string(), port).await?;
                return Ok(self.client.clone());
            }
            Host::Domain(name) => name,
        };
        // A proxy may know a name that cannot be resolved here.
        if self.reach.is_named(name, port) {
            return Ok(self.client.clone());
        }
        let mut addresses = self.reach.resolve(name, port).await?;
        addresses.sort_unstable();
        let mut last = self.last.lock();
        if let Some(known) = last.as_ref().filter(|it| it.host == name && it.addresses == addresses) {
            return Ok(known.client.clone());
        }
        let client = builder().resolve_to_addrs(name, &addresses).build().map_err(DownloadError::Client)?;
        *last = Some(HostClient { host: name.to_owned(), addresses, client: client.clone() });
        Ok(client)
    }
}

async fn content(response: Response, bytes_max: u64) -> Result<Vec<u8>, DownloadError> {
    let mut content = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece?);
        if content.len() as u64 > bytes_max {
            return Err(DownloadError::TooLarge { bytes_max });
        }
    }
    Ok(content)
}

fn builder() -> ClientBuilder {
    Client::builder().connect_timeout(CONNECT).read_timeout(SILENCE).redirect(Policy::none())
}

/// Where a response redirects to: only to the schemes that URLs may have.
fn redirection(from: &Url, response: &Response) -> Result<Option<Url>, DownloadError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
    let invalid = DownloadError::Redirect("redirected to an invalid URL");
    let Some(to) = location.to_str().ok().and_then(|location| from.join(location).ok()) else {
        return Err(invalid);
    };
    if !matches!(to.scheme(), "http" | "https") {
        return Err(DownloadError::Redirect("redirected to a URL that is neither http nor https"));
    }
    Ok(Some(to))
}

#[cfg(test)]
mod tests;
