//! `forebay top` in a real terminal.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use farm::{Farm, SOON};
use model::{Outcome, State};
use nix::{
    pty::{Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, tcgetattr},
    },
    unistd::Pid,
};

use crate::check::{ended_as, script, until};

/// A program in a terminal, and what the terminal shows.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn start(farm: &Farm, (columns, rows): (u16, u16), args: &[&str]) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command: Command = farm.command(args).into_std();
        let child = command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").spawn().unwrap();
        let keyboard = File::from(pty.master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut output, shown) = (keyboard.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Reading fails when the last process with the terminal has ended.
            while let Ok(length @ 1..) = output.read(&mut part) {
                shown.lock().unwrap().process(&part[..length]);
            }
        });
        Self { child, keyboard, screen }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    async fn shows(&self, text: &str) {
        let shown = || self.text().contains(text);
        let waited = tokio::time::timeout(SOON, until(text, SOON * 2, shown)).await;
        assert!(waited.is_ok(), "the terminal does not show {text:?}:\n{}", self.text());
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the end of the program; the terminal must be as it was before.
    async fn ended(mut self) {
        let code = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status.code(),
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        assert_eq!(code, Some(0));
        until("the screen of before", SOON, || !self.screen.lock().unwrap().screen().alternate_screen())
            .await;
        assert!(!self.screen.lock().unwrap().screen().hide_cursor());
        let modes = tcgetattr(&self.keyboard).unwrap().local_flags;
        assert!(modes.contains(LocalFlags::ICANON | LocalFlags::ECHO), "{modes:?}");
    }
}

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
    top.press("2c");
    top.shows(&format!("cancel build {key}? y: yes")).await;
    top.press("n");
    top.shows("?: help").await;
    top.press("cy");
    top.shows("cancelled").await;
    ended_as(&farm, &key, Outcome::Cancelled).await;
    top.press("q");
    top.ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_restores_the_terminal() {
    let farm = Farm::all().await;
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let top = Terminal::start(&farm, (200, 60), &["top", "executors"]);
        top.shows("4 executors").await;
        kill(Pid::from_raw(top.child.id().try_into().unwrap()), signal).unwrap();
        top.ended().await;
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
