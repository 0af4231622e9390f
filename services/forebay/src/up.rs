//! `forebay up` and its watchdog: checks the settings, and runs them.

use std::process::ExitCode;

use command_line::{
    failure::{Failure, USAGE},
    globals::Globals,
};
use settings::Settings;
use up::UpError;

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
    Box::pin(up::run(args, settings, patience, globals.json)).await.map_err(|error| failure(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Stops the processes of a killed `forebay up`.
pub(crate) async fn watchdog(settings: &Settings) -> Result<ExitCode, Failure> {
    up::watchdog::run(&settings.watchdog()).await.map_err(|error| failure(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: &UpError) -> Failure {
    Failure::of(error.exit_code(), error)
}
