//! `forebay up` and its watchdog: checks the settings, and runs them.

use std::process::ExitCode;

use settings::Settings;
use up::UpError;

use crate::{
    failure::{Failure, USAGE},
    globals::Globals,
};

pub(crate) use up::{UpArgs, WATCHDOG};

/// Runs a farm on this machine until a stop signal.
pub(crate) async fn run(
    args: UpArgs,
    globals: &Globals,
    mut settings: Settings,
) -> Result<ExitCode, Failure> {
    let patience = globals.wait()?.patience();
    args.apply_autoscale(&mut settings);
    settings.check()?;
    autoscaler::check(&settings.autoscaler()).map_err(|error| Failure::of(USAGE, &error))?;
    Box::pin(up::run(args, settings, patience, globals.json)).await?;
    Ok(ExitCode::SUCCESS)
}

/// Stops the processes of a killed `forebay up`.
pub(crate) async fn watchdog(settings: &Settings) -> Result<ExitCode, Failure> {
    up::watchdog::run(&settings.watchdog()).await?;
    Ok(ExitCode::SUCCESS)
}

impl From<UpError> for Failure {
    fn from(error: UpError) -> Self {
        Self::of(error.exit_code(), &error)
    }
}
