//! `forebay top` in a real terminal.

use farm::{Farm, SOON};
use model::{Outcome, State};
use nix::sys::signal::Signal;

use crate::{
    check::{ended_as, script},
    terminal::Terminal,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_follows_the_farm_through_an_outage_and_cancels_after_yes() {
    let farm = Farm::all().await;
    let key = farm.submit("core", script("sleep 600")).await;
    farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
    let mut top = Terminal::start(&farm, (80, 24), &["top", "--interval", "200ms"]);
    top.shows("IN_PROGRESS  core").await;
    top.press("3");
    top.shows("ready").await;
    farm.servers.kill_nats();
    top.shows("s old: ").await;
    top.shows("ready").await;
    farm.servers.start_nats().await;
    top.shows("?: help").await;
    top.press("2");
    top.shows("  core   interactive").await;
    assert!(!top.text().contains("WARN"), "a log line is on the screen:\n{}", top.text());
    top.press("c");
    top.shows(&format!("cancel build {key}? y: yes")).await;
    top.press("n");
    top.shows("?: help").await;
    top.press("cy");
    top.shows("cancelled").await;
    ended_as(&farm, &key, Outcome::Cancelled).await;
    top.press("q");
    top.ended(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_restores_the_terminal() {
    let farm = Farm::all().await;
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let top = Terminal::start(&farm, (200, 60), &["top", "executors"]);
        top.shows("4 executors").await;
        top.signal(signal);
        top.ended(0).await;
    }
}

#[tokio::test]
async fn without_a_terminal_it_prints_once() {
    let farm = Farm::all().await;
    let key = farm.submit("core", script("exit 3")).await;
    ended_as(&farm, &key, Outcome::Failed).await;
    let shown = farm.cli(&["top"]).await;
    assert!(
        shown.code == 0 && shown.stdout.contains("failed") && !shown.stdout.contains('\u{1b}'),
        "{shown:?}"
    );
    let json = farm.cli(&["top", "--json"]).await;
    let state: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(state["builds"][0]["id"], key.id.to_string(), "{state}");
    assert!(state["workers"].as_array().is_some_and(|all| all.len() == 1), "{state}");
}
