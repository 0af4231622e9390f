//! The HTTP client of downloads.

use std::{path::Path, time::Duration};

use futures::StreamExt as _;
use hashing::{ContentHasher, CopyError, copy_stream};
use reqwest::{Client, redirect::Policy};

use crate::download_error::DownloadError;

/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(15);
/// Maximum time without data from the server.
const SILENCE: Duration = Duration::from_secs(60);
const REDIRECTS_MAX: usize = 10;

/// Downloads files over HTTP and HTTPS. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Downloader {
    client: Client,
}

impl Downloader {
    /// Creates a downloader without connections.
    pub fn new() -> Result<Self, DownloadError> {
        // reqwest panics without a provider, even for plain HTTP. A provider that is already installed stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Redirects may lead only to the schemes that URLs may have.
        let policy = Policy::custom(|attempt| {
            if attempt.previous().len() > REDIRECTS_MAX {
                attempt.error("too many redirects")
            } else if matches!(attempt.url().scheme(), "http" | "https") {
                attempt.follow()
            } else {
                attempt.error("redirected to a URL that is neither http nor https")
            }
        });
        let client =
            Client::builder().connect_timeout(CONNECT).read_timeout(SILENCE).redirect(policy).build();
        Ok(Self { client: client.map_err(DownloadError::Client)? })
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
        let response = self.client.execute(request).await?;
        if !response.status().is_success() {
            return Err(DownloadError::Refused(response.status()));
        }
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
        let response = request.send().await?;
        if !response.status().is_success() {
            return Err(DownloadError::Refused(response.status()));
        }
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
}

#[cfg(test)]
mod tests;
