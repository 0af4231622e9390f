//! `forebay cas`: blobs and folders in the content-addressable store.

mod get;
mod list;
mod put;

pub(crate) use get::folder as get_folder;
pub(crate) use put::hash;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use settings::Settings;

use crate::{failure::Failure, globals::Globals, remote::RemoteArgs};

const EXAMPLES: &str = "\
Examples:
  forebay cas put src/ build.tar
      uploads a folder and a file, and prints their digests
  forebay cas ls e3b0c442...852b855/83
      lists a folder by its digest
  forebay cas get e3b0c442...852b855/83 --output copy/
      writes that folder to copy/; without --output it is listed";

/// What `forebay cas` is asked for.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CasArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Upload files and folders, and print their digests
    Put(put::PutArgs),
    /// Fetch a blob, or a folder with --output FOLDER/; list a folder without it
    Get(get::GetArgs),
    /// List a folder by its digest
    Ls(list::ListArgs),
}

/// Does it.
pub(crate) async fn run(args: CasArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let remote = args.remote.connect(globals, settings).await?;
    match args.what {
        What::Put(args) => put::run(&args, &remote, globals).await,
        What::Get(args) => get::run(&args, &remote, globals).await,
        What::Ls(args) => list::run(&args, &remote, globals).await,
    }
}
