//! Connecting to the farm of a command, and waiting for it unless the user disables that.

use bus::{Bus, Patience};
use client::Client;
use settings::Settings;

use crate::{
    failure::{Failure, UNREACHABLE},
    globals::Globals,
    wait::Wait,
};

/// Connects. Each attempt reads the endpoints again, since the farm may still be starting.
pub async fn connect(globals: &Globals, settings: &Settings) -> Result<Client, Failure> {
    let mut wait = Wait::new(globals.wait()?);
    loop {
        // Boxed: the futures of all commands contain it.
        let attempt = Box::pin(try_connect(globals, settings));
        let failure = match wait.attempt(attempt).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(failure)) => failure,
            Err(limit) => {
                let (url, limit) = (globals.nats_url(settings)?, humantime::format_duration(limit));
                let line = format!("the server at {url} did not answer as nats-server within {limit}");
                Failure::plain(UNREACHABLE, line)
            }
        };
        wait.more(failure).await?;
    }
}

async fn try_connect(globals: &Globals, settings: &Settings) -> Result<Client, Failure> {
    let server = globals.nats_server(settings)?;
    match Bus::connect(&server, "forebay cli", Patience::None).await {
        Ok(bus) => Ok(Client::new(bus)),
        Err(error) if server.url == Settings::default().nats_url => {
            let failure = Failure::from(error);
            Err(failure.with("start a farm with `forebay up`, or give its folder with --data"))
        }
        Err(error) => Err(error.into()),
    }
}
