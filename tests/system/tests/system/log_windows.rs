//! Windows of long logs: over HTTP and in the command line, of each attempt.

use std::{fs, ops::RangeInclusive};

use bus::EventKind;
use client::{WatchBody, WatchEvent};
use farm::{Farm, SOON};
use model::{BuildKey, Outcome, State};
use serde_json::Value;

use crate::{
    check::{BOUND, ended_as, script},
    http::get,
};

/// Farm whose console output goes to the store after 100 kB.
pub(crate) async fn farm() -> Farm {
    Farm::builder().env("FOREBAY_CONSOLE_BYTES_MAX", "100000").start().await
}

/// The answer to a question about the log of a build.
pub(crate) async fn ask(farm: &Farm, key: &BuildKey, query: &str) -> (u16, String) {
    get(&format!("{}/v1/builds/{}/{}/log{query}", farm.http_url(), key.group, key.id)).await
}

pub(crate) async fn window(farm: &Farm, key: &BuildKey, query: &str) -> Value {
    let (status, text) = ask(farm, key, query).await;
    assert_eq!(status, 200, "{query}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// Asserts that a window has these lines of `seq`.
fn assert_lines(window: &Value, wanted: RangeInclusive<u64>) {
    let lines = window["lines"].as_array().unwrap();
    assert_eq!(lines.len() as u64, wanted.end() + 1 - wanted.start(), "{:?}", lines.first());
    for (line, number) in lines.iter().zip(wanted) {
        let (text, found, stream) = (&line["text"], &line["number"], &line["stream"]);
        let wanted = serde_json::json!([number.to_string(), number, "stdout"]);
        assert_eq!(serde_json::json!([text, found, stream]), wanted);
        assert_eq!(line.get("cut"), None);
    }
}

/// The text of `seq N`.
fn seq(count: u64) -> String {
    (1..=count).fold(String::new(), |text, number| text + &format!("{number}\n"))
}

/// Waits until the stored log has this many bytes.
async fn wait_stored(farm: &Farm, key: &BuildKey, bytes: u64) {
    let stored = |event: &WatchEvent| match &event.body {
        WatchBody::Frame(frame) => frame.reference.offset + frame.reference.bytes == bytes,
        WatchBody::Console(_) | WatchBody::Lifecycle(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => false,
    };
    farm.wait_event(key, SOON, &[EventKind::Console], stored).await;
}

#[tokio::test]
async fn a_window_has_its_lines_wherever_they_are_stored() {
    let farm = farm().await;
    let key = farm.submit("g", script("seq 400000")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let bytes = seq(400_000).len() as u64;
    // The bus has about 18,500 lines, a frame about 150,000.
    for first in [1, 17_500, 80_000, 160_000, 250_000, 398_001] {
        let found = window(&farm, &key, &format!("?line={first}&lines=2000")).await;
        assert_lines(&found, first..=first + 1999);
        let next = (first < 398_001).then_some(first + 2000);
        assert_eq!(found["next_line"].as_u64(), next);
        assert_eq!((&found["total_lines"], &found["total_bytes"]), (&400_000.into(), &bytes.into()));
        assert_eq!((&found["attempt"], &found["complete"]), (&1.into(), &true.into()));
    }
    assert_lines(&window(&farm, &key, "?lines=3").await, 1..=3);
    assert_lines(&window(&farm, &key, "?line=100000").await, 100_000..=100_999);
    assert_lines(&window(&farm, &key, "?tail=10").await, 399_991..=400_000);
    assert_lines(&window(&farm, &key, "?line=399999&lines=10").await, 399_999..=400_000);
    let past = window(&farm, &key, "?line=400001&lines=10").await;
    assert_eq!((past["lines"].as_array().unwrap().len(), past.get("next_line")), (0, None));
    assert!(ask(&farm, &key, "").await.1 == seq(400_000));
}

#[tokio::test]
async fn long_lines_are_cut_and_streams_are_named() {
    let farm = farm().await;
    let text = "printf '%0300000d\\n' 7; echo err >&2; sleep 0.5; printf '\\377ab\\n'; printf open";
    let key = farm.submit("g", script(text)).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let found = window(&farm, &key, "?lines=10").await;
    let lines = found["lines"].as_array().unwrap();
    let by = |text: &str| lines.iter().find(|line| line["text"] == text).unwrap();
    assert_eq!((lines.len(), &found["total_lines"]), (4, &4.into()), "{}", lines.len());
    assert_eq!(
        (by("err")["stream"].as_str(), by("open")["stream"].as_str()),
        (Some("stderr"), Some("stdout"))
    );
    assert_eq!(by("\u{fffd}ab").get("cut"), None);
    let long = lines.iter().find(|line| line["cut"] == true).unwrap();
    assert_eq!(long["text"].as_str().unwrap().len(), 16 << 10);
}

#[tokio::test]
async fn impossible_questions_are_refused() {
    let farm = farm().await;
    let key = farm.submit("g", script("echo only")).await;
    let invocation = ended_as(&farm, &key, Outcome::Succeeded).await.invocation_id().unwrap();
    let other = "0198c5d3-0000-7000-8000-000000000001";
    for (query, status) in [
        ("?line=0".to_owned(), 400),
        ("?lines=0".to_owned(), 400),
        ("?lines=2001".to_owned(), 400),
        ("?tail=2001".to_owned(), 400),
        ("?tail=2&line=1".to_owned(), 400),
        (format!("?attempt=1&invocation={invocation}"), 400),
        ("?attempt=2&tail=1".to_owned(), 404),
        ("?attempt=2".to_owned(), 404),
        (format!("?invocation={other}"), 404),
    ] {
        let (found, text) = ask(&farm, &key, &query).await;
        assert_eq!(found, status, "{query}: {text}");
    }
    assert_eq!(ask(&farm, &key, &format!("?invocation={invocation}")).await, (200, "only\n".to_owned()));
    for (args, code) in [
        (["--tail", "1", "--line", "1"].as_slice(), 2),
        (&["--tail", "0"], 2),
        (&["--lines", "2001"], 2),
        (&["--line", "0"], 2),
        (&["--attempt", "2"], 2),
        (&["--attempt", "2", "--tail", "1"], 2),
        (&["--attempt", "1", "--tail", "1"], 0),
    ] {
        let id = key.id.to_string();
        let output = farm.cli(&[&["logs", id.as_str()], args].concat()).await;
        assert_eq!(output.code, code, "{args:?}: {output:?}");
        assert_eq!(output.stdout, if code == 0 { "only\n" } else { "" });
        assert!(code == 0 || !output.stderr.is_empty());
    }
}

#[tokio::test]
async fn the_command_line_prints_windows() {
    let farm = farm().await;
    let key = farm.submit("g", script("seq 100000; echo oops >&2; sleep 0.5; printf end")).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let id = key.id.to_string();
    let logs = async |args: &[&str]| farm.cli(&[&["logs", id.as_str()], args].concat()).await;
    let found = logs(&["--line", "50000", "--lines", "3"]).await;
    assert_eq!((found.stdout.as_str(), found.stderr.as_str()), ("50000\n50001\n50002\n", ""));
    let tail = logs(&["--tail", "2"]).await;
    assert_eq!((tail.stdout.as_str(), tail.stderr.as_str()), ("end\n", "oops\n"));
    assert_eq!(logs(&["--line", "7"]).await.stdout.lines().count(), 1000);
    let json: Value = serde_json::from_str(&logs(&["--tail", "1", "--json"]).await.stdout).unwrap();
    assert_eq!((&json["lines"][0]["text"], &json["total_lines"]), (&"end".into(), &100_002.into()));
}

#[tokio::test]
async fn the_log_of_a_lost_attempt_is_kept_up_to_its_death() {
    let farm = farm().await;
    let text = "if [ $FOREBAY_ATTEMPT = 1 ]; then seq 100000; sleep 1000; fi; seq 200000";
    let key = farm.submit("g", script(text)).await;
    wait_stored(&farm, &key, seq(100_000).len() as u64).await;
    let running = window(&farm, &key, "?tail=5").await;
    assert_lines(&running, 99_996..=100_000);
    assert_eq!((&running["complete"], &running["attempt"]), (&false.into(), &1.into()));
    let mut worker = farm.take("worker");
    worker.kill9();
    worker.wait_exit(SOON).await;
    farm.keep(farm.spawn("worker").await);
    let again = |record: &model::BuildRecord| record.attempt.0 == 2 && record.state() == State::InProgress;
    farm.wait_until(&key, BOUND, again).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    for query in
        ["?attempt=1&tail=5", &format!("?invocation={}&tail=5", running["invocation"].as_str().unwrap())]
    {
        let lost = window(&farm, &key, query).await;
        assert_lines(&lost, 99_996..=100_000);
        assert_eq!((&lost["complete"], &lost["attempt"]), (&true.into(), &1.into()));
    }
    assert_lines(&window(&farm, &key, "?line=50000&lines=2000&attempt=1").await, 50_000..=51_999);
    assert_lines(&window(&farm, &key, "?tail=5").await, 199_996..=200_000);
    assert!(ask(&farm, &key, "?attempt=1").await.1 == seq(100_000));
    assert!(
        ask(&farm, &key, "").await.1 == seq(200_000)
            && ask(&farm, &key, "?attempt=2").await.1 == seq(200_000)
    );
    let id = key.id.to_string();
    for (attempt, count) in [("1", 100_000), ("2", 200_000)] {
        let printed = farm.cli(&["logs", &id, "--attempt", attempt]).await;
        assert!(printed.stdout == seq(count), "attempt {attempt}: {} bytes", printed.stdout.len());
    }
}

#[tokio::test]
async fn the_log_of_a_running_build_grows() {
    let farm = farm().await;
    let go = farm.folder().join("go");
    let wait = format!("seq 100000; until [ -e {} ]; do sleep 0.1; done; seq 100001 100010", go.display());
    let key = farm.submit("g", script(&wait)).await;
    wait_stored(&farm, &key, seq(100_000).len() as u64).await;
    let before = window(&farm, &key, "?line=100001&lines=20").await;
    assert_eq!((&before["total_lines"], &before["complete"]), (&100_000.into(), &false.into()));
    fs::write(&go, "").unwrap();
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let after = window(&farm, &key, "?line=100001&lines=20").await;
    assert_lines(&after, 100_001..=100_010);
    assert_eq!(after["complete"], true);
}

#[tokio::test]
async fn a_queued_build_has_an_empty_log() {
    let farm = Farm::builder().without("worker").start().await;
    let key = farm.submit("g", script("true")).await;
    let found = window(&farm, &key, "?tail=5").await;
    assert_eq!((&found["total_lines"], &found["complete"]), (&0.into(), &false.into()));
    assert_eq!(found.get("attempt"), None);
    assert_eq!(ask(&farm, &key, "").await, (200, String::new()));
}
