//! `forebay sim record`: records the builds of a farm for the simulator.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use bus::{EventSubject, Follower, Start, millis, stream};
use clap::Args;
use command_line::{
    failure::{FAILED, Failure, USAGE, say},
    globals::Globals,
    stdout,
};
use invariant::Present as _;
use model::{Group, Millis};
use replay::{RecordedBuild, Recorder};
use settings::Settings;
use tokio::signal::unix::SignalKind;
use tracing::warn;

/// Text shown below the options.
pub(super) const HELP: &str = "\
Output: one JSON object per line, in order of arrival; times in milliseconds, arrivals relative to the first:
  arrival_ms, duration_ms (time that it occupied its workspace, including the hand-over), type, requirements, group,
  priority, submitter, labels, command, limit_ms, estimate_ms (expected run time), waited_ms, outcome
Builds that never ran are omitted.

Examples:
  forebay sim record --since 7d --out week.jsonl
  forebay sim run --replay week.jsonl --workers 40 --policy 1/fcfs/- --policy 1/spt-aged/imprecise
      replays last week's builds with two policies
  forebay sim estimate --replay week.jsonl
      evaluates estimates of their run times
  forebay sim record --follow --out now.jsonl
      also records builds that end from now on, until Ctrl-C";

const BATCH: usize = 1000;

/// Options of `forebay sim record`.
#[derive(Debug, Args)]
pub(super) struct SimRecordArgs {
    /// Only builds queued in this last period (2h, 7d) or since this time (2026-01-31T08:00:00Z)
    /// [default: all stored builds]
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<Millis>,
    /// Only builds of this group
    #[arg(long)]
    group: Option<Group>,
    /// Output file [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Also record builds that end from now on, until Ctrl-C
    #[arg(long)]
    follow: bool,
}

fn since(text: &str) -> Result<Millis, String> {
    if let Ok(span) = humantime::parse_duration(text) {
        let span = millis(span);
        return Ok(Millis(Millis::of_this_machine().0.saturating_sub(span)));
    }
    let expected = || "expected a duration such as 2h, or a time such as 2026-01-31T08:00:00Z".to_owned();
    let time = humantime::parse_rfc3339_weak(text).map_err(|_| expected())?;
    // A time before 1970 is before every build.
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Ok(Millis(millis(since)))
}

/// Output for the recorded lines.
enum Sink {
    Stdout,
    File(PathBuf, BufWriter<File>),
}

/// Records builds until all stored ones are read, or until Ctrl-C.
pub(super) async fn run(
    args: &SimRecordArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let client = command_line::connect(globals, settings).await?;
    let mut sink = Sink::open(args.out.as_ref())?;
    let mut interrupt = tokio::signal::unix::signal(SignalKind::interrupt())
        .map_err(|error| Failure::new(FAILED, "cannot listen for Ctrl-C", &error))?;
    let mut recorder = Recorder::new(args.since, args.group.clone());
    let mut follower =
        Follower::new(client.bus(), stream::EVENTS, EventSubject::LIFECYCLES, Start::LastOfEachSubject);
    follower.open().await;
    let mut written = 0;
    while args.follow || !follower.caught_up() {
        if follower.caught_up() {
            written += sink.write(recorder.ready())?;
        }
        let batch = tokio::select! {
            batch = follower.next(BATCH) => batch,
            _ = interrupt.recv() => break,
        };
        for stored in &batch {
            match stored.record() {
                Ok(record) => recorder.take(&record, stored.sequence),
                Err(error) => {
                    warn!(error = telemetry::error_chain(&error), "skipping an unreadable lifecycle event");
                }
            }
        }
    }
    written += sink.write(recorder.rest())?;
    if let Sink::File(path, _) = &sink {
        say(&format!("wrote {written} builds to {}", path.display()));
    }
    Ok(ExitCode::SUCCESS)
}

impl Sink {
    fn open(path: Option<&PathBuf>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::Stdout) };
        let file = File::create(path)
            .map_err(|error| Failure::new(USAGE, format!("cannot write {}", path.display()), &error))?;
        Ok(Self::File(path.clone(), BufWriter::new(file)))
    }

    /// Writes the builds and returns their number.
    fn write(&mut self, builds: Vec<RecordedBuild>) -> Result<u64, Failure> {
        let mut lines = String::new();
        let mut count = 0;
        for build in builds {
            lines.push_str(&serde_json::to_string(&build).present("a recorded build as JSON"));
            lines.push('\n');
            count += 1;
        }
        match self {
            Self::Stdout => stdout::bytes(lines.as_bytes())?,
            Self::File(path, file) => file
                .write_all(lines.as_bytes())
                .and_then(|()| file.flush())
                .map_err(|error| Failure::new(FAILED, format!("cannot write {}", path.display()), &error))?,
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::{Millis, since};

    #[test]
    fn a_beginning_is_a_span_or_a_time() {
        assert_eq!(since("1970-01-01T00:00:02Z"), Ok(Millis(2000)));
        let ago = Millis::of_this_machine().since(since("2h").unwrap()).as_secs();
        assert!((7190..=7210).contains(&ago), "{ago}");
        assert!(since("yesterday").unwrap_err().contains("2026-01-31"));
    }
}
