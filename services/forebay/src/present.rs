//! Showing events as they arrive: raw output, states on stderr, or JSON lines.

use std::{
    borrow::Cow,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use bus::{BazelEvents, ConsoleChunk, EventContent, EventKind};
use client::{BazelEventLine, Frame, QueuePlace, WatchBody, WatchEvent, WatchKind};
use indicatif::{ProgressBar, ProgressStyle};
use invariant::impossible;
use model::{BuildRecord, BuildResult, Context, Millis, OutputStream, Sequence, State, ToolEvent};

use telemetry::escaped;

use crate::{
    bytes_text::{about, seconds, size},
    failure::Failure,
    job_text::{TaskProgress, report_line},
    record_text::state_line,
    stdout,
    style::Tone,
};

/// Selects the events of a build that are shown, and their format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown<'a> {
    /// If empty: states, output, the queue position and the progress of a job. Other events of the worker are
    /// shown only on request.
    pub(crate) kinds: &'a [WatchKind],
    /// Show events as JSON lines.
    pub(crate) json: bool,
    /// Show the position of each event.
    pub(crate) positions: bool,
}

/// Output format of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Text,
    TextWithPositions,
}

/// Shows the events of one build.
pub(crate) struct Presenter {
    kinds: Vec<WatchKind>,
    form: Form,
    /// Whether the reader of stdout has closed it. The build is still followed, since its end determines the exit code.
    unread: bool,
    result: Option<BuildResult>,
    /// Whether the last line of the output is incomplete.
    mid_line: bool,
    spinner: Option<ProgressBar>,
    /// Progress of a job's tasks, if only a summary of them is shown.
    tasks: Option<TaskProgress>,
}

const RUNNING: &str = "running, no output yet";
const TICK: Duration = Duration::from_millis(120);

impl Presenter {
    /// Creates a presenter for the selected events.
    pub(crate) fn new(Shown { kinds, json, positions }: Shown<'_>) -> Self {
        let tasks = (kinds.is_empty() && !json).then(TaskProgress::default);
        let form = match (json, positions) {
            (true, _) => Form::Json,
            (false, true) => Form::TextWithPositions,
            (false, false) => Form::Text,
        };
        let kinds = match kinds {
            [] if json => WatchKind::ALL.to_vec(),
            [] => vec![EventKind::Lifecycle.into(), EventKind::Console.into(), WatchKind::Queue],
            some => some.to_vec(),
        };
        Self { kinds, form, unread: false, result: None, mid_line: false, spinner: None, tasks }
    }

    /// Result of the build, if its end was among the events.
    pub(crate) fn take_result(&mut self) -> Option<BuildResult> {
        self.result.take()
    }

    /// Writes to stdout until its reader closes it.
    fn print(&mut self, write: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        if self.unread {
            return Ok(());
        }
        match write() {
            Err(failure) if failure.is_closed() => {
                self.unread = true;
                Ok(())
            }
            done => done,
        }
    }

    /// Whether the output of an event is shown.
    pub(crate) fn shows(&self, event: &WatchEvent) -> bool {
        self.kinds.contains(&event.kind().into())
    }

    /// Shows one event if it is selected.
    pub(crate) fn show(&mut self, event: &WatchEvent) -> Result<(), Failure> {
        if let WatchBody::Lifecycle(record) = &event.body {
            self.result = record.result().cloned();
        }
        if let WatchBody::Tool(tool) = &event.body
            && self.tasks.is_some()
        {
            self.progress(tool);
            return Ok(());
        }
        if !self.shows(event) {
            return Ok(());
        }
        if self.form == Form::Json {
            return self.print(|| stdout::json(&event.to_json()));
        }
        match &event.body {
            WatchBody::Lifecycle(record) => {
                let line = Tone::of(record).stderr(&escaped(&state_line(record)));
                self.state(&self.placed(event.position, &line));
                self.wait_for(record);
            }
            WatchBody::Console(chunk) => self.console(chunk)?,
            WatchBody::Frame(frame) => self.frame(frame)?,
            WatchBody::Tool(tool) => {
                self.state(&self.placed(event.position, &tool_line(tool)));
            }
            WatchBody::Bazel(events) => {
                for line in bazel_lines(events) {
                    self.state(&self.placed(event.position, &escaped(&line)));
                }
            }
        }
        Ok(())
    }

    /// Shows the queue position of the build; on a terminal it replaces the previous one.
    pub(crate) fn queue(&mut self, place: &QueuePlace, now: Millis) -> Result<(), Failure> {
        if !self.kinds.contains(&WatchKind::Queue) {
            return Ok(());
        }
        if self.form == Form::Json {
            return self.print(|| stdout::json(&place.to_json()));
        }
        self.waiting(escaped(&queue_line(place, now)));
        Ok(())
    }

    /// Shows that the queue position of the build is unknown, and why.
    pub(crate) fn unplaced(&mut self, why: &str) {
        if self.form != Form::Json && self.kinds.contains(&WatchKind::Queue) {
            self.waiting(escaped(&format!("waiting; queue position unknown: {why}")));
        }
    }

    /// Shows a line about the wait; on a terminal it replaces the previous one.
    fn waiting(&mut self, line: String) {
        match &self.spinner {
            Some(spinner) => spinner.set_message(line),
            None => self.state(&line),
        }
    }

    /// Adds the position of an event to its line, if requested.
    fn placed(&self, position: Sequence, line: &str) -> String {
        match self.form {
            Form::TextWithPositions => format!("[{position}] {line}"),
            Form::Json | Form::Text => line.to_owned(),
        }
    }

    /// Shows tool events in short form: the preparation of the workspace, the failed tasks of a job, and on a terminal
    /// the task counts in the last line.
    fn progress(&mut self, tool: &ToolEvent) {
        if let ToolEvent::WorkspacePreparing { .. } = tool {
            let line = tool_line(tool);
            if std::io::stderr().is_terminal() {
                self.spin(line.clone());
            } else {
                self.state(&line);
            }
            return;
        }
        if let (ToolEvent::WorkspacePrepared { .. }, Some(spinner)) = (tool, &self.spinner) {
            spinner.set_message(RUNNING);
        }
        let (Some(progress), ToolEvent::TasksEnded { attempt, ended, tasks, reports, .. }) =
            (&mut self.tasks, tool)
        else {
            return;
        };
        let mut lines = progress.note(*attempt, (*ended, *tasks), reports);
        let counts = progress.counts();
        if progress.is_due() && !std::io::stderr().is_terminal() {
            lines.push(counts.clone());
        }
        for line in lines {
            self.state(&escaped(&line));
        }
        self.spin(counts);
    }

    fn state(&mut self, line: &str) {
        self.rest();
        let start = if std::mem::take(&mut self.mid_line) { "\n" } else { "" };
        stderr(format!("{start}{line}\n").as_bytes());
    }

    fn console(&mut self, chunk: &ConsoleChunk) -> Result<(), Failure> {
        if let Some(dropped) = chunk.dropped {
            self.state(&dropped_line(chunk.stream, dropped));
            return Ok(());
        }
        self.output(chunk.stream, &chunk.data)
    }

    fn frame(&mut self, frame: &Frame) -> Result<(), Failure> {
        if let Some(line) = frame.lost_line() {
            self.state(&format!("... {}", escaped(&line)));
        }
        frame.parts().iter().try_for_each(|part| self.output(part.stream, part.data))
    }

    fn output(&mut self, stream: OutputStream, data: &[u8]) -> Result<(), Failure> {
        self.rest();
        if let Some(last) = data.last() {
            // If stdout or stderr is not a terminal, the output must stay unchanged.
            self.mid_line =
                *last != b'\n' && std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        }
        match stream {
            OutputStream::Stdout => return self.print(|| stdout::bytes(data)),
            OutputStream::Stderr => stderr(data),
        }
        Ok(())
    }

    /// On a terminal, shows the current phase of the build and its duration.
    fn wait_for(&mut self, record: &BuildRecord) {
        match record.state() {
            State::Enqueued => self.spin("waiting for a workspace"),
            State::InProgress if record.build.context == Context::Empty => self.spin(RUNNING),
            State::InProgress => self.spin("preparing the workspace"),
            State::Finished => {}
        }
    }

    /// On a terminal, shows a spinner in the last line.
    fn spin(&mut self, message: impl Into<Cow<'static, str>>) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        if let Some(spinner) = &self.spinner {
            spinner.set_message(message);
            return;
        }
        let spinner = ProgressBar::new_spinner().with_message(message);
        match ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            Ok(style) => spinner.set_style(style),
            Err(error) => {
                impossible!("the template of the spinner is invalid: {error}");
            }
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

fn stderr(bytes: &[u8]) {
    // A closed stderr is not a failure.
    let _ = std::io::stderr().write_all(bytes);
}

pub(crate) fn dropped_line(stream: OutputStream, bytes: u64) -> String {
    let stream = stream.as_str();
    if bytes == 0 {
        return format!("... more of {stream} omitted from here on: not kept beyond log_bytes_max");
    }
    format!("... {bytes} bytes of {stream} are missing: the store did not take them in time")
}

fn queue_line(place: &QueuePlace, now: Millis) -> String {
    let later = if place.late { "later than expected, " } else { "" };
    let starts = match place.expected_start_ms {
        Some(at) if at <= now => format!("{later}about to start"),
        Some(at) => format!("{later}starts in about {}", about(at.since(now))),
        None => place.reason.clone(),
    };
    format!("position {} of {} in the queue, {starts}", place.place, place.queued)
}

/// One line for each build event that says how a target, a test or the call ended.
fn bazel_lines(found: &BazelEvents) -> Vec<String> {
    match &found.content {
        EventContent::Blob(blob) => {
            vec![format!("bazel: events {} to {} are in blob {blob}", found.first, found.last)]
        }
        EventContent::Inline(packed) => {
            let lines = BazelEventLine::all(packed).into_iter().filter_map(|line| {
                let about = line.label.unwrap_or_else(|| line.event.clone());
                Some(format!("bazel: {about} {}", line.status?))
            });
            lines.collect()
        }
    }
}

fn tool_line(tool: &ToolEvent) -> String {
    match tool {
        ToolEvent::WorkspacePreparing { what, files, files_total, bytes, .. } => {
            let of = if *files_total == 0 { String::new() } else { format!(" of {files_total}") };
            format!("{}: {files}{of} files and folders, {} copied", escaped(what), size(*bytes))
        }
        ToolEvent::WorkspacePrepared { wall_seconds, .. } => {
            format!("workspace prepared in {}", seconds(*wall_seconds))
        }
        ToolEvent::TasksEnded { ended, tasks, reports, .. } => {
            let lines = reports.iter().map(|report| format!("\n  {}", escaped(&report_line(report))));
            format!("{ended} of {tasks} tasks ended:{}", lines.collect::<String>())
        }
    }
}
