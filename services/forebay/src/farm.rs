//! The farm that a command speaks to: found, connected, and waited for unless told otherwise.

use std::time::Duration;

use bus::{Bus, Patience};
use clap::Args;
use client::{Client, ClientError};
use model::{BuildId, BuildKey, Group, Millis};
use settings::Settings;

use crate::{
    failure::{Failure, say},
    globals::Globals,
};

/// A connected farm.
#[derive(Debug)]
pub(crate) struct Farm {
    client: Client,
    patience: Patience,
}

/// Which build a command is about.
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// The build's id, or GROUP/ID
    #[arg(value_name = "ID")]
    id: String,
    /// Its group [default: the one that has this id]
    #[arg(long)]
    group: Option<Group>,
}

const RETRY_DELAY: Duration = Duration::from_millis(250);

impl Farm {
    /// Connects, reading anew with every try where the farm is: it may be starting.
    pub(crate) async fn connect(globals: &Globals, settings: &Settings) -> Result<Self, Failure> {
        let patience = globals.patience();
        let mut told = false;
        loop {
            let failure = match Self::try_connect(globals, settings).await {
                Ok(client) => return Ok(Self { client, patience }),
                Err(failure) => failure,
            };
            wait_or_fail(failure, patience, &mut told).await?;
        }
    }

    async fn try_connect(globals: &Globals, settings: &Settings) -> Result<Client, Failure> {
        let url = globals.nats_url(settings)?;
        Ok(Client::new(Bus::connect(&url, "forebay cli", Patience::None).await?))
    }

    /// The client, for calls that are not repeated.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The time of the farm.
    pub(crate) fn now(&self) -> Millis {
        self.client.bus().now()
    }

    /// Whether to wait for servers.
    pub(crate) fn patience(&self) -> Patience {
        self.patience
    }

    /// Makes a call, again and again while nobody answers. Every call may be repeated without harm.
    pub(crate) async fn call<T>(
        &self,
        call: impl AsyncFn(&Client) -> Result<T, ClientError>,
    ) -> Result<T, Failure> {
        let mut told = false;
        loop {
            match call(&self.client).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_unreachable() => {
                    wait_or_fail(error.into(), self.patience, &mut told).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The full name of the build that was asked for.
    pub(crate) async fn resolve(&self, args: &BuildArgs) -> Result<BuildKey, Failure> {
        let invalid = |error: model::ParseIdError| Failure::usage(error.to_string());
        if args.id.contains('/') {
            let key: BuildKey = args.id.parse().map_err(invalid)?;
            return match &args.group {
                Some(group) if *group != key.group => {
                    Err(Failure::usage(format!("build {key} is not of group {group}")))
                }
                Some(_) | None => Ok(key),
            };
        }
        let id: BuildId = args.id.parse().map_err(invalid)?;
        match &args.group {
            Some(group) => Ok(BuildKey { group: group.clone(), id }),
            None => self.call(async |client| client.find(id).await).await,
        }
    }
}

/// Waits a moment where waiting may help and is wanted, saying so once.
pub(crate) async fn wait_or_fail(
    failure: Failure,
    patience: Patience,
    told: &mut bool,
) -> Result<(), Failure> {
    if patience == Patience::None || !failure.is_unreachable() {
        return Err(failure);
    }
    if !*told {
        say(&format!("{}; waiting (--no-wait fails instead)", failure.line()));
        *told = true;
    }
    tokio::time::sleep(RETRY_DELAY).await;
    Ok(())
}
