//! The live block of `submit --follow` and `watch` in a real terminal.

use std::{fs, path::Path};

use farm::Farm;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    jobs::{self, sh},
    terminal::Terminal,
};

fn wait(file: &Path) -> String {
    format!("while [ ! -e '{}' ]; do sleep 0.02; done", file.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_shows_what_runs_until_it_ends() {
    let farm = jobs::start(jobs::builder()).await;
    let mark = farm.folder().join("mark");
    let long = format!("a-task-with-a-long-name-{}", "x".repeat(60));
    let mut last = sh("last", "echo all done");
    last["dependencies"] = json!([long]);
    let job = jobs::job(&json!([sh("known", "sleep 0.3; exit 0"), sh(&long, &wait(&mark)), last]));
    let file = farm.folder().join("job.json");
    fs::write(&file, serde_json::to_vec(&job).unwrap()).unwrap();
    let submit = ["submit", "--follow", "--job", file.to_str().unwrap()];
    let terminal = Terminal::start(&farm, (60, 24), &submit);
    terminal.shows("  1/3 tasks, 1 running, about ").await;
    terminal.shows("    a-task-with-a-long-name-xxx").await;
    terminal.shows("…").await;
    let text = terminal.text();
    assert_eq!(text.matches("tasks, 1 running").count(), 1, "it is drawn in place:\n{text}");
    fs::write(&mark, "").unwrap();
    let text = terminal.ended(0).await;
    assert!(text.contains("all done") && text.contains("FINISHED succeeded"), "{text}");
    assert!(!text.contains("/3 tasks") && !text.contains("running") && !text.contains('…'), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_block_spares_the_output_and_vanishes_with_the_command() {
    let farm = Farm::builder().without("gateway").start().await;
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let script = "echo one; printf partial; sleep 0.6; echo; sleep 60";
        let submit = ["submit", "--follow", "--", "sh", "-c", script];
        let terminal = Terminal::start(&farm, (100, 24), &submit);
        terminal.shows("\npartial\n").await;
        terminal.shows(" running ").await;
        terminal.signal(signal);
        let text = terminal.ended(code).await;
        assert!(text.contains("\none\npartial\nforebay: build "), "{text}");
        assert!(!text.contains(" running "), "{text}");
        let build = text.split_whitespace().nth(1).unwrap().to_owned();
        assert_eq!(farm.cli(&["cancel", &build]).await.code, 0);
    }
}
