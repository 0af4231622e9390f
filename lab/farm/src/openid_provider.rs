//! A provider of `OpenID` Connect: the package oidc-provider for Node.js.

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    Guard, Port, Process,
    servers::{first_line, until},
    tool,
};

const PROGRAM: &str = "openid-provider";

/// A provider with one client, at which each person signs in with any password: `ada.web` is in the group `web`.
/// It is killed when dropped.
#[derive(Debug)]
pub struct OpenIdProvider {
    // Fields are dropped in this order: the process before its folder.
    process: Mutex<Process>,
    port: Port,
    folder: TempDir,
}

impl OpenIdProvider {
    /// The client and its secret.
    pub const CLIENT: (&str, &str) = ("forebay", "the secret of the tests");

    /// Starts a provider that sends people back to this address.
    pub async fn start(redirect_uri: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("forebay-test-").tempdir();
        let folder = folder.expect("a temporary folder");
        let (guard, port) = (Guard::start(folder.path()), Port::reserve());
        let mut command = Command::new(tool(PROGRAM));
        let (client, secret) = Self::CLIENT;
        command.args([&port.number().to_string(), client, secret, redirect_uri]);
        let process = Process::start(PROGRAM, command, &folder.path().join("server.log"), &guard);
        let provider = Self { process: Mutex::new(process), port, folder };
        until(|| provider.answers(), PROGRAM).await;
        provider
    }

    /// Its claim `iss`, below which its description is.
    pub fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// The lines of access rules that let people sign in with it, under the name `local`.
    pub fn rules(&self) -> String {
        let secret = self.folder.path().join("secret");
        std::fs::write(&secret, Self::CLIENT.1).expect("the secret of the client");
        format!(
            "[[issuers]]\nname = \"local\"\nurl = \"{}\"\nlogin = {{ client_id = \"{}\", client_secret_file = \"{}\", \
             title = \"Local & Co\", scopes = [\"openid\", \"profile\", \"groups\"] }}\n",
            self.issuer(),
            Self::CLIENT.0,
            secret.display()
        )
    }

    /// Sends SIGSTOP: connections are accepted and not answered.
    pub fn pause(&self) {
        self.process.lock().pause();
    }

    /// Sends SIGCONT: it answers what it was asked in the meantime.
    pub fn resume(&self) {
        self.process.lock().resume();
    }

    /// Sends SIGKILL: connections are refused from then on.
    pub fn kill(&self) {
        self.process.lock().kill9();
    }

    fn answers(&self) -> bool {
        let host = format!("127.0.0.1:{}", self.port.number());
        let request = format!(
            "GET /.well-known/openid-configuration HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        );
        first_line(self.port.number(), &request).is_some_and(|line| line.contains("200"))
    }
}

impl Drop for OpenIdProvider {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint!("{}", self.process.get_mut().log_tail());
        }
    }
}
