//! Progress of transfers and remote executions: an updating line on stderr if it is a terminal.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use command_line::failure::say;
use indicatif::{ProgressBar, ProgressStyle};
use invariant::impossible;
use parking_lot::Mutex;
use remote::{Meter, Reading};

use crate::bytes_text::size;

/// Time before progress is first shown.
const FIRST: Duration = Duration::from_millis(400);
const TICK: Duration = Duration::from_millis(120);
/// Time between progress lines if stderr is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);
/// The same for counts of a server, which change often.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// When progress is shown: the option `--progress`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Show progress if stderr is a terminal
    #[default]
    Auto,
    /// Always show progress, line by line if stderr is not a terminal
    Always,
    /// Do not show progress
    Never,
}

/// Shows phases and transfer counts on stderr.
pub(crate) struct Progress {
    mode: ProgressMode,
    /// When a count was last printed as a line.
    counted_at: Mutex<Option<Instant>>,
}

enum ProgressMode {
    Nothing,
    Lines,
    Spinner(ProgressBar),
}

impl Progress {
    /// Creates a display; nothing is shown yet.
    pub(crate) fn new(when: When) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let mode = match when {
            When::Never => ProgressMode::Nothing,
            When::Auto if !terminal => ProgressMode::Nothing,
            When::Always if !terminal => ProgressMode::Lines,
            When::Auto | When::Always => ProgressMode::Spinner(spinner()),
        };
        Self { mode, counted_at: Mutex::default() }
    }

    /// Runs `work`, which updates `meter`, and shows its progress.
    pub(crate) async fn transfer<T>(&self, what: &str, meter: &Meter, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let (mut wait, mut last) = (FIRST, Instant::now());
        loop {
            tokio::select! {
                done = &mut work => {
                    self.rest();
                    return done;
                }
                () = tokio::time::sleep(wait) => {}
            }
            let line = counts(what, meter.read());
            match &self.mode {
                ProgressMode::Spinner(spinner) => show(spinner, line),
                ProgressMode::Lines if wait == FIRST || last.elapsed() >= LINE_EVERY => {
                    say(&line);
                    last = Instant::now();
                }
                ProgressMode::Lines | ProgressMode::Nothing => {}
            }
            wait = TICK;
        }
    }

    /// Shows the current phase.
    pub(crate) fn phase(&self, line: String) {
        match &self.mode {
            ProgressMode::Nothing => {}
            ProgressMode::Lines => say(&line),
            ProgressMode::Spinner(spinner) => show(spinner, line),
        }
    }

    /// Shows a count that changes often; as lines, at most one in some seconds.
    pub(crate) fn count(&self, line: String) {
        match &self.mode {
            ProgressMode::Nothing => {}
            ProgressMode::Spinner(spinner) => show(spinner, line),
            ProgressMode::Lines => {
                let mut counted_at = self.counted_at.lock();
                if counted_at.is_none_or(|at| at.elapsed() >= COUNT_EVERY) {
                    *counted_at = Some(Instant::now());
                    say(&line);
                }
            }
        }
    }

    /// Prints a permanent line unless progress is off.
    pub(crate) fn note(&self, line: &str) {
        self.rest();
        match &self.mode {
            ProgressMode::Nothing => {}
            ProgressMode::Lines | ProgressMode::Spinner(_) => say(line),
        }
    }

    /// Clears the progress line before other output.
    pub(crate) fn rest(&self) {
        if let ProgressMode::Spinner(spinner) = &self.mode {
            spinner.disable_steady_tick();
            spinner.finish_and_clear();
            spinner.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.rest();
    }
}

fn spinner() -> ProgressBar {
    let spinner = ProgressBar::with_draw_target(None, indicatif::ProgressDrawTarget::hidden());
    match ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        Ok(style) => spinner.set_style(style),
        Err(error) => {
            impossible!("the template of the spinner is invalid: {error}");
        }
    }
    spinner
}

fn show(spinner: &ProgressBar, line: String) {
    if spinner.is_hidden() {
        spinner.reset();
        spinner.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        spinner.enable_steady_tick(TICK);
    }
    spinner.set_message(line);
}

fn counts(what: &str, now: Reading) -> String {
    if now.blobs_expected == 0 {
        return format!("{what}: checking for missing blobs");
    }
    format!(
        "{what}: {} of {} blobs, {} of {}",
        now.blobs,
        now.blobs_expected,
        size(now.bytes),
        size(now.bytes_expected)
    )
}

#[cfg(test)]
mod tests {
    use super::{Reading, counts};

    #[test]
    fn counts_say_how_much_is_left() {
        let now = Reading { blobs: 2, bytes: 1500, blobs_expected: 9, bytes_expected: 3_000_000 };
        assert_eq!(counts("uploading", now), "uploading: 2 of 9 blobs, 1.5 kB of 3.0 MB");
        let nothing = Reading { blobs: 0, bytes: 0, blobs_expected: 0, bytes_expected: 0 };
        assert_eq!(counts("uploading", nothing), "uploading: checking for missing blobs");
    }
}
