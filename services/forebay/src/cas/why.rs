//! `forebay cas why`: where a result of the action cache comes from.

use std::process::ExitCode;

use clap::Args;
use command_line::{
    failure::{FAILED, Failure},
    globals::Globals,
    stdout,
};
use model::{BlobDigest, Provenance};
use remote::Remote;

/// Options of `forebay cas why`.
#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// Digest of the action: HASH/SIZE
    #[arg(value_name = "ACTION")]
    action: BlobDigest,
}

/// Prints the provenance of a result.
pub(super) async fn run(args: &WhyArgs, remote: &Remote, globals: &Globals) -> Result<ExitCode, Failure> {
    let action = &args.action;
    let none = || Failure::plain(FAILED, format!("the action cache has no result of action {action}"));
    let result = remote.cached(action).await?.ok_or_else(none)?;
    let unknown = || {
        let why = "an earlier version of Forebay stored the result, which did not record where it comes from";
        Failure::plain(FAILED, why.to_owned())
    };
    let provenance = reapi::provenance::of(&result).ok_or_else(unknown)?;
    if globals.json {
        stdout::json(&provenance)?;
    } else {
        stdout::line(&text(&provenance))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One line for each fact that is known.
fn text(found: &Provenance) -> String {
    let at = humantime::format_rfc3339_millis(found.at_ms.into()).to_string();
    let image = found.image.map(|image| image.to_string()).unwrap_or_default();
    let zone = found.zone.as_ref().map(ToString::to_string).unwrap_or_default();
    let who = if found.executor.is_empty() { "client" } else { "caller" };
    let facts = [
        (who, found.caller.as_str()),
        ("build", found.build.as_str()),
        ("zone", zone.as_str()),
        ("instance", found.instance.as_str()),
        ("command", found.command.as_str()),
        ("target", found.target.as_str()),
        ("execution", found.execution.as_str()),
        ("executor", found.executor.as_str()),
        ("folder", found.home.as_str()),
        ("host", found.host.as_str()),
        ("sandbox", found.sandbox.as_str()),
        ("image", image.as_str()),
        ("stored", at.as_str()),
    ];
    let known = facts.into_iter().filter(|(_, value)| !value.is_empty());
    known
        .map(|(name, value)| format!("{name:<9}  {}", telemetry::escaped(value)))
        .collect::<Vec<_>>()
        .join("\n")
}
