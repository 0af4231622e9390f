//! A registry of images on this machine, which counts what is read and can misbehave.

use std::{collections::HashMap, fs, path::Path, process::Command, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures::StreamExt as _;
use model::Digest;
use parking_lot::Mutex;
use tokio::sync::watch;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const TOKEN: &str = "a-token";

/// The answer to a request that is not the content.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    Status(u16, &'static str),
    /// Other content of this length.
    Wrong,
    /// The first half of the content.
    Truncated,
    Redirect(String),
    /// The first half of the content, and the rest when this is true.
    Held(watch::Receiver<bool>),
    /// The headers at once, and the content when the registry is mended.
    HeldUntilMended,
}

#[derive(Default)]
struct Content {
    /// Blobs and manifests by digest.
    blobs: HashMap<String, Bytes>,
    /// Digests of manifests by `repository:tag`.
    tags: HashMap<String, String>,
    /// Faults of paths that contain a text.
    faults: Vec<(String, Fault)>,
    /// The paths that were read.
    read: Vec<String>,
    /// Name and password that a token needs.
    credentials: Option<String>,
}

/// A registry. Its clones are one.
#[derive(Clone)]
pub(crate) struct Registry {
    content: Arc<Mutex<Content>>,
    host: String,
    mended: Arc<watch::Sender<()>>,
}

impl Registry {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let registry = Self { content: Arc::default(), host, mended: Arc::new(watch::Sender::new(())) };
        let own = registry.clone();
        let router = Router::new().fallback(move |request: Request| {
            let answer = own.answer(&request);
            async { answer }
        });
        tokio::spawn(async { axum::serve(listener, router).await });
        registry
    }

    /// The setting `registries` with which a farm reads from it.
    pub(crate) fn setting(&self) -> String {
        serde_json::json!({ &self.host: { "plain_http": true } }).to_string()
    }

    /// The same with a name and a password.
    pub(crate) fn setting_with(&self, username: &str, password_file: &Path) -> String {
        let own =
            serde_json::json!({ "plain_http": true, "username": username, "password_file": password_file });
        serde_json::json!({ &self.host: own }).to_string()
    }

    /// A name for the value of `container-image`.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("docker://{}/{name}", self.host)
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn require(&self, name: &str, password: &str) {
        self.content.lock().credentials = Some(format!("{name}:{password}"));
    }

    pub(crate) fn fail(&self, path: &str, fault: Fault) {
        self.content.lock().faults.push((path.to_owned(), fault));
    }

    pub(crate) fn mend(&self) {
        self.content.lock().faults.clear();
        self.mended.send_replace(());
    }

    /// How often blobs of layers and configurations were read.
    pub(crate) fn blobs_read(&self) -> usize {
        self.content.lock().read.iter().filter(|path| path.contains("/blobs/")).count()
    }

    pub(crate) fn reads(&self) -> usize {
        self.content.lock().read.len()
    }

    fn put(&self, content: impl Into<Bytes>) -> (String, usize) {
        let content = content.into();
        let (digest, size) = (Digest::of(&content).to_string(), content.len());
        self.content.lock().blobs.insert(digest.clone(), content);
        (digest, size)
    }

    /// Puts an image of uncompressed layers, and lets the tag `repository:tag` mean it. Returns the digest of its manifest.
    pub(crate) fn push(&self, tag: &str, layers: &[Vec<u8>], config: &serde_json::Value) -> String {
        let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
        let layers: Vec<Vec<u8>> = layers.to_vec();
        self.push_as(tag, layers, &diff_ids, config)
    }

    /// The same with any layers and any digests of their content.
    pub(crate) fn push_as(
        &self,
        tag: &str,
        layers: Vec<Vec<u8>>,
        diff_ids: &[String],
        config: &serde_json::Value,
    ) -> String {
        let descriptor = |(digest, size): (String, usize), kind: &str| serde_json::json!({ "mediaType": kind, "digest": digest, "size": size });
        let layers: Vec<_> = layers
            .into_iter()
            .map(|layer| descriptor(self.put(layer), "application/vnd.oci.image.layer.v1.tar"))
            .collect();
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = descriptor(self.put(config.to_string()), "application/vnd.oci.image.config.v1+json");
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        let (digest, _) = self.put(manifest.to_string());
        self.content.lock().tags.insert(tag.to_owned(), digest.clone());
        digest
    }

    /// Writes an image as an OCI image layout.
    pub(crate) fn write_layout(&self, manifest: &str, folder: &Path) {
        let content = self.content.lock();
        let blobs = folder.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        let mut wanted = vec![manifest.to_owned()];
        let document: serde_json::Value = serde_json::from_slice(&content.blobs[manifest]).unwrap();
        let layers = document["layers"].as_array().unwrap().iter();
        let named = layers.chain([&document["config"]]).map(|it| it["digest"].as_str().unwrap().to_owned());
        wanted.extend(named);
        for digest in wanted {
            fs::write(blobs.join(digest.trim_start_matches("sha256:")), &content.blobs[&digest]).unwrap();
        }
        let size = content.blobs[manifest].len();
        let manifest = serde_json::json!({ "mediaType": MANIFEST, "digest": manifest, "size": size });
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [manifest] });
        fs::write(folder.join("index.json"), index.to_string()).unwrap();
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    fn answer(&self, request: &Request) -> Response {
        let path = request.uri().path().to_owned();
        let authorization = request.headers().get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
        let mut content = self.content.lock();
        content.read.push(path.clone());
        if let Some(credentials) = &content.credentials {
            use base64::{Engine as _, engine::general_purpose::STANDARD};
            let basic = format!("Basic {}", STANDARD.encode(credentials));
            if path == "/token" {
                let is_right = authorization == Some(&basic);
                let token = serde_json::json!({ "token": TOKEN, "expires_in": 300 }).to_string();
                return if is_right {
                    token.into_response()
                } else {
                    StatusCode::UNAUTHORIZED.into_response()
                };
            }
            if authorization != Some(&format!("Bearer {TOKEN}")) {
                let challenge = format!("Bearer realm=\"http://{}/token\",service=\"test\"", self.host);
                return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response();
            }
        }
        let fault =
            content.faults.iter().find(|(part, _)| path.contains(part)).map(|(_, fault)| fault.clone());
        let Some((repository, version)) = path
            .strip_prefix("/v2/")
            .and_then(|rest| rest.split_once("/manifests/").or_else(|| rest.split_once("/blobs/")))
        else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let digest =
            content.tags.get(&format!("{repository}:{version}")).cloned().unwrap_or(version.to_owned());
        let Some(found) = content.blobs.get(&digest).cloned() else {
            return StatusCode::NOT_FOUND.into_response();
        };
        match fault {
            None => found.into_response(),
            Some(Fault::Status(code, retry)) => {
                let status = StatusCode::from_u16(code).unwrap();
                (status, [(header::RETRY_AFTER, retry)]).into_response()
            }
            Some(Fault::Wrong) => vec![b'x'; found.len()].into_response(),
            Some(Fault::Truncated) => {
                let half = found.slice(..found.len() / 2);
                let body = Body::from_stream(futures::stream::iter([
                    Ok(half),
                    Err(std::io::Error::other("the connection breaks")),
                ]));
                ([(header::CONTENT_LENGTH, found.len().to_string())], body).into_response()
            }
            Some(Fault::Held(mut release)) => {
                let (half, rest) = (found.slice(..found.len() / 2), found.slice(found.len() / 2..));
                let rest = futures::stream::once(async move {
                    // Without a sender it is released, too.
                    let _ = release.wait_for(|released| *released).await;
                    std::io::Result::Ok(rest)
                });
                let body = Body::from_stream(futures::stream::iter([Ok(half)]).chain(rest));
                ([(header::CONTENT_LENGTH, found.len().to_string())], body).into_response()
            }
            Some(Fault::HeldUntilMended) => {
                let mut mended = self.mended.subscribe();
                let length = found.len().to_string();
                let later = futures::stream::once(async move {
                    mended.changed().await.map(|()| found).map_err(std::io::Error::other)
                });
                ([(header::CONTENT_LENGTH, length)], Body::from_stream(later)).into_response()
            }
            Some(Fault::Redirect(to)) => {
                (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response()
            }
        }
    }
}

/// A layer with programs of this machine and the libraries that they need.
pub(crate) fn programs(names: &[&str]) -> Vec<u8> {
    let mut files: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    for name in names {
        let output = Command::new("ldd").arg(name).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        files.extend(text.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned));
    }
    files.sort();
    files.dedup();
    let mut layer = tar::Builder::new(Vec::new());
    for file in files {
        let mut header = tar::Header::new_gnu();
        let content = fs::read(&file).unwrap();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        layer.append_data(&mut header, file.trim_start_matches('/'), content.as_slice()).unwrap();
    }
    layer.into_inner().unwrap()
}

/// A layer with one symbolic link.
pub(crate) fn link(name: &str, target: &str) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    layer.append_link(&mut header, name, target).unwrap();
    layer.into_inner().unwrap()
}

/// A layer with these files, whatever their names.
pub(crate) fn files(files: &[(&str, &str)]) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        // Not by a call that checks it.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        layer.append(&header, content.as_bytes()).unwrap();
    }
    layer.into_inner().unwrap()
}

/// A layer with files and folders (their names end with `/`) of these owners and modes.
pub(crate) fn owned(entries: &[(&str, u32, u32, &str)]) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    for (name, owner, mode, content) in entries {
        let mut header = tar::Header::new_gnu();
        if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        header.set_size(content.len() as u64);
        header.set_mode(*mode);
        header.set_uid(u64::from(*owner));
        header.set_gid(u64::from(*owner));
        layer.append_data(&mut header, name, content.as_bytes()).unwrap();
    }
    layer.into_inner().unwrap()
}
