//! The Remote Execution API that a command speaks to.

use clap::Args;
use model::DigestFunction;
use remote::{Remote, RemoteError};
use settings::Settings;

use crate::{
    failure::{FAILED, Failure, UNREACHABLE},
    globals::Globals,
    wait::Wait,
};

/// Which server and instance, and how blobs are hashed.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// The Remote Execution API [default: as `forebay up` wrote it into the data folder, else port 8980 of this machine]
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
                Ok(remote) => return Ok(remote),
                Err(failure) => failure,
            };
            wait.more(failure).await?;
        }
    }

    async fn try_connect(&self, globals: &Globals, settings: &Settings) -> Result<Remote, Failure> {
        let url = match &self.grpc {
            Some(url) => url.clone(),
            None => globals.grpc_url(settings)?,
        };
        Ok(Remote::connect(&url, &self.instance, self.digest_function).await?)
    }
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        let exit = if error.is_unreachable() { UNREACHABLE } else { FAILED };
        Self::of(exit, &error)
    }
}
