use model::DigestFunction;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

/// Answers every request with `response`; returns the server's URL.
async fn server(response: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert_ne!(socket.read(&mut request).await.unwrap(), 0);
            socket.write_all(response.as_bytes()).await.unwrap();
        }
    });
    format!("http://{address}/file")
}

async fn download(url: &str, bytes_max: u64) -> Result<model::BlobDigest, DownloadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let downloader = Downloader::new().unwrap();
    let hasher = DigestFunction::Sha256.hasher();
    let digest = downloader.download(url, &[], &path, bytes_max, hasher).await?;
    assert_eq!(DigestFunction::Sha256.digest(&std::fs::read(&path).unwrap()), digest);
    Ok(digest)
}

#[tokio::test]
async fn content_may_have_the_size_of_the_limit() {
    let sized = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let open_ended = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello";
    for response in [sized, open_ended] {
        let url = server(response).await;
        assert_eq!(download(&url, 5).await.unwrap(), DigestFunction::Sha256.digest(b"hello"));
        let refused = download(&url, 4).await;
        assert!(matches!(refused, Err(DownloadError::TooLarge { bytes_max: 4 })), "{refused:?}");
    }
}

#[tokio::test]
async fn errors_say_what_failed() {
    let forbidden = server("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    let refused = download(&forbidden, 5).await;
    assert!(matches!(refused, Err(DownloadError::Refused(status)) if status == 403), "{refused:?}");
    let elsewhere =
        "HTTP/1.1 302 Found\r\nLocation: ftp://h/file\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let redirected = download(&server(elsewhere).await, 5).await;
    assert!(matches!(redirected, Err(DownloadError::Redirect(_))), "{redirected:?}");
    let broken = server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhel").await;
    let broken = download(&broken, 5).await;
    assert!(matches!(broken, Err(DownloadError::Unreachable(_))), "{broken:?}");
    let invalid = download("no URL", 5).await;
    assert!(matches!(invalid, Err(DownloadError::Invalid(_))), "{invalid:?}");
}
