//! Downloads of assets over HTTP and HTTPS.

use std::path::Path;

use ::download::{DownloadError, Downloader, StatusCode};
use reapi::rpc;
use tonic::Code;

use super::{key::DownloadOptions, sri::Checksum};

/// The status of a failed download for the response.
pub(crate) fn fault(code: Code, message: impl Into<String>) -> rpc::Status {
    rpc::Status { code: code.into(), message: message.into(), details: Vec::new() }
}

/// Downloads `uri` into the file `path` and verifies the checksum.
pub(crate) async fn download(
    downloader: &Downloader,
    uri: &str,
    options: &DownloadOptions,
    checksum: Option<Checksum>,
    bytes_max: u64,
    path: &Path,
) -> Result<(), rpc::Status> {
    let fetched = downloader.download(uri, &options.headers, path, bytes_max, checksum).await;
    match fetched.map_err(|error| failed(uri, &error))? {
        Some(true) | None => Ok(()),
        Some(false) => Err(fault(Code::Aborted, format!("the content of {uri} does not match checksum.sri"))),
    }
}

fn failed(uri: &str, error: &DownloadError) -> rpc::Status {
    let text = || telemetry::error_chain(error);
    match error {
        DownloadError::TimedOut(_) => {
            fault(Code::DeadlineExceeded, format!("fetching {uri} timed out: {}", text()))
        }
        DownloadError::Invalid(_) => fault(Code::NotFound, format!("invalid URI {uri}: {}", text())),
        DownloadError::Closed(_) => fault(Code::PermissionDenied, format!("cannot fetch {uri}: {}", text())),
        DownloadError::Client(_)
        | DownloadError::Redirect(_)
        | DownloadError::Unreachable(_)
        | DownloadError::Unresolved(_) => fault(Code::NotFound, format!("cannot fetch {uri}: {}", text())),
        DownloadError::Refused(status) => refused(uri, *status),
        DownloadError::TooLarge { bytes_max } => {
            fault(Code::ResourceExhausted, format!("{uri} exceeds the limit of {bytes_max} bytes"))
        }
        DownloadError::Write(error) => fault(Code::ResourceExhausted, format!("cannot store {uri}: {error}")),
    }
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
