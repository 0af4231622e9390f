//! Results of a run: its end, its resource usage, and its output.

use std::time::{Duration, Instant};

use bus::{
    BazelEvents, EventContent, EventKind, EventOwner, EventSubject, HEADER_DROPPED, HEADER_OFFSET,
    HEADER_STREAM, header,
};
use bytes::Bytes;
use client::WatchBody;
use farm::{Farm, SOON};
use model::{BuildKey, BuildRecord, BuildRequest, BuildResult, Outcome, ReasonCode, State, ToolInvocation};

use crate::check::{BOUND, ended, ended_as, ended_within, processes_of, request, script, until};

async fn farm() -> Farm {
    Farm::builder().without("gateway").start().await
}

async fn result_of(farm: &Farm, request: BuildRequest) -> BuildResult {
    let key = farm.submit("g", request).await;
    ended(farm, &key).await.result().unwrap().clone()
}

/// Returns all bytes of one output that are on the bus; checks that they are complete and in small parts.
async fn output(farm: &Farm, key: &BuildKey, stream: &str) -> Vec<u8> {
    let console = EventSubject { key: key.clone(), kind: EventKind::Console }.to_string();
    let mut all = Vec::new();
    for stored in farm.stored(key).await.iter().filter(|stored| stored.subject == console) {
        let headers = stored.headers.as_ref();
        assert!(stored.payload.len() <= 64 << 10, "a chunk of {} bytes", stored.payload.len());
        if header(headers, HEADER_STREAM) == Some(stream) && header(headers, HEADER_DROPPED).is_none() {
            assert_eq!(header(headers, HEADER_OFFSET), Some(all.len().to_string().as_str()));
            all.extend_from_slice(&stored.payload);
        }
    }
    all
}

fn code(result: &BuildResult) -> Option<ReasonCode> {
    result.reason.as_ref().map(|reason| reason.code)
}

#[tokio::test]
async fn exit_codes_and_signals_are_told() {
    let farm = farm().await;
    let result = result_of(&farm, script("exit 0")).await;
    assert_eq!((result.outcome, result.exit_code, result.signal), (Outcome::Succeeded, Some(0), None));
    assert_eq!(result.reason, None);
    let result = result_of(&farm, script("exit 77")).await;
    assert_eq!((result.outcome, result.exit_code, result.signal), (Outcome::Failed, Some(77), None));
    assert_eq!(code(&result), Some(ReasonCode::CommandFailed));
    let result = result_of(&farm, script("kill -SEGV $$")).await;
    assert_eq!((result.outcome, result.exit_code, result.signal), (Outcome::Failed, None, Some(11)));
    let result = result_of(&farm, request(&["no-such-program-anywhere"])).await;
    assert_eq!((result.outcome, result.exit_code), (Outcome::Failed, None));
    assert_eq!(code(&result), Some(ReasonCode::CommandNotStarted));
    let message = result.reason.unwrap().message;
    assert!(message.contains("no-such-program-anywhere"), "{message}");
}

#[tokio::test]
async fn time_and_memory_are_plausible() {
    let farm = farm().await;
    let burn = "import time\nb = bytearray(200 << 20)\nt = time.process_time()\n\
        while time.process_time() - t < 0.5: pass\ntime.sleep(0.5)";
    let result = result_of(&farm, request(&["python3", "-c", burn])).await;
    assert_eq!(result.outcome, Outcome::Succeeded);
    assert!((1.0..30.0).contains(&result.wall_seconds), "{result:?}");
    assert!((0.5..2.0).contains(&result.cpu_seconds), "{result:?}");
    assert!((200 << 20..400 << 20).contains(&result.peak_memory_bytes), "{result:?}");
    let started = result.command_started_at_us.unwrap() / 1000;
    assert!(model::Millis::of_this_machine().0 - started < 20_000);
}

#[tokio::test]
async fn output_is_kept_byte_by_byte_and_apart() {
    let farm = farm().await;
    let key = farm.submit("g", script(r"printf '\000\377\200out'; printf 'err\303' >&2; printf '\n'")).await;
    let result = ended_as(&farm, &key, Outcome::Succeeded).await.result().unwrap().clone();
    assert_eq!(output(&farm, &key, "stdout").await, b"\0\xff\x80out\n");
    assert_eq!(output(&farm, &key, "stderr").await, b"err\xc3");
    assert_eq!((result.log.stdout_bytes, result.log.stderr_bytes, result.log.bus_bytes), (7, 4, 11));
    assert_eq!((result.log.overflow, result.log.dropped_bytes), (None, 0));

    let key = farm.submit("g", script("seq 200000")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let text = String::from_utf8(output(&farm, &key, "stdout").await).unwrap();
    assert!(text.lines().map(|line| line.parse::<u32>().unwrap()).eq(1..=200_000));
}

#[tokio::test]
async fn output_comes_while_the_build_runs() {
    let farm = farm().await;
    let go = farm.folder().join("go");
    let env = [("GO".to_owned(), go.to_str().unwrap().to_owned())].into();
    let text = "echo first; while [ ! -e \"$GO\" ]; do sleep 0.05; done; echo last";
    let began = Instant::now();
    let key = farm.submit("g", BuildRequest { env, ..script(text) }).await;
    let first = farm.wait_event(&key, SOON, &[EventKind::Console], |_| true).await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let WatchBody::Console(chunk) = first.body else { panic!("{first:?}") };
    assert_eq!(&chunk.data[..], b"first\n");
    assert_eq!(farm.bus().records().latest(&key).await.unwrap().unwrap().1.state(), State::InProgress);
    std::fs::write(go, "").unwrap();
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(output(&farm, &key, "stdout").await, b"first\nlast\n");
}

#[tokio::test]
async fn a_build_that_ignores_sigterm_and_forks_ends_at_its_timeout_with_its_log() {
    let farm = farm().await;
    let text =
        "trap '' TERM; echo before; (trap '' TERM; setsid sleep 1000 &) ; while :; do sleep 1000; done";
    let key = farm.submit("g", BuildRequest { timeout_seconds: Some(1), ..script(text) }).await;
    let record: BuildRecord = ended_as(&farm, &key, Outcome::TimedOut).await;
    let result = record.result().unwrap();
    assert_eq!(code(result), Some(ReasonCode::RunningTooLong));
    assert!((1.0..3.0).contains(&result.wall_seconds), "{result:?}");
    assert_eq!(output(&farm, &key, "stdout").await, b"before\n");
    until("its processes are dead", SOON, || processes_of(key.id).is_empty()).await;
    assert_eq!(result_of(&farm, script("true")).await.outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn processes_that_outlive_their_command_are_killed() {
    let farm = farm().await;
    let key = farm.submit("g", script("setsid sleep 1000 > /dev/null 2>&1 & sleep 1000 & exit 0")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    until("nothing is left", SOON, || processes_of(key.id).is_empty()).await;
}

#[tokio::test]
async fn a_build_that_waits_too_long_expires() {
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let key = farm.submit("g", BuildRequest { queue_timeout_seconds: Some(1), ..script("true") }).await;
    let result = ended_as(&farm, &key, Outcome::Expired).await.result().unwrap().clone();
    assert_eq!(code(&result), Some(ReasonCode::QueuedTooLong));
    // A worker that starts later does not run it.
    let _worker = farm.spawn("worker").await;
    assert_eq!(result_of(&farm, script("true")).await.outcome, Outcome::Succeeded);
    assert_eq!(farm.history(&key).await.len(), 2);
}

/// Returns the peak resident memory of a process in bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn two_hundred_megabytes_of_output_are_cut_and_told() {
    const WRITTEN: u64 = 200_000_000;
    let limit = (64 << 20).to_string();
    let farm = Farm::builder().without("gateway").env("FOREBAY_LOG_BYTES_MAX", &limit).start().await;
    let key = farm.submit("g", script("yes 0123456789abcde | head -c 200000000")).await;
    let record = ended_within(&farm, &key, Duration::from_secs(60)).await;
    let result = record.result().unwrap();
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
    let log = &result.log;
    assert_eq!(log.stdout_bytes, WRITTEN);
    assert!((3 << 20..=4 << 20).contains(&log.bus_bytes), "{log:?}");
    assert_eq!(log.overflow, None);
    let kept = WRITTEN - log.dropped_bytes;
    assert!((60 << 20..=64 << 20).contains(&kept), "{log:?}");

    let marked = farm.stored(&key).await;
    let marks: Vec<_> =
        marked.iter().filter(|it| header(it.headers.as_ref(), HEADER_DROPPED).is_some()).collect();
    assert_eq!(marks.len(), 1);
    let offset = header(marks[0].headers.as_ref(), HEADER_OFFSET).unwrap();
    assert_eq!(offset, kept.to_string());
    assert_eq!(output(&farm, &key, "stdout").await.len() as u64, log.bus_bytes);
    let peak = peak_bytes(farm.pid("worker"));
    assert!(peak < 300 << 20, "the worker took {peak} bytes");
}

#[tokio::test]
async fn a_command_sees_its_own_environment_only() {
    let farm = Farm::builder().without("gateway").env("SECRET_OF_THE_WORKER", "x").start().await;
    let env = [("MINE".to_owned(), "a b=c\n\"'".to_owned())].into();
    let key = farm.submit("g", BuildRequest { env, ..request(&["env", "-0"]) }).await;
    ended_within(&farm, &key, BOUND).await;
    let text = String::from_utf8(output(&farm, &key, "stdout").await).unwrap();
    let all: std::collections::BTreeMap<&str, &str> =
        text.split_terminator('\0').filter_map(|it| it.split_once('=')).collect();
    assert_eq!(all["MINE"], "a b=c\n\"'");
    assert_eq!(all["FOREBAY_BUILD_ID"], key.id.to_string());
    assert_eq!(
        (all["FOREBAY_ATTEMPT"], all["FOREBAY_GROUP"], all["FOREBAY_PRIORITY"]),
        ("1", "g", "interactive")
    );
    let (_, ended) = farm.bus().records().latest(&key).await.unwrap().unwrap();
    assert_eq!(all["FOREBAY_INVOCATION"], ended.invocation_id().unwrap().to_string());
    assert!(
        all["HOME"] != all["FOREBAY_WORKSPACE"] && all.contains_key("PATH") && all.contains_key("TMPDIR")
    );
    let leaked: Vec<&&str> =
        all.keys().filter(|name| name.contains("SECRET") || name.contains("NATS_URL")).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
}

#[tokio::test]
async fn build_events_that_never_end_hold_no_build_beyond_its_time_limit() {
    let farm = farm().await;
    // As the farm's Bazel leaves it.
    let called_bazel = script("mkdir -p \"${FOREBAY_WORKSPACE%/*}/tool-events\"; sleep 1");
    let key = farm.submit("g", BuildRequest { timeout_seconds: Some(6), ..called_bazel }).await;
    let (bus, at) = (farm.bus(), key.clone());
    let publishing = async {
        for number in 1.. {
            let latest = bus.records().latest(&at).await.unwrap();
            let Some((guard, record)) = latest.filter(|(_, record)| record.state() == State::InProgress)
            else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let (key, attempt, invocation) = (at.clone(), record.attempt, record.invocation_id());
            let owner = EventOwner::Run { key, attempt, invocation, guard };
            let content = EventContent::Inline(Bytes::from_static(b"\x02\x10\x01"));
            let tool = ToolInvocation::of("foreign");
            let events = BazelEvents { tool, first: number, last: number, complete: false, content };
            let _ = bus.write_bazel_events(&owner, &events, BOUND).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let record = tokio::select! {
        record = ended_within(&farm, &key, SOON) => record,
        () = publishing => unreachable!("it never ends"),
    };
    let result = record.result().unwrap();
    assert_eq!(result.outcome, Outcome::Succeeded, "{result:?}");
}
