//! Lines at the bottom of a terminal that are redrawn in place, and vanish before anything else is printed there.

use std::{io::IsTerminal as _, sync::Once};

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use invariant::impossible;
use parking_lot::Mutex;

/// The block that is on this terminal now. Any part of the program may print there, and removes it first.
static DRAWN: Mutex<Option<MultiProgress>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// A block of lines on stderr, if it is a terminal.
pub struct Live {
    terminal: Option<(MultiProgress, ProgressBar)>,
}

impl Live {
    /// A block that is never shown.
    pub fn off() -> Self {
        Self { terminal: None }
    }

    /// Creates a block; nothing is shown yet.
    pub fn on_stderr() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::off();
        }
        HOOK.call_once(clear_before_panics);
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let bar = all.add(ProgressBar::new_spinner());
        match ProgressStyle::with_template("{msg}") {
            Ok(style) => bar.set_style(style),
            Err(error) => {
                impossible!("the template of the live block is invalid: {error}");
            }
        }
        Self { terminal: Some((all, bar)) }
    }

    /// Whether there is a terminal.
    pub fn is_on(&self) -> bool {
        self.terminal.is_some()
    }

    /// Draws the lines, each cut to the width of the terminal, in place of those drawn before.
    pub fn draw(&self, lines: &[String]) {
        let Some((all, bar)) = &self.terminal else { return };
        let (rows, columns) = Term::stderr().size();
        let (rows, columns) = (usize::from(rows).saturating_sub(1), usize::from(columns).saturating_sub(1));
        let cut = |line: &String| console::truncate_str(line, columns, "…").into_owned();
        let text = lines.iter().take(rows.max(1)).map(cut).collect::<Vec<_>>().join("\n");
        *DRAWN.lock() = Some(all.clone());
        bar.set_message(text);
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        clear();
        if let Some((all, _)) = &self.terminal {
            // The end of its bar draws nothing more.
            all.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

/// Removes the block from the terminal until it is drawn again.
pub fn clear() {
    if let Some(all) = DRAWN.lock().take() {
        // A failure to write to the terminal is not one of the command.
        let _ = all.clear();
    }
}

/// Without this, the message of a panic would be printed into the block.
fn clear_before_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // The thread that panics can draw nothing any more. If no other can be started, the block stays.
        let _ = std::thread::Builder::new().spawn(clear).map(std::thread::JoinHandle::join);
        report(panic);
    }));
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::Read as _,
        process::{Command, Stdio},
    };

    use nix::pty::{Winsize, openpty};

    use super::Live;

    #[test]
    #[ignore = "the next test runs it in a terminal"]
    fn panics_below_a_block() {
        let live = Live::on_stderr();
        assert!(live.is_on());
        live.draw(&["the first line".to_owned(), "the second line".to_owned()]);
        panic!("the message");
    }

    #[test]
    fn a_panic_removes_the_block_before_its_message() {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env_remove("RUST_BACKTRACE")
            .args(["--ignored", "--exact", "live::tests::panics_below_a_block", "--nocapture"])
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(pty.slave))
            .spawn()
            .unwrap();
        let (mut output, mut all, mut part) = (File::from(pty.master), Vec::new(), [0; 4096]);
        // Reading fails when the process has ended.
        while let Ok(length @ 1..) = output.read(&mut part) {
            all.extend_from_slice(&part[..length]);
        }
        assert!(!child.wait().unwrap().success());
        let mut screen = vt100::Parser::new(24, 80, 0);
        screen.process(&all);
        let (raw, text) = (String::from_utf8_lossy(&all), screen.screen().contents());
        assert!(raw.contains("the first line") && raw.contains("the second line"), "{raw}");
        // The message has the path of this file, which has the word line too.
        assert!(text.contains("the message"), "{text}");
        assert!(!text.contains("the first line") && !text.contains("the second line"), "{text}");
    }
}
