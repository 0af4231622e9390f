//! Showing events as they come: raw output, states on stderr, or JSON lines.

use std::{
    io::{ErrorKind, IsTerminal as _, Write as _},
    time::Duration,
};

use bus::{ConsoleChunk, EventKind};
use client::{WatchBody, WatchEvent};
use indicatif::{ProgressBar, ProgressStyle};
use model::{BuildRecord, Outcome, OutputStream, State, ToolEvent};

use crate::{
    bytes_text::{seconds, size},
    failure::Failure,
    record_text::state_line,
    stdout,
};

/// Shows events.
pub(crate) struct Presenter {
    kinds: Vec<EventKind>,
    json: bool,
    outcome: Option<Outcome>,
    /// The output's last line has no end yet.
    mid_line: bool,
    spinner: Option<ProgressBar>,
}

const TICK: Duration = Duration::from_millis(120);

impl Presenter {
    /// A presenter of `kinds`. None: states and output; what the worker does around them must be asked for.
    pub(crate) fn new(kinds: &[EventKind], json: bool) -> Self {
        let kinds = match kinds {
            [] if json => EventKind::ALL.to_vec(),
            [] => vec![EventKind::Lifecycle, EventKind::Console],
            some => some.to_vec(),
        };
        Self { kinds, json, outcome: None, mid_line: false, spinner: None }
    }

    /// How the build ended, when that was shown.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Shows one event.
    pub(crate) fn show(&mut self, event: &WatchEvent) -> Result<(), Failure> {
        if let WatchBody::Lifecycle(record) = &event.body {
            self.outcome = record.result().map(|result| result.outcome);
        }
        if !self.kinds.contains(&event.kind()) {
            return Ok(());
        }
        if self.json {
            return stdout::json(&event.to_json());
        }
        match &event.body {
            WatchBody::Lifecycle(record) => {
                self.state(&format!("[{}] {}", event.position, state_line(record)))?;
                self.spin(record);
            }
            WatchBody::Console(chunk) => self.console(chunk)?,
            WatchBody::Tool(tool) => self.state(&format!("[{}] {}", event.position, tool_line(tool)))?,
        }
        Ok(())
    }

    fn state(&mut self, line: &str) -> Result<(), Failure> {
        self.rest();
        let start = if std::mem::take(&mut self.mid_line) { "\n" } else { "" };
        stderr(format!("{start}{line}\n").as_bytes())
    }

    fn console(&mut self, chunk: &ConsoleChunk) -> Result<(), Failure> {
        if let Some(dropped) = chunk.dropped {
            return self.state(&dropped_line(chunk.stream, dropped));
        }
        self.rest();
        if let Some(last) = chunk.data.last() {
            // Elsewhere the output must stay as it is.
            self.mid_line =
                *last != b'\n' && std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        }
        match chunk.stream {
            OutputStream::Stdout => stdout::bytes(&chunk.data),
            OutputStream::Stderr => stderr(&chunk.data),
        }
    }

    /// On a terminal, shows that we wait, for what, and since when.
    fn spin(&mut self, record: &BuildRecord) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let message = match record.state() {
            State::Enqueued => "waiting for a workspace",
            State::InProgress => "running, no output yet",
            State::Finished => return,
        };
        let spinner = ProgressBar::new_spinner().with_message(message);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(TICK);
        self.spinner = Some(spinner);
    }

    fn rest(&mut self) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }
}

impl Drop for Presenter {
    fn drop(&mut self) {
        self.rest();
    }
}

fn stderr(bytes: &[u8]) -> Result<(), Failure> {
    match std::io::stderr().write_all(bytes) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::closed()),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn dropped_line(stream: OutputStream, bytes: u64) -> String {
    let much = if bytes == 0 { "more".to_owned() } else { size(bytes) };
    format!(
        "... {much} of {} is left out from here on; `forebay get ID --output .forebay/log -` has the rest",
        stream.as_str()
    )
}

fn tool_line(tool: &ToolEvent) -> String {
    match tool {
        ToolEvent::WorkspacePrepared { wall_seconds, .. } => {
            format!("workspace prepared in {}", seconds(*wall_seconds))
        }
    }
}
