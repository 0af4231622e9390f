//! Downloads of assets over HTTP and HTTPS.

use std::{path::Path, time::Duration};

use futures::StreamExt as _;
use reapi::rpc;
use reqwest::{Client, StatusCode, redirect::Policy};
use tokio::io::AsyncWriteExt as _;
use tonic::Code;

use super::{key::DownloadOptions, sri::Checksum};

const CONNECT: Duration = Duration::from_secs(15);
const REDIRECTS: usize = 10;

/// The status of a failed download for the response.
pub(crate) fn fault(code: Code, message: impl Into<String>) -> rpc::Status {
    rpc::Status { code: code.into(), message: message.into(), details: Vec::new() }
}

/// Creates the HTTP client for downloads.
pub(crate) fn client() -> Result<Client, reqwest::Error> {
    // reqwest panics without a provider, even for plain HTTP. A provider that is already installed stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Redirects may lead only to the schemes that URIs may have.
    let policy = Policy::custom(|attempt| {
        if attempt.previous().len() > REDIRECTS {
            attempt.error("too many redirects")
        } else if matches!(attempt.url().scheme(), "http" | "https") {
            attempt.follow()
        } else {
            attempt.error("redirected to a URL that is neither http nor https")
        }
    });
    Client::builder().connect_timeout(CONNECT).redirect(policy).build()
}

/// Downloads `uri` into the file `path` and verifies the checksum.
pub(crate) async fn download(
    client: &Client,
    uri: &str,
    options: &DownloadOptions,
    checksum: Option<Checksum>,
    bytes_max: u64,
    path: &Path,
) -> Result<(), rpc::Status> {
    let mut request = client.get(uri);
    for (name, value) in &options.headers {
        request = request.header(name, value);
    }
    let answer = request.send().await.map_err(|error| unreachable(uri, &error))?;
    if !answer.status().is_success() {
        return Err(refused(uri, answer.status()));
    }
    let too_large =
        || fault(Code::ResourceExhausted, format!("{uri} exceeds the limit of {bytes_max} bytes"));
    if answer.content_length().is_some_and(|length| length > bytes_max) {
        return Err(too_large());
    }
    let disk = |error: std::io::Error| fault(Code::ResourceExhausted, format!("cannot store {uri}: {error}"));
    let mut file = tokio::fs::File::create(path).await.map_err(disk)?;
    let mut checksum = checksum;
    let mut room = bytes_max;
    let mut pieces = answer.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| unreachable(uri, &error))?;
        room = room.checked_sub(piece.len() as u64).ok_or_else(too_large)?;
        if let Some(checksum) = checksum.as_mut() {
            checksum.update(&piece);
        }
        file.write_all(&piece).await.map_err(disk)?;
    }
    file.flush().await.map_err(disk)?;
    if checksum.is_none_or(Checksum::holds) {
        return Ok(());
    }
    Err(fault(Code::Aborted, format!("the content of {uri} does not match checksum.sri")))
}

fn unreachable(uri: &str, error: &reqwest::Error) -> rpc::Status {
    let text = telemetry::error_chain(error);
    if error.is_timeout() {
        return fault(Code::DeadlineExceeded, format!("fetching {uri} timed out: {text}"));
    }
    if error.is_builder() {
        return fault(Code::NotFound, format!("invalid URI {uri}: {text}"));
    }
    fault(Code::NotFound, format!("cannot fetch {uri}: {text}"))
}

fn refused(uri: &str, status: StatusCode) -> rpc::Status {
    let code = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Code::DeadlineExceeded,
        status if status.is_server_error() => Code::Aborted,
        _ => Code::NotFound,
    };
    fault(code, format!("{uri} responded with {status}"))
}
