//! A server of an object store: moto for S3, Azurite for Azure blobs.

use std::fs;

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    Guard, Port, Process, SOON,
    servers::{first_line, until},
    tool,
};

/// Name of the bucket (S3) or container (Azure).
const BUCKET: &str = "blobs";
/// Credentials of a request to moto, which does not check the signature.
const S3_CREDENTIALS: &str = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, \
                              SignedHeaders=host, Signature=0";
/// Permission to create containers until 2100, signed with the public key of Azurite's only account.
const AZURE_TOKEN: &str = "sv=2019-12-12&ss=b&srt=c&sp=c&se=2100-01-01\
                           &sig=Kv7pPDHmTrwvAwDia4l1j7AdblxhdEN2wZYmRzSaomA%3D";

/// An object store with one bucket. Killed when dropped.
#[derive(Debug)]
pub struct ObjectServer {
    // Fields are dropped in this order: the process before its folder.
    process: Mutex<Option<Process>>,
    protocol: Protocol,
    port: Port,
    guard: Guard,
    folder: TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    S3,
    Azure,
}

impl ObjectServer {
    /// Starts an S3 server, which keeps its objects in memory.
    pub async fn s3() -> Self {
        Self::new(Protocol::S3).await
    }

    /// Starts a server of Azure blobs, which keeps its objects on disk.
    pub async fn azure() -> Self {
        Self::new(Protocol::Azure).await
    }

    async fn new(protocol: Protocol) -> Self {
        let folder = tempfile::Builder::new().prefix("forebay-test-").tempdir();
        let folder = folder.expect("a temporary folder");
        fs::create_dir(folder.path().join("objects")).expect("the folder of objects");
        let guard = Guard::start(folder.path());
        let server = Self { process: Mutex::default(), protocol, port: Port::reserve(), guard, folder };
        server.start().await;
        server
    }

    /// Starts the stopped server on the same port; a server of Azure blobs has the objects that it had.
    pub async fn start(&self) {
        let port = self.port.number().to_string();
        let mut command = Command::new(tool(self.program()));
        match self.protocol {
            Protocol::S3 => command.args(["--host", "127.0.0.1", "--port", &port]),
            Protocol::Azure => command
                .args(["--blobHost", "127.0.0.1", "--blobPort", &port, "--silent"])
                .args(["--skipApiVersionCheck", "--disableTelemetry", "--location"])
                .arg(self.folder.path().join("objects")),
        };
        let log = self.folder.path().join("server.log");
        let process = Process::start(self.program(), command, &log, &self.guard);
        *self.process.lock() = Some(process);
        until(|| self.has_bucket(), self.program()).await;
    }

    /// Sends SIGTERM, and waits for the end: connections are refused from then on.
    pub async fn stop(&self) {
        let process = self.process.lock().take();
        let mut process = process.expect("the server runs");
        process.term();
        process.wait_exit(SOON).await;
    }

    /// Sends SIGSTOP: connections are accepted and not answered.
    pub fn pause(&self) {
        self.process.lock().as_ref().expect("the server runs").pause();
    }

    /// Sends SIGCONT: the server answers what it was asked in the meantime.
    pub fn resume(&self) {
        self.process.lock().as_ref().expect("the server runs").resume();
    }

    /// URL of a folder in the bucket, for `cas_url`.
    pub fn url(&self) -> String {
        let scheme = match self.protocol {
            Protocol::S3 => "s3",
            Protocol::Azure => "az",
        };
        format!("{scheme}://{BUCKET}/farm")
    }

    /// Address at which it listens: `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// Environment of services that use the store.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let endpoint = format!("http://{}", self.address());
        match self.protocol {
            Protocol::S3 => vec![
                ("AWS_ACCESS_KEY_ID", "test".to_owned()),
                ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
                ("AWS_REGION", "us-east-1".to_owned()),
                ("AWS_ENDPOINT", endpoint),
                ("AWS_ALLOW_HTTP", "true".to_owned()),
            ],
            Protocol::Azure => vec![
                ("AZURE_STORAGE_USE_EMULATOR", "true".to_owned()),
                ("AZURITE_BLOB_STORAGE_URL", endpoint),
            ],
        }
    }

    fn program(&self) -> &'static str {
        match self.protocol {
            Protocol::S3 => "moto_server",
            Protocol::Azure => "azurite-blob",
        }
    }

    /// Creates the bucket if it does not exist; returns whether the server has it.
    fn has_bucket(&self) -> bool {
        let request = match self.protocol {
            Protocol::S3 => format!("PUT /{BUCKET} HTTP/1.1\r\nAuthorization: {S3_CREDENTIALS}"),
            Protocol::Azure => {
                format!("PUT /devstoreaccount1/{BUCKET}?restype=container&{AZURE_TOKEN} HTTP/1.1")
            }
        };
        let rest = format!("Host: {}\r\nContent-Length: 0\r\nConnection: close", self.address());
        let answer = first_line(self.port.number(), &format!("{request}\r\n{rest}\r\n\r\n"));
        // 409: it exists.
        answer.is_some_and(|line| ["200", "201", "409"].iter().any(|code| line.contains(code)))
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(process) = self.process.get_mut()
        {
            eprint!("{}", process.log_tail());
        }
        if std::env::var_os("FOREBAY_KEEP").is_some() {
            eprintln!("kept: {}", self.folder.path().display());
            self.folder.disable_cleanup(true);
        }
    }
}
