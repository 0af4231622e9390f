//! Showing events as they arrive: raw output, states on stderr, or JSON lines.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use bus::{BazelEvents, ConsoleChunk, EventContent, EventKind, FarmClock};
use client::{BazelEventLine, Frame, QueuePlace, WatchBody, WatchEvent, WatchKind};
use command_line::{
    failure::Failure,
    live::{self, Live},
    stdout,
};
use model::{BuildRecord, BuildResult, Millis, OutputStream, Phase, ReasonCode, Sequence, State, ToolEvent};

use telemetry::escaped;

use crate::{
    build_status::BuildStatus,
    bytes_text::{about, seconds, size},
    fold::{Folder, Folds},
    job_text::{TaskProgress, preliminary_line, report_line},
    record_text::state_line,
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
    /// The system that folds the output of each attempt.
    pub(crate) folder: Option<Folder>,
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
    live: Live,
    clock: FarmClock,
    /// What the build does now, for the live block.
    status: Option<BuildStatus>,
    /// Whether the cursor of the terminal is inside a line of output, which the live block must not overwrite.
    cursor_mid_line: bool,
    /// When output was printed last.
    printed_at: Option<Instant>,
    folds: Option<Folds>,
    /// Progress of a job's tasks, if only a summary of them is shown.
    tasks: Option<TaskProgress>,
}

/// Time after output until the live block is drawn again.
const QUIET: Duration = Duration::from_millis(200);

impl Presenter {
    /// Creates a presenter for the selected events.
    pub(crate) fn new(Shown { kinds, json, positions, folder }: Shown<'_>, clock: FarmClock) -> Self {
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
        let folds = folder.filter(|_| !json && kinds.contains(&EventKind::Console.into())).map(Folds::new);
        Self {
            kinds,
            form,
            unread: false,
            result: None,
            mid_line: false,
            live: if json { Live::off() } else { Live::on_stderr() },
            clock,
            status: None,
            cursor_mid_line: false,
            printed_at: None,
            folds,
            tasks,
        }
    }

    /// Whether a live block is shown, which [`Self::tick`] draws.
    pub(crate) fn is_live(&self) -> bool {
        self.live.is_on() && self.status.is_some()
    }

    /// Draws the live block, unless output is being printed.
    pub(crate) fn tick(&self) {
        let is_quiet = self.printed_at.is_none_or(|at| at.elapsed() >= QUIET);
        let Some(status) = self.status.as_ref().filter(|_| is_quiet && !self.cursor_mid_line) else { return };
        let now = self.clock.now();
        let mut lines = vec![status.line(now)];
        lines.extend(self.tasks.iter().flat_map(|tasks| tasks.live_lines(now, status.since())));
        self.live.draw(&lines);
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
                let line = Tone::of(record).stderr(&escaped(&self.state_line(record)));
                self.end_fold()?;
                self.state(&self.placed(event.position, &line));
                self.begin_fold(record)?;
                self.status = BuildStatus::of(record);
                if let Some(tasks) = &mut self.tasks {
                    // Those of an attempt that was lost run no more.
                    *tasks = TaskProgress::default();
                }
                self.tick();
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
        match &mut self.status {
            Some(status) if self.live.is_on() => status.detail(line),
            Some(_) | None => self.state(&line),
        }
    }

    /// Adds the position of an event to its line, if requested.
    fn placed(&self, position: Sequence, line: &str) -> String {
        match self.form {
            Form::TextWithPositions => format!("[{position}] {line}"),
            Form::Json | Form::Text => line.to_owned(),
        }
    }

    /// The line of a state. Failures of tasks that were shown are only counted there.
    fn state_line(&self, record: &BuildRecord) -> String {
        let mut record = record.clone();
        if let Phase::Finished { result, .. } = &mut record.phase
            && self.tasks.as_ref().is_some_and(TaskProgress::has_failures)
            && let (Some(reason), Some(job)) = (&mut result.reason, &result.job)
            && reason.code == ReasonCode::TasksFailed
        {
            reason.message = format!("{} of {} tasks failed", job.failed, job.tasks);
        }
        state_line(&record)
    }

    /// Shows tool events in short form: the preparation of the workspace, the skipped tasks of a job, and on a terminal
    /// the task counts in the last line.
    fn progress(&mut self, tool: &ToolEvent) {
        if let ToolEvent::WorkspacePreparing { .. } = tool {
            let line = tool_line(tool);
            match &mut self.status {
                Some(status) if self.live.is_on() => status.detail(line),
                Some(_) | None => self.state(&line),
            }
            return;
        }
        if let (ToolEvent::WorkspacePrepared { wall_seconds, .. }, Some(status)) = (tool, &mut self.status) {
            status.prepared(*wall_seconds);
        }
        let (Some(progress), ToolEvent::TasksEnded { attempt, ended, tasks, reports, running, preliminary }) =
            (&mut self.tasks, tool)
        else {
            return;
        };
        let mut lines = progress.note(*attempt, (*ended, *tasks), reports);
        lines.splice(0..0, preliminary.iter().map(preliminary_line));
        progress.note_running(running.as_ref());
        if progress.is_due() && !self.live.is_on() {
            lines.push(progress.counts());
        }
        if !self.live.is_on() {
            lines.extend(progress.image_line());
        }
        if let Some(status) = &mut self.status {
            status.runs();
        }
        for line in lines {
            self.state(&escaped(&line));
        }
    }

    fn state(&mut self, line: &str) {
        live::clear();
        self.cursor_mid_line = false;
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
        live::clear();
        self.printed_at = Some(Instant::now());
        if let Some(status) = &mut self.status {
            status.runs();
        }
        if let Some(last) = data.last() {
            // If stdout or stderr is not a terminal, the output must stay unchanged.
            self.mid_line =
                *last != b'\n' && std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
            let is_shown = match stream {
                OutputStream::Stdout => {
                    if let Some(folds) = &mut self.folds {
                        folds.note_output(*last);
                    }
                    std::io::stdout().is_terminal()
                }
                OutputStream::Stderr => true,
            };
            if is_shown {
                self.cursor_mid_line = *last != b'\n';
            }
        }
        match stream {
            OutputStream::Stdout => return self.print(|| stdout::bytes(data)),
            OutputStream::Stderr => stderr(data),
        }
        Ok(())
    }

    /// Marks where the output of an attempt begins, and how the build failed.
    fn begin_fold(&mut self, record: &BuildRecord) -> Result<(), Failure> {
        let Some(folds) = &mut self.folds else { return Ok(()) };
        let mark = match record.state() {
            State::Enqueued => None,
            State::InProgress => Some(folds.begin(record, self.clock.now())),
            State::Finished => folds.failure(record),
        };
        mark.map_or(Ok(()), |mark| self.print(|| stdout::line(&mark)))
    }

    fn end_fold(&mut self) -> Result<(), Failure> {
        let now = self.clock.now();
        let mark = self.folds.as_mut().and_then(|folds| folds.end(now));
        mark.map_or(Ok(()), |mark| self.print(|| stdout::line(&mark)))
    }
}

impl Drop for Presenter {
    fn drop(&mut self) {
        // What the job of the system prints next does not belong to the build. A failure was reported already.
        let _ = self.end_fold();
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
        ToolEvent::TasksEnded { ended, tasks, reports, running, preliminary, .. } => {
            let running = running.as_ref().map(|running| format!(", {} running", running.count));
            let colon = if reports.is_empty() && preliminary.is_empty() { "" } else { ":" };
            let lines = preliminary.iter().map(preliminary_line).chain(reports.iter().map(report_line));
            let lines = lines.map(|line| format!("\n  {}", escaped(&line)));
            let lines = lines.collect::<String>();
            format!("{ended} of {tasks} tasks ended{}{colon}{lines}", running.unwrap_or_default())
        }
    }
}
