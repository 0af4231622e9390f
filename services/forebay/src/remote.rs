//! The Remote Execution API that a command speaks to.

use std::time::Duration;

use clap::Args;
use model::DigestFunction;
use remote::{Remote, RemoteError};
use settings::Settings;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    failure::{FAILED, Failure, UNREACHABLE},
    globals::Globals,
    wait::Wait,
};

/// Which server and instance, and how blobs are hashed.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// The Remote Execution API [default: as `forebay up` wrote it into the data folder, else where a gateway answers on the
    /// bus, else port 8980 of this machine]
    #[arg(long, value_name = "URL")]
    grpc: Option<String>,
    /// The instance name
    #[arg(long, value_name = "NAME", default_value = "")]
    instance: String,
    /// How blobs are hashed: sha256 or blake3
    #[arg(long, value_name = "FUNCTION", default_value = "sha256", value_parser = function)]
    digest_function: DigestFunction,
}

fn function(text: &str) -> Result<DigestFunction, String> {
    DigestFunction::ALL
        .into_iter()
        .find(|function| function.as_str() == text)
        .ok_or_else(|| "sha256 or blake3 is expected".to_owned())
}

impl RemoteArgs {
    /// The digest function.
    pub(crate) fn function(&self) -> DigestFunction {
        self.digest_function
    }

    /// Connects, again and again unless told otherwise: the farm may be starting.
    pub(crate) async fn connect(&self, globals: &Globals, settings: &Settings) -> Result<Remote, Failure> {
        let mut wait = Wait::new(globals.wait()?);
        loop {
            let failure = match self.try_connect(globals, settings).await {
                Ok((remote, _)) if self.speaks_grpc(&remote).await => return Ok(remote),
                Ok((_, url)) if speaks_http1(&url).await => return Err(no_grpc(&url)),
                Ok((_, url)) => Failure::plain(UNREACHABLE, format!("what listens at {url} does not answer")),
                Err(failure) => failure,
            };
            wait.more(failure).await?;
        }
    }

    async fn try_connect(&self, globals: &Globals, settings: &Settings) -> Result<(Remote, String), Failure> {
        let url = match &self.grpc {
            Some(url) => url.clone(),
            None => globals.grpc_url(settings).await?,
        };
        Ok((Remote::connect(&url, &self.instance, self.digest_function).await?, url))
    }

    /// Whether it answers at all: a refusal is an answer too, and what is asked for next says it better.
    async fn speaks_grpc(&self, remote: &Remote) -> bool {
        !remote.capabilities().await.is_err_and(|error| error.is_unreachable())
    }
}

fn no_grpc(url: &str) -> Failure {
    Failure::plain(
        UNREACHABLE,
        format!(
            "{url} is an HTTP server and does not speak gRPC; the Remote Execution API has an address of its own \
             (by itself port 8980; `forebay up` writes it as \"grpc\" into endpoints.json)"
        ),
    )
}

/// Whether a server of HTTP/1 listens there.
async fn speaks_http1(url: &str) -> bool {
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    let address = address.split('/').next().unwrap_or_default();
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1."))
    };
    tokio::time::timeout(Duration::from_secs(3), ask).await.is_ok_and(|answer| answer.unwrap_or(false))
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        let exit = if error.is_unreachable() { UNREACHABLE } else { FAILED };
        Self::of(exit, &error)
    }
}
