//! `forebay top`: the state of the farm, live in a terminal.

mod draw;
mod keys;
mod snapshot;
mod state;
mod tables;
mod terminal;
mod view;

use std::{io::IsTerminal as _, process::ExitCode, time::Duration};

use clap::Args;
use command_line::{failure::Failure, globals::Globals, stdout};
use settings::Settings;

use self::{snapshot::Snapshot, state::Screen, view::View};
use crate::{farm::Farm, style};

const EXAMPLES: &str = "\
Examples:
  forebay top
      shows what failed, runs and waits; ? shows the keys
  forebay top queues --once
      prints the waiting builds by group and priority
  forebay top --once --json
      prints the state of the whole farm as JSON";

/// Options of `forebay top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// What to show first
    #[arg(value_enum, default_value = "overview")]
    view: View,
    /// Print once and exit, as without a terminal
    #[arg(long)]
    once: bool,
    /// Time between two questions to the farm, 200ms to 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let allowed = Duration::from_millis(200)..=Duration::from_secs(3600);
    allowed.contains(&time).then_some(time).ok_or_else(|| "expected 200ms to 1h".to_owned())
}

/// Shows the farm until the user quits, or prints its state once.
pub(crate) async fn run(args: TopArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let screen = Screen::new(args.view);
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if is_terminal && !args.once && !globals.json {
        return terminal::run(&farm, screen, args.interval).await;
    }
    let snapshot = farm.call(async |client| Box::pin(Snapshot::read(client, None)).await).await?;
    if globals.json {
        stdout::json(&snapshot)?;
    } else {
        stdout::line(&plain(&screen, &snapshot))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The table of a view as lines of text.
fn plain(screen: &Screen, snapshot: &Snapshot) -> String {
    let shown = screen.arrange(tables::table(screen.view, snapshot));
    if shown.rows.is_empty() {
        return shown.empty.to_owned();
    }
    let mut table = style::table();
    table.set_header(shown.head);
    for row in shown.rows {
        table.add_row(row.cells.into_iter().map(|cell| cell.text));
    }
    table.trim_fmt()
}
