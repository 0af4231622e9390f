//! `forebay logs`: prints the output of a build so far, or some lines of it.

use std::{process::ExitCode, sync::Arc, time::Duration};

use bus::EventKind;
use clap::Args;
use client::{LINES_DEFAULT, LINES_MAX, LogRange, LogWindow, RunChoice, WatchBody, WatchEvent};
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    stdout,
};
use model::{Attempt, BuildKey, OutputStream, Sequence};
use settings::Settings;
use telemetry::escaped;

use crate::{
    farm::{BuildArgs, Farm},
    frames::Frames,
    present::dropped_line,
};

const EXAMPLES: &str = "\
Examples:
  forebay logs @last
      prints the output of the build that you submitted last
  forebay logs @last --tail 50
      prints its last 50 lines
  forebay logs ID --attempt 1 --line 2000 --lines 100
      prints 100 lines of the first attempt, from line 2000 on
  forebay watch ID
      prints the output and follows the build until it ends";

/// Time limit for the next stored event. Stored events arrive at once; one that does not was written
/// by a superseded attempt.
const NEXT_WITHIN: Duration = Duration::from_secs(3);

/// Options of `forebay logs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    build: BuildArgs,
    /// Print only lines from this one on; the first has number 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    line: Option<u64>,
    /// Print at most this many lines, up to 2000 [default: 1000, if --line is given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=LINES_MAX))]
    lines: Option<u64>,
    /// Print only this many last lines, up to 2000
    #[arg(
        long, value_name = "N", conflicts_with_all = ["line", "lines"],
        value_parser = clap::value_parser!(u64).range(1..=LINES_MAX)
    )]
    tail: Option<u64>,
    /// Print the output of this attempt [default: of all attempts; with --line, --lines or --tail, of the last one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
}

impl LogsArgs {
    /// The wanted lines; none: all.
    fn range(&self) -> Option<LogRange> {
        if let Some(lines) = self.tail {
            return Some(LogRange::Tail { lines });
        }
        let lines = self.lines.unwrap_or(LINES_DEFAULT);
        (self.line.is_some() || self.lines.is_some())
            .then(|| LogRange::From { line: self.line.unwrap_or(1), lines })
    }
}

/// Prints the stored console output of the build.
pub(crate) async fn run(args: LogsArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let mut frames = Frames::new(&farm, globals, settings);
    let attempt = args.attempt.map(Attempt);
    match args.range() {
        Some(range) => window(&farm, &key, attempt, range, &mut frames, globals.json).await?,
        None => whole(&farm, &key, attempt, &mut frames, globals.json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the lines of a window.
async fn window(
    farm: &Farm,
    key: &BuildKey,
    attempt: Option<Attempt>,
    range: LogRange,
    frames: &mut Frames<'_>,
    json: bool,
) -> Result<(), Failure> {
    let choice = attempt.map_or(RunChoice::Last, RunChoice::Attempt);
    let log = farm.call(async |client| client.open_log(key, choice, Arc::default()).await).await?;
    let found = log.window(farm.client(), frames, range).await?;
    if json { stdout::json(&found) } else { show_window(&found, range) }
}

fn show_window(found: &LogWindow, range: LogRange) -> Result<(), Failure> {
    let mut missing = found.missing.iter().peekable();
    for line in &found.lines {
        while let Some(gap) = missing.next_if(|gap| gap.line < line.number) {
            say(&format!("... {} bytes of output are missing: {}", gap.bytes, gap.reason));
        }
        print(line.stream, format!("{}\n", line.text).as_bytes())?;
        if line.cut {
            say(&format!("... line {} is not complete", line.number));
        }
    }
    for gap in missing {
        say(&format!("... {} bytes of output are missing: {}", gap.bytes, gap.reason));
    }
    if found.lines.is_empty() && found.missing.is_empty() {
        say(&format!("... no such line: the log has {} lines", found.total_lines));
    }
    let wanted = match range {
        LogRange::From { lines, .. } | LogRange::Tail { lines } => lines,
    };
    if let Some(next) = found.next_line
        && (found.lines.len() as u64) < wanted
    {
        say(&format!("... too much text for one window: continue with --line {next}"));
    }
    Ok(())
}

/// Prints the whole log.
async fn whole(
    farm: &Farm,
    key: &BuildKey,
    attempt: Option<Attempt>,
    frames: &mut Frames<'_>,
    json: bool,
) -> Result<(), Failure> {
    let build = farm.call(async |client| client.get_with_attempt(key, attempt).await).await?;
    let archived = farm.call(async |client| client.archived_console(&build, attempt).await).await?;
    if let Some(mut console) = archived {
        while let Some(event) = console.next().await? {
            show(event, frames, json).await?;
        }
        return Ok(());
    }
    let until = farm.call(async |client| Ok(client.bus().last_console(key).await?)).await?;
    let mut watch = farm.client().watch(key, Sequence(0), &[EventKind::Console]).giving_up();
    let mut position = Sequence(0);
    while position < until {
        let Ok(next) = tokio::time::timeout(NEXT_WITHIN, watch.next()).await else { break };
        let Some(event) = next? else { break };
        position = event.position;
        if attempt.is_some_and(|wanted| attempt_of(&event.body) != Some(wanted)) {
            continue;
        }
        show(event, frames, json).await?;
    }
    Ok(())
}

fn attempt_of(body: &WatchBody) -> Option<Attempt> {
    match body {
        WatchBody::Console(chunk) => Some(chunk.attempt),
        WatchBody::Frame(frame) => Some(frame.reference.attempt),
        WatchBody::Lifecycle(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => None,
    }
}

async fn show(mut event: WatchEvent, frames: &mut Frames<'_>, json: bool) -> Result<(), Failure> {
    frames.fill(&mut event).await;
    if json {
        return stdout::json(&event.to_json());
    }
    match &event.body {
        WatchBody::Console(chunk) => {
            if let Some(bytes) = chunk.dropped {
                say(&dropped_line(chunk.stream, bytes));
            }
            print(chunk.stream, &chunk.data)
        }
        WatchBody::Frame(frame) => {
            if let Some(line) = frame.lost_line() {
                say(&format!("... {}", escaped(&line)));
            }
            frame.parts().iter().try_for_each(|part| print(part.stream, part.data))
        }
        WatchBody::Lifecycle(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => Ok(()),
    }
}

fn print(stream: OutputStream, data: &[u8]) -> Result<(), Failure> {
    match stream {
        OutputStream::Stdout => stdout::bytes(data),
        OutputStream::Stderr => {
            // A closed stderr is not a failure.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), data);
            Ok(())
        }
    }
}
