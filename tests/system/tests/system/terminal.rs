//! Programs in a real terminal.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use farm::{Farm, SOON};
use nix::{
    pty::{Winsize, openpty},
    sys::{
        signal::{Signal, kill},
        termios::{LocalFlags, tcgetattr},
    },
    unistd::Pid,
};

use crate::check::until;

/// A program in a terminal, and what the terminal shows.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Reads what the program prints, until the last process with the terminal has ended.
    reader: JoinHandle<()>,
}

impl Terminal {
    pub(crate) fn start(farm: &Farm, (columns, rows): (u16, u16), args: &[&str]) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command: Command = farm.command(args).into_std();
        let child = command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm").spawn().unwrap();
        let keyboard = File::from(pty.master);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut output, shown) = (keyboard.try_clone().unwrap(), screen.clone());
        let reader = std::thread::spawn(move || {
            let mut part = [0; 4096];
            // Reading fails when the last process with the terminal has ended.
            while let Ok(length @ 1..) = output.read(&mut part) {
                shown.lock().unwrap().process(&part[..length]);
            }
        });
        Self { child, keyboard, screen, reader }
    }

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    pub(crate) async fn shows(&self, text: &str) {
        let shown = || self.text().contains(text);
        let waited = tokio::time::timeout(SOON, until(text, SOON * 2, shown)).await;
        assert!(waited.is_ok(), "the terminal does not show {text:?}:\n{}", self.text());
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for the end of the program, which must exit with `code`, and leave the terminal as it was before; returns what
    /// the terminal shows then.
    pub(crate) async fn ended(mut self, code: i32) -> String {
        let ended = async {
            loop {
                match self.child.try_wait().unwrap() {
                    Some(status) => break status.code(),
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        assert_eq!(tokio::time::timeout(SOON, ended).await, Ok(Some(code)), "{}", self.text());
        until("the screen of before", SOON, || !self.screen.lock().unwrap().screen().alternate_screen())
            .await;
        assert!(!self.screen.lock().unwrap().screen().hide_cursor());
        let modes = tcgetattr(&self.keyboard).unwrap().local_flags;
        assert!(modes.contains(LocalFlags::ICANON | LocalFlags::ECHO), "{modes:?}");
        let read = tokio::task::spawn_blocking(move || self.reader.join());
        tokio::time::timeout(SOON, read).await.expect("all is read").unwrap().unwrap();
        self.screen.lock().unwrap().screen().contents()
    }
}
