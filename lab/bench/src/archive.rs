//! `forebay bench archive`: how fast builds are archived, and how fast an archive of many builds answers.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use archive_store::{Batch, LogStream, Store, StoreError, Writer};
use bus::Stored;
use clap::Args;
use command_line::failure::say;
use model::{
    ArchivedBuildsRequest, HistoryOf, HistoryRequest, ListRequest, Millis, Outcome, Priority, Sequence,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::{
    error::BenchError, figures::Figures, memory::Memory, report::BenchReport, statistics::Percentiles,
};

/// Options of `forebay bench archive`.
#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    /// Number of builds in the archive
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    builds: u64,
    /// Bytes of console output of each build; 0: none
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    console: usize,
    /// Measure this empty PostgreSQL database instead of a SQLite file
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
}

/// Messages in a transaction, as the service reads them.
const BATCH: usize = 1000;
/// Builds that are queued or run at a time.
const IN_PROGRESS: u64 = 40;
/// Questions of each kind.
const QUESTIONS: u64 = 40;
const START_MS: u64 = 1_795_000_000_000;
/// Time between two submissions.
const PAUSE_MS: u64 = 1000;
/// Phase of a build that writes output.
const CONSOLE: u8 = u8::MAX;
const DIGEST: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

/// Runs `forebay bench archive`.
pub(crate) async fn measure(args: &ArchiveArgs) -> Result<BenchReport, BenchError> {
    let folder = TempDir::new().map_err(|error| BenchError::new("creating a folder", &error))?;
    let url = args.postgres.as_deref().unwrap_or("archive.db");
    let store = Store::new(url, folder.path()).map_err(|error| failed(&error))?;
    let mut writer = store.writer().await.map_err(|error| failed(&error))?;
    say(&format!("archiving {} builds", args.builds));
    let begun = Instant::now();
    ingest(&mut writer, args).await.map_err(|error| failed(&error))?;
    let took = begun.elapsed();
    let mut figures = Figures::default();
    figures.field("builds", args.builds);
    let rate = args.builds as f64 / took.as_secs_f64();
    figures.figure("ingest_builds_per_s", "archived, three events each", rate, "builds/s");
    if args.postgres.is_none() {
        let bytes = size(folder.path()) as f64 / args.builds.max(1) as f64;
        figures.figure("bytes_per_build", "size in the database", bytes, "B/build");
    }
    say("asking");
    ask_all(&store, args, &mut figures).await.map_err(|error| failed(&error))?;
    Ok(BenchReport::new("", figures, Memory::default()))
}

fn failed(error: &StoreError) -> BenchError {
    BenchError::new("archiving", error)
}

fn size(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Archives the events of builds; as in the service, one task makes the rows and another writes them.
async fn ingest(writer: &mut Writer, args: &ArchiveArgs) -> Result<(), StoreError> {
    let (sender, mut receiver) = mpsc::channel(1);
    let (builds, console) = (args.builds, args.console);
    tokio::spawn(async move {
        let mut batch = Batch::new(LogStream::Events, 0);
        for (count, stored) in events(builds, console).enumerate() {
            batch.add(&stored);
            if (count + 1) % BATCH == 0 {
                let full = std::mem::replace(&mut batch, Batch::new(LogStream::Events, 0));
                if sender.send(full).await.is_err() {
                    return;
                }
            }
        }
        // A closed channel means that writing failed, which is reported there.
        let _ = sender.send(batch).await;
    });
    let mut cursor = writer.cursor(LogStream::Events, Millis(1)).await?;
    while let Some(batch) = receiver.recv().await {
        cursor = writer.commit(&batch, cursor).await?;
    }
    Ok(())
}

/// The events of builds that overlap, in the order of a stream.
fn events(builds: u64, console: usize) -> impl Iterator<Item = Stored> {
    let step = move |now: u64| {
        let enqueued = (now < builds).then_some((now, 0));
        let started =
            now.checked_sub(IN_PROGRESS / 2).filter(|number| *number < builds).map(|number| (number, 1));
        let finished =
            now.checked_sub(IN_PROGRESS).filter(|number| *number < builds).map(|number| (number, 2));
        let written = started.filter(|_| console > 0).map(|(number, _)| (number, CONSOLE));
        [enqueued, started, written, finished].into_iter().flatten()
    };
    (0..=builds + IN_PROGRESS).flat_map(step).zip(1..).map(move |((number, phase), sequence)| match phase {
        CONSOLE => output(number, console, sequence),
        _ => event(number, phase, sequence, console > 0),
    })
}

/// Position of the first event of a build in [`events`].
fn place(number: u64, console: bool) -> u64 {
    let (half, whole) = (IN_PROGRESS / 2, IN_PROGRESS);
    let started = number.saturating_sub(half);
    1 + number + started + number.saturating_sub(whole) + if console { started } else { 0 }
}

fn group(number: u64) -> u64 {
    number % 20
}

fn target(number: u64) -> String {
    format!("//service{}/module{}:all_tests", number % 5000, number % 37)
}

fn id(number: u64) -> String {
    // Spread, as ids that publishers choose.
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("0199f3a0-0000-4000-8000-{:012x}", scattered & 0xffff_ffff_ffff)
}

/// Lines of console output.
fn output(number: u64, bytes: usize, sequence: u64) -> Stored {
    let line = format!("[{number}] compiling src/module{}/part.c\n", number % 37);
    let headers = [("Forebay-Stream", "stdout"), ("Forebay-Attempt", "1"), ("Forebay-Offset", "0")];
    let payload: Vec<u8> = line.bytes().cycle().take(bytes).collect();
    Stored {
        subject: format!("forebay.build.event.group{}.{}.console", group(number), id(number)),
        sequence: Sequence(sequence),
        at: Millis(START_MS + number * PAUSE_MS),
        headers: headers
            .map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)))
            .into_iter()
            .collect(),
        payload: payload.into(),
    }
}

#[expect(clippy::indexing_slicing, reason = "an object of JSON grows by it")]
fn event(number: u64, phase: u8, sequence: u64, console: bool) -> Stored {
    let id = id(number);
    let submitted = START_MS + number * PAUSE_MS;
    let mut record = json!({
        "id": id, "group": format!("group{}", group(number)), "attempt": 1, "at_ms": submitted + u64::from(phase) * 9000,
        "priority": if number.is_multiple_of(3) { "interactive" } else { "batch" },
        "command": ["bazel", "test", "--config=ci", target(number), format!("--build_number={number}")],
        "env": {"CI": "1", "BRANCH": "main"}, "timeout_seconds": 3600, "queue_timeout_seconds": 86400,
        "lease_ttl_seconds": 15, "max_attempts": 3, "submitted_at_ms": submitted, "request_digest": DIGEST,
        "labels": {"branch": format!("branch{}", number % 200), "pr": (number / 4).to_string()},
        "submitter": format!("user{}", number % 500), "event": "BUILD_ENQUEUED",
        "queue": {"enqueued_at_ms": submitted, "expires_at_ms": submitted + 86_400_000},
    });
    if phase > 0 {
        record["queue"]["first_sequence"] = json!(place(number, console));
        record["event"] = json!("INVOCATION_STARTED");
        record["invocation"] = json!({
            // Workers generate ids that grow.
            "id": format!("0199f3a0-0000-7000-9000-{number:012x}"), "worker": "worker-0123456789ab",
            "workspace": 3, "lease_revision": number + 1, "started_at_ms": submitted + 9000, "dispatched_at_us": 1,
            "dispatched_at_sequence": 1,
        });
    }
    if phase > 1 {
        let fails = number.is_multiple_of(25);
        record["event"] = json!("INVOCATION_FINISHED");
        record["result"] = json!({
            "outcome": if fails { "failed" } else { "succeeded" }, "exit_code": i32::from(fails), "wall_seconds": 9.0,
            "outputs": [{"path": "bazel-testlogs/all.log", "digest": DIGEST, "size_bytes": 4096}],
            "log": {"stdout_bytes": 1000, "stderr_bytes": 0, "bus_bytes": 1000},
        });
        if fails {
            record["result"]["reason"] = json!({"code": "command_failed", "message": "exit code 1"});
        }
    }
    Stored {
        subject: format!("forebay.build.event.group{}.{id}.lifecycle", group(number)),
        sequence: Sequence(sequence),
        at: Millis(submitted),
        headers: None,
        payload: record.to_string().into(),
    }
}

/// Asks questions of each kind, in turn with different values.
async fn ask_all(store: &Store, args: &ArchiveArgs, figures: &mut Figures) -> Result<(), StoreError> {
    type Question = fn(u64, bool) -> ListRequest;
    let builds = args.builds;
    let lists: [(&str, &str, Question); 7] = [
        ("list", "newest builds of a group", |_, _| ListRequest::default()),
        ("deep_page", "a page in the middle", |at, console| ListRequest {
            cursor: Some(format!("p{}", place(at, console))),
            ..ListRequest::default()
        }),
        ("failed", "failed builds of a group", |_, _| ListRequest {
            outcome: Some(Outcome::Failed),
            ..ListRequest::default()
        }),
        ("label", "label, priority and group", |at, _| ListRequest {
            labels: [("branch".to_owned(), format!("branch{}", at % 200))].into(),
            priority: Some(Priority::Batch),
            ..ListRequest::default()
        }),
        ("time_range", "failed builds of a day", |at, _| ListRequest {
            since_ms: Some(Millis(START_MS + at * PAUSE_MS)),
            until_ms: Some(Millis(START_MS + at * PAUSE_MS + 86_400_000)),
            outcome: Some(Outcome::Failed),
            ..ListRequest::default()
        }),
        ("rare_text", "text that one build has", |at, _| ListRequest {
            text: Some(format!("build_number={at}")),
            ..ListRequest::default()
        }),
        ("common_text", "text that many builds have", |at, _| ListRequest {
            text: Some(format!("module{}:all", at % 37)),
            ..ListRequest::default()
        }),
    ];
    for (key, name, question) in lists {
        let mut times = Vec::new();
        for turn in 0..QUESTIONS {
            let at = turn * builds / QUESTIONS;
            let of_group = matches!(key, "list" | "failed" | "label");
            let group = of_group.then(|| format!("group{}", turn % 20).parse().ok()).flatten();
            let request = ArchivedBuildsRequest { group, list: question(at, args.console > 0) };
            let begun = Instant::now();
            store.builds(&request).await?;
            times.push(begun.elapsed());
        }
        report(figures, key, name, &times);
    }
    let now = Millis(START_MS + builds * PAUSE_MS);
    let mut times = Vec::new();
    for turn in 0..QUESTIONS {
        let of = HistoryOf::Label(format!("branch=branch{}", turn % 200));
        let begun = Instant::now();
        store.history(&HistoryRequest { group: None, of, days: Some(365) }, now).await?;
        times.push(begun.elapsed());
    }
    report(figures, "history", "history of a label", &times);
    Ok(())
}

fn report(figures: &mut Figures, key: &str, name: &str, times: &[Duration]) {
    let mut values: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1000.0).collect();
    values.sort_by(f64::total_cmp);
    let p95 = values
        .get((values.len() * 95 / 100).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default();
    let half = Percentiles::of(&mut values).p50;
    figures.figure(&format!("{key}_p50_ms"), &format!("{name}, p50"), half, "ms");
    figures.figure(&format!("{key}_p95_ms"), &format!("{name}, p95"), p95, "ms");
}

#[cfg(test)]
mod tests {
    use super::{events, place};

    #[test]
    fn records_name_the_position_of_their_first_event() {
        for (stored, console) in
            [0, 9].into_iter().flat_map(|bytes| events(130, bytes).map(move |it| (it, bytes > 0)))
        {
            if stored.headers.is_some() {
                continue;
            }
            let record = stored.record().unwrap();
            if let Some(first) = record.queue.first_sequence {
                let number: u64 = record.build.labels["pr"].parse().unwrap();
                assert!(
                    (number * 4..number * 4 + 4).any(|number| place(number, console) == first.0),
                    "{first}"
                );
            }
        }
    }
}
