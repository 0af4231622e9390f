//! Progress of transfers and remote executions: an updating line on stderr if it is a terminal.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use remote::{Meter, Reading};

use crate::{bytes_text::size, failure::say};

/// Time before progress is first shown.
const FIRST: Duration = Duration::from_millis(400);
const TICK: Duration = Duration::from_millis(120);
/// Time between progress lines if stderr is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// When progress is shown: the option `--progress`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// Show progress if stderr is a terminal
    #[default]
    Auto,
    /// Show progress always; line by line if stderr is not a terminal
    Always,
    /// Do not show progress
    Never,
}

/// Shows phases and transfer counts on stderr.
pub(crate) struct Progress {
    how: How,
}

enum How {
    Nothing,
    Lines,
    Spinner(ProgressBar),
}

impl Progress {
    /// Creates a display; nothing is shown yet.
    pub(crate) fn new(when: When) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let how = match when {
            When::Never => How::Nothing,
            When::Auto if !terminal => How::Nothing,
            When::Always if !terminal => How::Lines,
            When::Auto | When::Always => How::Spinner(spinner()),
        };
        Self { how }
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
            match &self.how {
                How::Spinner(spinner) => show(spinner, line),
                How::Lines if wait == FIRST || last.elapsed() >= LINE_EVERY => {
                    say(&line);
                    last = Instant::now();
                }
                How::Lines | How::Nothing => {}
            }
            wait = TICK;
        }
    }

    /// Shows the current phase.
    pub(crate) fn phase(&self, line: String) {
        match &self.how {
            How::Nothing => {}
            How::Lines => say(&line),
            How::Spinner(spinner) => show(spinner, line),
        }
    }

    /// Prints a permanent line unless progress is off.
    pub(crate) fn note(&self, line: &str) {
        self.rest();
        match &self.how {
            How::Nothing => {}
            How::Lines | How::Spinner(_) => say(line),
        }
    }

    /// Clears the progress line before other output.
    pub(crate) fn rest(&self) {
        if let How::Spinner(spinner) = &self.how {
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
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        spinner.set_style(style);
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
