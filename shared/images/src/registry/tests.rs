use cas::CasConfig;
use download::Reach;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::sleep,
};

use super::*;

/// A server that answers each request with `begin`, and then goes on with one byte in 5 ms.
async fn dripping(begin: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _read = stream.read(&mut request).await;
                let mut sent = stream.write_all(begin.as_bytes()).await;
                while sent.is_ok() {
                    sleep(Duration::from_millis(5)).await;
                    sent = stream.write_all(b"x").await;
                }
            });
        }
    });
    host
}

fn registries(host: &str) -> Registries {
    let of_host = RegistrySettings { plain_http: true, ..RegistrySettings::default() };
    let settings = ImageSettings {
        repositories: Vec::new(),
        environments: [].into(),
        prefetch: false,
        registries: [(host.to_owned(), of_host)].into(),
        bytes_max: 1 << 30,
        tag_ttl: Duration::ZERO,
    };
    let reach = Reach::within(&["127.0.0.0/8".parse().unwrap()]);
    let registries = Registries::new(settings, Downloader::new(reach).unwrap());
    Registries { patience: Duration::from_millis(300), ..registries }
}

#[tokio::test]
async fn a_registry_that_sends_a_byte_now_and_then_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let cas = Cas::open(CasConfig::new(folder.path())).unwrap();
    for begin in ["HTTP/1.1 200 OK\r\nx-endless: ", "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"] {
        let host = dripping(begin).await;
        let registries = registries(&host);
        let image: ImageReference = format!("docker://{host}/a/b:1").parse().unwrap();
        let blob = Digest::of(b"layer").of_size(1000);
        let results = [
            registries.manifest(&image, &cas).await.map(|_| ()),
            registries.blob(&image, &blob, &cas, &|_| ()).await,
        ];
        for result in results {
            let error = result.unwrap_err();
            assert!(!error.is_final(), "{error:?}");
            let said = telemetry::error_chain(&error);
            assert!(said.contains("it took more than 0.3 s") && said.contains(&host), "{said}");
        }
    }
}
