//! `forebay completions`: prints shell completion scripts.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;
use command_line::{failure::Failure, stdout};

const EXAMPLES: &str = "\
Examples:
  forebay completions bash > ~/.local/share/bash-completion/completions/forebay
  forebay completions zsh > ~/.zfunc/_forebay";

/// Options of `forebay completions`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for
    shell: Shell,
}

/// Prints the completion script of a shell for `command`.
pub(crate) fn run(args: &CompletionsArgs, command: &mut Command) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "forebay", &mut script);
    stdout::bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
