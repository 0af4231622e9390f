//! A small web server from which remote assets are fetched.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The web server; it stops when this is dropped.
pub(crate) struct Origin {
    base: String,
    hits: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Origin {
    /// Serves `content` as `/blob`, and also `/forbidden` and `/slow`; other paths are not found.
    pub(crate) async fn start(host: &str, content: Vec<u8>) -> std::io::Result<Self> {
        let local = matches!(host, "127.0.0.1" | "localhost");
        let listener = TcpListener::bind((if local { "127.0.0.1" } else { "0.0.0.0" }, 0)).await?;
        let base = format!("http://{host}:{}", listener.local_addr()?.port());
        let hits = Arc::new(AtomicUsize::new(0));
        let (content, counted) = (Arc::new(content), Arc::clone(&hits));
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&content), Arc::clone(&counted)));
            }
        });
        Ok(Self { base, hits, serving })
    }

    /// Returns the URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Number of requests for `/blob`.
    pub(crate) fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }
}

const HEAD_MAX: usize = 16 << 10;

async fn answer(mut stream: TcpStream, content: Arc<Vec<u8>>, hits: Arc<AtomicUsize>) {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_MAX {
        match stream.read_buf(&mut head).await {
            Ok(read) if read > 0 => {}
            Ok(_) | Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let is_head = head.starts_with("HEAD ");
    let path = head.split(' ').nth(1).unwrap_or_default();
    let (status, body): (&str, &[u8]) = match path.split('?').next().unwrap_or_default() {
        "/blob" => {
            if !is_head {
                hits.fetch_add(1, Ordering::SeqCst);
            }
            ("200 OK", &content)
        }
        "/forbidden" => ("403 Forbidden", b"no"),
        "/slow" => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            ("200 OK", b"late")
        }
        _ => ("404 Not Found", b"nothing"),
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    // A client may disconnect early.
    if stream.write_all(head.as_bytes()).await.is_ok() && !is_head && stream.write_all(body).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}
