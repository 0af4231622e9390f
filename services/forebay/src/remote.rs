//! Connecting a command to the Remote Execution API.

use std::{sync::Arc, time::Duration};

use clap::Args;
use command_line::{
    failure::{Failure, UNREACHABLE},
    globals::Globals,
    stdout,
    wait::Wait,
};
use invariant::Present as _;
use model::{BlobDigest, DigestFunction};
use remote::{Remote, RemoteError};
use settings::Settings;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{farm::Farm, reconnect::Reconnect};

/// Server, instance and digest function.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// URL of the Remote Execution API [default: from the running farm in the data folder, else a gateway found on the
    /// bus, else the setting `grpc_listen`, 127.0.0.1:8980]
    #[arg(long, value_name = "URL")]
    grpc: Option<String>,
    /// Instance name of the Remote Execution API
    #[arg(long, value_name = "NAME", default_value = "")]
    instance: String,
    /// Digest function of blobs: sha256 or blake3
    #[arg(long, value_name = "FUNCTION", default_value = "sha256", value_parser = function)]
    digest_function: DigestFunction,
}

fn function(text: &str) -> Result<DigestFunction, String> {
    DigestFunction::ALL
        .into_iter()
        .find(|function| function.as_str() == text)
        .ok_or_else(|| "expected sha256 or blake3".to_owned())
}

impl RemoteArgs {
    /// The chosen digest function.
    pub(crate) fn function(&self) -> DigestFunction {
        self.digest_function
    }

    /// Connects. Retries within the wait limit, since the farm may still be starting.
    pub(crate) async fn connect(&self, globals: &Globals, settings: &Settings) -> Result<Remote, Failure> {
        let mut wait = Wait::new(globals.wait()?);
        loop {
            let failure = match self.try_connect(globals, settings).await {
                Ok((remote, _)) if self.speaks_grpc(&remote).await => return Ok(remote),
                Ok((_, url)) if speaks_http1(&url).await => return Err(no_grpc(&url)),
                Ok((_, url)) => Failure::plain(UNREACHABLE, format!("the server at {url} does not answer")),
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

    /// Whether the server answers gRPC at all. An error status counts: the next call reports it with more detail.
    async fn speaks_grpc(&self, remote: &Remote) -> bool {
        !remote.capabilities().await.is_err_and(|error| error.is_unreachable())
    }
}

/// The gateway of a command that reads or writes blobs of builds.
#[derive(Default, Debug, Clone, Args)]
pub(crate) struct GatewayArgs {
    /// URL of a gateway's Remote Execution API, for blobs [default: from the running farm in the data folder, else a
    /// gateway found on the bus, else the setting `grpc_listen`]
    #[arg(long, value_name = "URL")]
    grpc: Option<String>,
}

impl GatewayArgs {
    /// Connects within the wait limit.
    async fn connect_first(
        &self,
        farm: &Farm,
        globals: &Globals,
        settings: &Settings,
    ) -> Result<Remote, Failure> {
        let mut wait = Wait::new(globals.wait()?);
        loop {
            let attempt = wait.attempt(self.try_connect(farm, globals, settings));
            let failure = match attempt.await.unwrap_or_else(|limit| Err(no_answer(limit))) {
                Ok(remote) => return Ok(remote),
                Err(failure) => failure,
            };
            wait.more(failure).await?;
        }
    }

    /// Connects to the store of the farm. Retries within the wait limit, and continues downloads within that limit
    /// after a lost connection.
    pub(crate) async fn connect(
        &self,
        farm: &Farm,
        globals: &Globals,
        settings: &Settings,
    ) -> Result<Remote, Failure> {
        let store = self.connect_first(farm, globals, settings).await?;
        let (bus, globals, settings) = (farm.client().bus().clone(), globals.clone(), settings.clone());
        let limit = globals.wait()?;
        Ok(store.resuming(Arc::new(Reconnect::new(limit, self.grpc.clone(), bus, globals, settings))))
    }

    async fn try_connect(
        &self,
        farm: &Farm,
        globals: &Globals,
        settings: &Settings,
    ) -> Result<Remote, Failure> {
        let url = match &self.grpc {
            Some(url) => Some(url.clone()),
            None => globals.gateway_url(farm.client().bus(), settings).await?,
        };
        let Some(url) = url else {
            return Err(Failure::plain(UNREACHABLE, format!("no gateway of the farm answers; {START}")));
        };
        connect_to_gateway(&url).await.map_err(|error| Failure::from(error).with(START))
    }
}

async fn connect_to_gateway(url: &str) -> Result<Remote, RemoteError> {
    let remote = Remote::connect(url, "", DigestFunction::Sha256).await?;
    match remote.capabilities().await {
        Err(error) if error.is_unreachable() => Err(error),
        // An error status is an answer: the next call reports it with more detail.
        Ok(_) | Err(_) => Ok(remote),
    }
}

const START: &str = "start a gateway with `forebay serve gateway`";

fn no_answer(limit: Duration) -> Failure {
    let limit = humantime::format_duration(limit);
    Failure::plain(UNREACHABLE, format!("no gateway answered within {limit}; {START}"))
}

/// Prints a blob to stdout. A blob whose content does not have its digest is detected only at its end.
pub(crate) async fn print(remote: &Remote, digest: &BlobDigest) -> Result<(), Failure> {
    let mut fault = None;
    let print = async |piece: &[u8]| {
        if fault.is_none() {
            fault = stdout::bytes(piece).err();
        }
        Ok(())
    };
    remote.read_to(digest, print).await?;
    fault.map_or(Ok(()), Err)
}

fn no_grpc(url: &str) -> Failure {
    Failure::plain(
        UNREACHABLE,
        format!(
            "{url} is an HTTP server that does not speak gRPC; use the address of the Remote Execution API (port 8980 \
             by default; `forebay up` writes it as \"grpc\" into endpoints.json)"
        ),
    )
}

/// Whether an HTTP/1 server listens at `url`.
async fn speaks_http1(url: &str) -> bool {
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    let address = address.split('/').next().present("the first part of a text");
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1."))
    };
    tokio::time::timeout(Duration::from_secs(3), ask).await.is_ok_and(|answer| answer.unwrap_or(false))
}
