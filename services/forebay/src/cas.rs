//! `forebay cas`: transfers and lists blobs and folders of the content-addressable store.

mod get;
mod list;
mod purge;
mod put;
mod why;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use command_line::{failure::Failure, globals::Globals};
use settings::Settings;

use crate::remote::RemoteArgs;

const EXAMPLES: &str = "\
Examples:
  forebay cas put src/ build.tar
      uploads a folder and a file and prints their digests
  forebay cas ls e3b0c442...852b855/83
      lists a folder by its digest
  forebay cas get e3b0c442...852b855/83 --output copy/
      downloads that folder to copy/; without --output the folder is listed
  forebay cas purge --by-executor executor-018f3a2b41c7 --dry-run
      says which cached results of actions this executor made; without --dry-run they are deleted";

/// Options of `forebay cas`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CasArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    what: CasCommand,
}

#[derive(Debug, Subcommand)]
enum CasCommand {
    /// Upload files and folders and print their digests
    Put(put::PutArgs),
    /// Download a blob, or a folder with --output FOLDER/; without it, list a folder
    Get(get::GetArgs),
    /// List a folder by its digest
    Ls(list::ListArgs),
    /// Show where the cached result of an action comes from
    Why(why::WhyArgs),
    /// Delete cached results of actions from the store of the settings, by where they come from
    Purge(purge::PurgeArgs),
}

/// Runs the chosen subcommand.
pub(crate) async fn run(args: CasArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    if let CasCommand::Purge(args) = &args.what {
        // Without a gateway: the protocol has no such call. Gateways have one in their HTTP API.
        return purge::run(args, globals, settings).await;
    }
    let remote = args.remote.connect(globals, settings).await?;
    match args.what {
        CasCommand::Put(args) => put::run(&args, &remote, globals).await,
        CasCommand::Get(args) => get::run(&args, &remote, globals).await,
        CasCommand::Ls(args) => list::run(&args, &remote, globals).await,
        CasCommand::Why(args) => why::run(&args, &remote, globals).await,
        CasCommand::Purge(args) => purge::run(&args, globals, settings).await,
    }
}
