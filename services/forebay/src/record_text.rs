//! Build records as text.

use std::fmt::Write as _;

use model::{
    Build, BuildRecord, BuildView, Context, Invocation, JobResult, Millis, Outcome, Phase, Reason, Retry,
    ServiceRequest, TaskId, WorkspaceKind,
};

use telemetry::escaped;

use crate::{
    bytes_text::{instant, seconds, size, span},
    job_text::{counts_text, report_line},
};

/// The state change of a lifecycle message in one line.
pub(crate) fn state_line(record: &BuildRecord) -> String {
    let attempts = format!("attempt {} of {}", record.attempt, record.build.max_attempts);
    match &record.phase {
        Phase::Enqueued => match &record.queue.retry {
            None => format!("ENQUEUED in group {}, priority {}", record.build.group, record.build.priority),
            Some(retry) => format!("ENQUEUED again, {attempts}: {}", retry_text(retry)),
        },
        Phase::InProgress { invocation } => format!("IN_PROGRESS in {}, {attempts}", place(invocation)),
        Phase::Finished { result, .. } => {
            let mut line = format!("FINISHED {}", outcome_text(result.outcome));
            if result.wall_seconds > 0.0 {
                // Writing to a String cannot fail, here and below.
                let _ = write!(line, " in {}", seconds(result.wall_seconds));
            }
            if let Some(reason) = &result.reason {
                let _ = write!(line, ": {}", reason_text(reason));
            }
            if let Some(job) = &result.job {
                let _ = write!(line, "; {}", counts_text(job));
            }
            if let Some(logs) = service_logs(record) {
                let _ = write!(line, "; logs of its services: {logs}");
            }
            line
        }
    }
}

/// The whole record, one fact per line, with escaped control characters.
pub(crate) fn full_text(view: &BuildView, now: Millis) -> String {
    let record = &view.record;
    let build = &record.build;
    let mut text = Facts::default();
    text.add("build", build.key());
    let attempts = format!("attempt {} of {}", record.attempt, build.max_attempts);
    text.add("state", format!("{} ({attempts}, position {})", view.state.as_str(), view.sequence));
    why(&mut text, record, now);
    text.add("priority", build.priority);
    match &build.job {
        Some(job) => text.add("job", format!("{} tasks, {}", job.tasks, job.digest)),
        None => text.add("command", command_text(&build.command)),
    }
    text.add("context", context_text(&build.context));
    for (name, value) in &build.env {
        text.add("env", format!("{name}={value}"));
    }
    if !build.secrets.is_empty() {
        let secrets: Vec<String> = build.secrets.iter().map(ToString::to_string).collect();
        text.add("secrets", secrets.join(" "));
    }
    for service in &build.services {
        text.add("service", service_text(service));
    }
    if !build.requirements.is_empty() {
        text.add("requires", &build.requirements);
    }
    if let Some(submitter) = &build.submitter {
        text.add("submitter", submitter);
    }
    for (name, value) in &build.labels {
        text.add("label", format!("{name}={value}"));
    }
    text.add("submitted", instant(build.submitted_at_ms, now));
    times(&mut text, record, now);
    result(&mut text, record);
    text.0
}

#[derive(Default)]
struct Facts(String);

impl Facts {
    fn add(&mut self, name: &str, value: impl std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{name:<10} {}", escaped(&value.to_string()));
    }
}

/// Adds the reason for the state of the build.
fn why(text: &mut Facts, record: &BuildRecord, now: Millis) {
    match &record.phase {
        Phase::Enqueued => {
            text.add("waiting", format!("{} for a workspace", span(record.queue.enqueued_at_ms, now)));
            if let Some(retry) = &record.queue.retry {
                text.add("again", retry_text(retry));
            }
        }
        Phase::InProgress { invocation } => {
            text.add("running", format!("{} in {}", span(invocation.started_at_ms, now), place(invocation)));
        }
        Phase::Finished { result, .. } => {
            text.add("outcome", outcome_text(result.outcome));
            if let Some(reason) = &result.reason {
                text.add("why", reason_text(reason));
            }
            if let Some(logs) = service_logs(record) {
                text.add("logs", logs);
            }
        }
    }
}

/// A service by its name, and what it runs.
fn service_text(service: &ServiceRequest) -> String {
    let image = service.image.as_ref().map(|image| format!(" in {image}"));
    let environment = service.environment.as_ref().map(|name| format!(" in the environment {name}"));
    let command = (!service.command.is_empty()).then(|| format!(": {}", command_text(&service.command)));
    [Some(service.name.to_string()), command, image, environment].into_iter().flatten().collect()
}

/// Where the logs of the services are of a build that did not succeed.
fn service_logs(record: &BuildRecord) -> Option<String> {
    let result = record.result().filter(|result| result.outcome != Outcome::Succeeded)?;
    let is_log = |path: &str| !record.build.services.is_empty() && path.starts_with(".forebay/services/");
    let paths: Vec<&str> = result.outputs.iter().map(|it| it.path.as_str()).filter(|it| is_log(it)).collect();
    let first = paths.first()?;
    Some(format!("{} (forebay get {} --output {first} -)", paths.join(", "), record.build.key()))
}

fn times(text: &mut Facts, record: &BuildRecord, now: Millis) {
    let (run, ended) = match &record.phase {
        Phase::Enqueued => return,
        Phase::InProgress { invocation } => (Some(invocation), None),
        Phase::Finished { invocation, .. } => (invocation.as_ref(), Some(record.at_ms)),
    };
    if let Some(id) = record.invocation_id() {
        text.add("invocation", id);
    }
    if let Some(run) = run {
        text.add("queued", span(record.queue.enqueued_at_ms, run.started_at_ms));
        text.add("started", format!("{} in {}", instant(run.started_at_ms, now), place(run)));
    }
    if let Some(ended) = ended {
        text.add("finished", instant(ended, now));
    }
}

fn result(text: &mut Facts, record: &BuildRecord) {
    let Some(result) = record.result() else { return };
    if let Some(code) = result.exit_code {
        text.add("exit code", code);
    }
    if let Some(signal) = result.signal {
        text.add("signal", signal);
    }
    if record.invocation().is_some() {
        let used =
            (seconds(result.wall_seconds), seconds(result.cpu_seconds), size(result.peak_memory_bytes));
        if let Some(preparation) = result.preparation_seconds {
            text.add("prepared", format!("in {}", seconds(preparation)));
        }
        text.add("used", format!("{} of time, {} of CPU, {} of memory at its peak", used.0, used.1, used.2));
        let log = &result.log;
        let mut line = format!("{} of stdout, {} of stderr", size(log.stdout_bytes), size(log.stderr_bytes));
        if log.dropped_bytes > 0 {
            // Writing to a String cannot fail.
            let _ = write!(line, ", {} beyond the limit not kept", size(log.dropped_bytes));
        }
        text.add("log", line);
    }
    if let Some(job) = &result.job {
        tasks(text, job);
    }
    for glob in &result.outputs_missing {
        text.add("missing", format!("no file matches the output {glob}"));
    }
    for output in &result.outputs_not_kept {
        text.add("not kept", format!("{}: {}", output.path, output.reason));
    }
    match result.outputs_not_kept_count.saturating_sub(result.outputs_not_kept.len() as u64) {
        0 => {}
        more => text.add("not kept", format!("and {more} more")),
    }
    for file in result.outputs.iter().chain(&result.log.overflow) {
        let mark = if file.executable { " executable" } else { "" };
        text.add("output", format!("{}  {}{mark}  {}", file.path, size(file.size_bytes), file.digest));
    }
}

fn tasks(text: &mut Facts, job: &JobResult) {
    text.add("tasks", counts_text(job));
    for report in &job.failures {
        text.add("failed", report_line(report));
    }
    let named = |listed: usize, all: u64| all.saturating_sub(listed as u64);
    match named(job.failures.len(), job.failed) {
        0 => {}
        more => text.add("failed", format!("and {more} more")),
    }
    if !job.skipped_tasks.is_empty() {
        let shown: Vec<&str> = job.skipped_tasks.iter().map(TaskId::as_str).collect();
        let more = match named(shown.len(), job.skipped) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text.add("skipped", format!("{}{more}", shown.join(" ")));
    }
    if let Some(report) = &job.report {
        text.add("report", format!("{}  {}  {}", report.path, size(report.size_bytes), report.digest));
    }
}

fn place(run: &Invocation) -> String {
    let kind = match run.workspace_kind {
        None => "",
        Some(WorkspaceKind::Exact) => ", left by the same build",
        Some(WorkspaceKind::Prefix) => ", left by a similar build",
        Some(WorkspaceKind::New) => ", new",
    };
    format!("workspace {}/{}{kind}", run.worker, run.workspace)
}

/// The outcome as lower-case words.
pub(crate) fn outcome_text(outcome: Outcome) -> String {
    outcome.as_str().replace('_', " ")
}

/// The reason of a requeue, with the worker unless the reason names it.
fn retry_text(retry: &Retry) -> String {
    let reason = reason_text(&retry.reason);
    let worker = retry.worker.as_str();
    if reason.contains(worker) { reason } else { format!("worker {worker}: {reason}") }
}

/// The message of a reason, followed by its code in parentheses.
fn reason_text(reason: &Reason) -> String {
    format!("{} ({})", reason.message, reason.code)
}

/// The command of the build, or the size of its job.
pub(crate) fn work_text(build: &Build) -> String {
    match &build.job {
        Some(job) => format!("job of {} tasks", job.tasks),
        None => command_text(&build.command),
    }
}

/// The command, quoted for a shell.
fn command_text(command: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
    let quote = |word: &String| match word.as_str() {
        text if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        text => format!("'{}'", text.replace('\'', r"'\''")),
    };
    command.iter().map(quote).collect::<Vec<_>>().join(" ")
}

fn context_text(context: &Context) -> String {
    match context {
        Context::Empty => "an empty folder".to_owned(),
        Context::Directory { path, .. } => format!("a copy of {path}"),
        Context::Tree { source: Some(source), .. } => format!("a copy of {source}"),
        Context::Tree { digest, source: None } => format!("folder {digest} of the store"),
        Context::Git { url, revision, patch: None } => format!("{url} at {revision}"),
        Context::Git { url, revision, patch: Some(_) } => format!("{url} at {revision} with a patch"),
        Context::Archive { location, .. } => format!("archive {location}"),
    }
}

#[cfg(test)]
#[path = "record_text_tests.rs"]
mod tests;
