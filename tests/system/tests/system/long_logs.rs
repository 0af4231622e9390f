//! Console output that is too long for the bus: followed live, read again, and cut by the end of its attempt.

use std::fs;

use bus::EventKind;
use client::{WatchBody, WatchEvent};
use farm::{Farm, SOON};
use model::Sequence;
use serde_json::Value;

use crate::{check::script, http::client};

/// Output of about 3 MB in both streams, which have no character in common.
const TALK: &str =
    r"i=0; while [ $i -lt 20 ]; do seq 20000; seq 30000 32000 | tr '0-9\n' 'a-j;' >&2; i=$((i+1)); done";

async fn farm() -> Farm {
    Farm::builder().env("FOREBAY_CONSOLE_BYTES_MAX", "100000").start().await
}

fn expected() -> (String, String) {
    let lines = |from: u32, to: u32| (from..=to).fold(String::new(), |text, n| text + &format!("{n}\n"));
    let letters =
        |line: char| line.to_digit(10).map_or(';', |digit| "abcdefghij".as_bytes()[digit as usize].into());
    (lines(1, 20_000).repeat(20), lines(30_000, 32_000).chars().map(letters).collect::<String>().repeat(20))
}

fn is_frame(event: &WatchEvent) -> bool {
    matches!(event.body, WatchBody::Frame(_))
}

#[tokio::test]
async fn all_output_is_shown_to_its_end() {
    let farm = farm().await;
    let (stdout, stderr) = expected();
    let shown = farm.cli(&["submit", "--group", "g", "--follow", "--", "sh", "-c", TALK]).await;
    assert_eq!(shown.code, 0);
    assert!(shown.stdout == stdout, "{} bytes", shown.stdout.len());
    let logs = farm.cli(&["logs", "@last"]).await;
    assert!(logs.stdout == stdout, "{} bytes", logs.stdout.len());
    assert!(logs.stderr == stderr, "{} bytes", logs.stderr.len());
    let watched = farm.cli(&["watch", "@last", "--kind", "console"]).await;
    assert!(watched.stdout == stdout && watched.stderr == stderr, "{} bytes", watched.stdout.len());
}

#[tokio::test]
async fn all_output_comes_over_http() {
    let farm = farm().await;
    let (stdout, stderr) = expected();
    let key = farm.submit("g", script(TALK)).await;
    farm.wait_finished(&key, SOON).await;
    let url = format!("{}/v1/builds/{}/{}", farm.http_url(), key.group, key.id);
    let get = async |url: String| client().get(url).send().await.unwrap().text().await.unwrap();
    let log = get(format!("{url}/log")).await;
    // The streams may meet anywhere; each of them is in order.
    let is_stderr = |c: &char| matches!(c, 'a'..='j' | ';');
    let (of_stderr, of_stdout): (String, String) = log.chars().partition(is_stderr);
    assert!(of_stdout == stdout && of_stderr == stderr, "{} and {} bytes", of_stdout.len(), of_stderr.len());
    let mut seen = (String::new(), String::new());
    for line in get(format!("{url}/events?kind=console")).await.lines() {
        let Some(data) = line.strip_prefix("data:") else { continue };
        let event: Value = serde_json::from_str(data).unwrap();
        let parts = event["parts"].as_array().cloned().unwrap_or_else(|| vec![event.clone()]);
        for part in parts {
            let to = if part["stream"] == "stderr" { &mut seen.1 } else { &mut seen.0 };
            to.push_str(part["text"].as_str().unwrap_or_default());
        }
    }
    assert!(seen == (stdout, stderr), "{} and {} bytes", seen.0.len(), seen.1.len());
}

#[tokio::test]
async fn a_follower_sees_a_frame_while_the_build_runs() {
    let farm = farm().await;
    let go = farm.folder().join("go");
    let wait = format!("seq 40000; until [ -e {} ]; do sleep 0.1; done; seq 40001 80000", go.display());
    let key = farm.submit("g", script(&wait)).await;
    farm.wait_event(&key, SOON, &[EventKind::Console], is_frame).await;
    fs::write(&go, "").unwrap();
    farm.wait_finished(&key, SOON).await;
    let mut watch = farm.client().watch(&key, Sequence(0), &[EventKind::Console]);
    let (mut end, mut frames) = (0, 0);
    let read = async {
        while let Some(event) = watch.next().await.unwrap() {
            match event.body {
                WatchBody::Console(chunk) => end += chunk.data.len() as u64,
                WatchBody::Frame(frame) => {
                    assert_eq!(frame.reference.offset, end);
                    end += frame.reference.bytes;
                    frames += 1;
                }
                WatchBody::Lifecycle(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => {}
            }
        }
    };
    tokio::time::timeout(SOON, read).await.unwrap();
    let all: usize = (1..=80_000).map(|n: u32| n.to_string().len() + 1).sum();
    assert!(frames >= 2 && end == all as u64, "{frames} frames, {end} bytes");
}
