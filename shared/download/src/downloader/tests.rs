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
    let downloader = Downloader::new(Reach::within(&["127.0.0.1".parse().unwrap()])).unwrap();
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

/// Reads `url` with a reach within `hosts`.
async fn read(url: &str, hosts: &[&str]) -> Result<Vec<u8>, DownloadError> {
    let hosts: Vec<_> = hosts.iter().map(|host| host.parse().unwrap()).collect();
    Downloader::new(Reach::within(&hosts)).unwrap().read(url, &[], 100).await
}

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

fn assert_closed(url: &str, answer: &Result<Vec<u8>, DownloadError>) {
    let Err(DownloadError::Closed(error)) = answer else { panic!("{url}: {answer:?}") };
    assert!(error.to_string().contains("fetch_hosts"), "{error}");
}

#[tokio::test]
async fn c4_no_notation_of_an_address_leads_to_this_machine() {
    let url = server(HELLO).await;
    let port = url.strip_prefix("http://127.0.0.1:").unwrap();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "0x7f.1",
        "0.0.0.0",
        "0",
        "localhost",
        "LOCALHOST",
        "user:pass@localhost",
        "example.com@127.0.0.1",
        "127.0.0.1%2f@127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[::]",
        "169.254.169.254",
    ] {
        let url = format!("http://{host}:{port}");
        assert_closed(&url, &read(&url, &[]).await);
    }
    for hosts in [&["127.0.0.1"][..], &["127.0.0.0/8"]] {
        assert_eq!(read(&url, hosts).await.unwrap(), b"hello");
    }
    let by_name = format!("http://localhost:{port}");
    for hosts in [&["localhost"][..], &["127.0.0.1"]] {
        assert_eq!(read(&by_name, hosts).await.unwrap(), b"hello");
    }
    assert_closed(&url, &read(&url, &["127.0.0.1:1", "localhost"]).await);
    assert_eq!(Downloader::new(Reach::everywhere()).unwrap().read(&url, &[], 9).await.unwrap(), b"hello");
}

#[tokio::test]
async fn c4_a_redirect_does_not_lead_to_a_closed_address() {
    let inner = server(HELLO).await;
    let inner_port = inner.strip_prefix("http://127.0.0.1:").and_then(|it| it.strip_suffix("/file")).unwrap();
    for to in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"] {
        let to = format!("http://{to}:{inner_port}/file");
        let redirect =
            format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let outer = server(redirect.leak()).await;
        let port = outer.strip_prefix("http://127.0.0.1:").and_then(|it| it.strip_suffix("/file")).unwrap();
        let only_outer = format!("127.0.0.1:{port}");
        assert_closed(&to, &read(&outer, &[&only_outer]).await);
        let both = [&*only_outer, &format!("127.0.0.1:{inner_port}")];
        assert_eq!(read(&outer, &both).await.unwrap(), b"hello", "{to}");
    }
}

#[tokio::test]
async fn credentials_stay_with_the_host_that_they_are_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let inner = format!("http://{}/file", listener.local_addr().unwrap());
    let received = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = socket.read(&mut request).await.unwrap();
        socket.write_all(HELLO.as_bytes()).await.unwrap();
        String::from_utf8(request[..length].to_vec()).unwrap().to_lowercase()
    });
    let redirect =
        format!("HTTP/1.1 307 x\r\nLocation: {inner}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let outer = server(redirect.leak()).await;
    let downloader = Downloader::new(Reach::within(&["127.0.0.1".parse().unwrap()])).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let headers = [("Authorization", "secret"), ("X-Other", "kept")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let hasher = DigestFunction::Sha256.hasher();
    downloader.download(&outer, &headers, &folder.path().join("file"), 9, hasher).await.unwrap();
    let received = received.await.unwrap();
    assert!(received.contains("x-other: kept") && !received.contains("secret"), "{received}");
}

#[tokio::test]
async fn a_server_that_redirects_for_ever_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            assert_ne!(socket.read(&mut [0; 4096]).await.unwrap(), 0);
            let again = "HTTP/1.1 302 x\r\nLocation: /x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            socket.write_all(again.as_bytes()).await.unwrap();
        }
    });
    let answer = read(&format!("http://{address}/x"), &["127.0.0.1"]).await;
    assert!(matches!(answer, Err(DownloadError::Redirect("too many redirects"))), "{answer:?}");
}
