//! Showing events as they come: raw output, states on stderr, or JSON lines.

use std::{
    borrow::Cow,
    io::{ErrorKind, IsTerminal as _, Write as _},
    time::Duration,
};

use bus::{ConsoleChunk, EventKind};
use client::{QueuePlace, WatchBody, WatchEvent, WatchKind};
use indicatif::{ProgressBar, ProgressStyle};
use model::{BuildRecord, Millis, Outcome, OutputStream, State, ToolEvent};

use crate::{
    bytes_text::{about, seconds, size},
    failure::Failure,
    job_text::{TaskProgress, report_line},
    record_text::state_line,
    stdout,
};

/// Shows events.
pub(crate) struct Presenter {
    kinds: Vec<WatchKind>,
    json: bool,
    outcome: Option<Outcome>,
    /// The output's last line has no end yet.
    mid_line: bool,
    spinner: Option<ProgressBar>,
    /// Of a job's tasks, where only what matters of them is shown.
    tasks: Option<TaskProgress>,
}

const TICK: Duration = Duration::from_millis(120);

impl Presenter {
    /// A presenter of `kinds`. None: states, output, the place in the queue and how a job gets on; what else the worker does
    /// around them must be asked for.
    pub(crate) fn new(kinds: &[WatchKind], json: bool) -> Self {
        let tasks = (kinds.is_empty() && !json).then(TaskProgress::default);
        let kinds = match kinds {
            [] if json => WatchKind::ALL.to_vec(),
            [] => vec![EventKind::Lifecycle.into(), EventKind::Console.into(), WatchKind::Queue],
            some => some.to_vec(),
        };
        Self { kinds, json, outcome: None, mid_line: false, spinner: None, tasks }
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
        if let WatchBody::Tool(tool) = &event.body
            && self.tasks.is_some()
        {
            return self.progress(tool);
        }
        if !self.kinds.contains(&event.kind().into()) {
            return Ok(());
        }
        if self.json {
            return stdout::json(&event.to_json());
        }
        match &event.body {
            WatchBody::Lifecycle(record) => {
                self.state(&format!("[{}] {}", event.position, state_line(record)))?;
                self.wait_for(record);
            }
            WatchBody::Console(chunk) => self.console(chunk)?,
            WatchBody::Tool(tool) => self.state(&format!("[{}] {}", event.position, tool_line(tool)))?,
        }
        Ok(())
    }

    /// Shows where the build stands in the queue: on a terminal in the place of what was shown before.
    pub(crate) fn queue(&mut self, place: &QueuePlace, now: Millis) -> Result<(), Failure> {
        if !self.kinds.contains(&WatchKind::Queue) {
            return Ok(());
        }
        if self.json {
            return stdout::json(&place.to_json());
        }
        let line = queue_line(place, now);
        match &self.spinner {
            Some(spinner) => {
                spinner.set_message(line);
                Ok(())
            }
            None => self.state(&line),
        }
    }

    /// Shows how a job gets on: its failures, and on a terminal the counts in the last line.
    fn progress(&mut self, tool: &ToolEvent) -> Result<(), Failure> {
        let (Some(progress), ToolEvent::TasksEnded { attempt, ended, tasks, reports }) =
            (&mut self.tasks, tool)
        else {
            return Ok(());
        };
        let mut lines = progress.note(*attempt, (*ended, *tasks), reports);
        let counts = progress.counts();
        if progress.is_due() && !std::io::stderr().is_terminal() {
            lines.push(counts.clone());
        }
        for line in lines {
            self.state(&line)?;
        }
        self.spin(counts);
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
    fn wait_for(&mut self, record: &BuildRecord) {
        match record.state() {
            State::Enqueued => self.spin("waiting for a workspace"),
            State::InProgress => self.spin("running, no output yet"),
            State::Finished => {}
        }
    }

    /// On a terminal, a last line that moves.
    fn spin(&mut self, message: impl Into<Cow<'static, str>>) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        if let Some(spinner) = &self.spinner {
            spinner.set_message(message);
            return;
        }
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

fn queue_line(place: &QueuePlace, now: Millis) -> String {
    let starts = match place.expected_start_ms {
        Some(at) if at <= now => "is about to start".to_owned(),
        Some(at) => format!("starts in about {}", about(at.since(now))),
        None => place.reason.clone(),
    };
    format!("place {} of {} in the queue, {starts}", place.place, place.queued)
}

fn tool_line(tool: &ToolEvent) -> String {
    match tool {
        ToolEvent::WorkspacePrepared { wall_seconds, .. } => {
            format!("workspace prepared in {}", seconds(*wall_seconds))
        }
        ToolEvent::TasksEnded { ended, tasks, reports, .. } => {
            let lines = reports.iter().map(|report| format!("\n  {}", report_line(report)));
            format!("{ended} of {tasks} tasks ended:{}", lines.collect::<String>())
        }
    }
}
