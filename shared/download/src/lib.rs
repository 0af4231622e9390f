//! Downloads files over HTTP and HTTPS, with the same rules in every service.

mod download_error;
mod downloader;
mod reach;

pub use download_error::DownloadError;
pub use downloader::Downloader;
pub use reach::{Reach, ReachError};
pub use reqwest::{
    Error as TransferError, Response, StatusCode,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
