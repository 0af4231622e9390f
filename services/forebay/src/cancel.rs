//! `forebay cancel`: cancels a build.

use std::process::ExitCode;

use clap::Args;
use command_line::{failure::Failure, globals::Globals, stdout};
use settings::Settings;

use telemetry::escaped;

use crate::{
    farm::{BuildArgs, Farm},
    record_text::state_line,
    user::user_at_host,
};

/// Options of `forebay cancel`.
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    build: BuildArgs,
    /// Reason, shown in the result of the build
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Cancels the build. A build that has already ended is left unchanged, which is not a failure.
pub(crate) async fn run(
    args: CancelArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let (key, user) = (farm.resolve(&args.build).await?, user_at_host());
    let reply =
        farm.call(async |client| client.cancel_as(&key, args.reason.clone(), Some(&user)).await).await?;
    if globals.json {
        stdout::json(&reply)?;
    } else if reply.cancelled {
        stdout::line(&format!("build {key} cancelled"))?;
    } else {
        stdout::line(&format!(
            "build {key} has already ended: {}",
            escaped(&state_line(&reply.build.record))
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
