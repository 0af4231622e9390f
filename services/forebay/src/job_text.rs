//! Results and progress of a job's tasks as text.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

use model::{
    Attempt, ImageFetch, JobResult, Millis, RunningTask, RunningTasks, TaskReport, TaskStatus, TimeSummary,
};
use telemetry::escaped;

use crate::bytes_text::{about, age, seconds, size};

/// Maximum number of progress lines per job if stderr is not a terminal.
const STEPS: u64 = 10;
/// Time between two lines about the fetch of images if stderr is not a terminal.
const IMAGE_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of running tasks that are shown.
const RUNNING_MAX: usize = 6;

/// Formats a report, e.g. `task link failed in 0.120 s: exit code 1`.
pub(crate) fn report_line(report: &TaskReport) -> String {
    let mut line = format!("task {} {}", report.id, status_text(report.status));
    if let Some(score) = report.score {
        // Writing to a String cannot fail, here and below.
        let _ = write!(line, " with score {}", score_text(score));
    }
    if report.cached {
        line.push_str(" from the cache");
    } else if let Some(measured) = &report.measurement {
        let runs = if measured.cpu.n == 1 { "1 run".to_owned() } else { format!("{} runs", measured.cpu.n) };
        let _ = write!(line, " in {runs}, {}", times_text(&measured.cpu));
        if measured.disturbed > 0 {
            let _ = write!(line, ", {} disturbed", measured.disturbed);
        }
    } else if let Some(wall) = report.wall_ms {
        let _ = write!(line, " in {}", seconds(wall as f64 / 1000.0));
    }
    let cause = match (&report.reason, report.exit_code, &report.because_of) {
        (Some(reason), _, _) => format!(": {reason}"),
        (None, Some(code), _) if code != 0 => format!(": exit code {code}"),
        (None, _, Some(task)) => format!(": task {task} failed"),
        (None, _, None) => String::new(),
    };
    line + &cause + &service_logs(report)
}

/// Where the logs of the services of a task are that did not succeed.
fn service_logs(report: &TaskReport) -> String {
    if report.status == TaskStatus::Succeeded || report.service_logs.is_empty() {
        return String::new();
    }
    let named = report.service_logs.iter().map(|(name, digest)| format!("{name} (forebay cas get {digest})"));
    format!("; logs of its services: {}", named.collect::<Vec<_>>().join(", "))
}

/// Formats how much of an image was fetched.
pub(crate) fn image_text(fetch: ImageFetch) -> String {
    format!("fetching the image, {} of {}", size(fetch.fetched_bytes), size(fetch.bytes))
}

/// Formats the report of a measured task after its first run, e.g. `task test succeeded with score 1 in 1 run, 12.034 ms of
/// processor time (preliminary, may change)`.
pub(crate) fn preliminary_line(report: &TaskReport) -> String {
    format!("{} (preliminary, may change)", report_line(report))
}

/// Formats CPU times, e.g. `12.034 ms of processor time (11.9 to 12.2)`.
fn times_text(times: &TimeSummary) -> String {
    let ms = |us: u64| us as f64 / 1000.0;
    let median = format!("{} ms of processor time", ms(times.median_us));
    if times.n == 1 { median } else { format!("{median} ({} to {})", ms(times.low_us), ms(times.high_us)) }
}

/// Formats the counts, e.g. `120 tasks: 117 succeeded (100 from the cache), 1 failed, 2 skipped, score 0.5`.
pub(crate) fn counts_text(job: &JobResult) -> String {
    let mut text = format!("{} tasks: {} succeeded", job.tasks, job.succeeded);
    if job.cached > 0 {
        // Writing to a String cannot fail, here and below.
        let _ = write!(text, " ({} from the cache)", job.cached);
    }
    for (count, what) in [(job.failed, "failed"), (job.skipped, "skipped")] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if let Some(score) = job.score {
        let _ = write!(text, ", score {}", score_text(score));
    }
    text
}

/// Formats a score with at most three decimal places.
fn score_text(score: f64) -> String {
    let text = format!("{score:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn status_text(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Succeeded => "succeeded",
        TaskStatus::Failed => "failed",
        TaskStatus::OverLimit => "exceeded a limit",
        TaskStatus::FarmFailed => "could not be run",
        TaskStatus::Skipped => "skipped",
    }
}

/// Progress of a job's tasks, for users that follow it.
#[derive(Debug, Default)]
pub(crate) struct TaskProgress {
    attempt: Option<Attempt>,
    ended: u64,
    tasks: u64,
    failed: u64,
    skipped: u64,
    running: Option<RunningTasks>,
    /// Number of progress steps reported so far, at most [`STEPS`].
    told: u64,
    /// When a line about the fetch of images was shown last.
    image_shown_at: Option<Instant>,
}

impl TaskProgress {
    /// Records tasks that ended. Returns the lines to show: each result of a measured task, and the number of tasks that each failure
    /// caused to be skipped. The failure itself is in the console output of the build, before the output of the task.
    pub(crate) fn note(
        &mut self,
        attempt: Attempt,
        (ended, tasks): (u64, u64),
        reports: &[TaskReport],
    ) -> Vec<String> {
        if self.attempt != Some(attempt) {
            *self = Self { attempt: Some(attempt), ..Self::default() };
        }
        (self.ended, self.tasks) = (ended, tasks);
        let mut lines = Vec::new();
        let mut skipped: BTreeMap<&str, u64> = BTreeMap::new();
        for report in reports {
            match report.status {
                // It replaces the preliminary result.
                TaskStatus::Succeeded if report.measurement.is_some() => lines.push(report_line(report)),
                TaskStatus::Succeeded => {}
                TaskStatus::Failed | TaskStatus::OverLimit | TaskStatus::FarmFailed => {
                    self.failed += 1;
                }
                TaskStatus::Skipped => {
                    self.skipped += 1;
                    let because_of = report.because_of.as_ref().map_or("", |task| task.as_str());
                    *skipped.entry(because_of).or_default() += 1;
                }
            }
        }
        let line = |(because_of, count): (&str, u64)| {
            let tasks = if count == 1 { "1 task".to_owned() } else { format!("{count} tasks") };
            if because_of.is_empty() {
                format!("{tasks} skipped")
            } else {
                format!("{tasks} skipped because {because_of} failed")
            }
        };
        lines.extend(skipped.into_iter().map(line));
        lines
    }

    /// Whether the tasks that ended so far have failures, which were shown.
    pub(crate) fn has_failures(&self) -> bool {
        self.failed > 0
    }

    /// Formats the counts, e.g. `37 of 120 tasks ended, 1 failed, 3 skipped`.
    pub(crate) fn counts(&self) -> String {
        let mut text = format!("{} of {} tasks ended", self.ended, self.tasks);
        for (count, what) in [(self.failed, "failed"), (self.skipped, "skipped")] {
            if count > 0 {
                // Writing to a String cannot fail.
                let _ = write!(text, ", {count} {what}");
            }
        }
        text
    }

    /// Records what runs, if an event says so.
    pub(crate) fn note_running(&mut self, running: Option<&RunningTasks>) {
        if let Some(running) = running {
            self.running = Some(running.clone());
        }
    }

    /// The task whose image is being fetched, and how much of it was, if it is time for another line about that.
    pub(crate) fn image_line(&mut self) -> Option<String> {
        let longest = &self.running.as_ref()?.longest;
        let (task, fetch) = longest.iter().find_map(|task| Some((task, task.image?)))?;
        if self.image_shown_at.is_some_and(|at| at.elapsed() < IMAGE_EVERY) {
            return None;
        }
        self.image_shown_at = Some(Instant::now());
        Some(format!("task {}: {}", task.id, image_text(fetch)))
    }

    /// Formats the counts and the tasks that run at `now`, for a job whose tasks run since `since`.
    pub(crate) fn live_lines(&self, now: Millis, since: Millis) -> Vec<String> {
        if self.tasks == 0 {
            return Vec::new();
        }
        let mut counts = format!("  {}/{} tasks", self.ended, self.tasks);
        let running = self.running.as_ref().map_or(0, |running| running.count);
        for (count, what) in [(running, "running"), (self.failed, "failed"), (self.skipped, "skipped")] {
            if count > 0 {
                // Writing to a String cannot fail, here and below.
                let _ = write!(counts, ", {count} {what}");
            }
        }
        if let Some(left) = self.left(now, since) {
            let _ = write!(counts, ", about {} left", about(left));
        }
        let longest = self.running.iter().flat_map(|running| &running.longest).take(RUNNING_MAX);
        let line = |task: &RunningTask| {
            let image = task.image.map(|fetch| format!(", {}", image_text(fetch))).unwrap_or_default();
            format!("    {} {}{image}", escaped(task.id.as_str()), age(task.since_ms, now))
        };
        let tasks = longest.map(line);
        std::iter::once(counts).chain(tasks).collect()
    }

    /// The expected time until the last task ends: the critical path, or longer if executors are scarce. `None` while no
    /// run time is known.
    fn left(&self, now: Millis, since: Millis) -> Option<Duration> {
        let running = self.running.as_ref()?;
        let path = Duration::from_millis(running.critical_path_ms?).saturating_sub(now.since(running.at_ms));
        let rest = self.tasks.saturating_sub(self.ended);
        let at_this_rate = now.since(since).as_secs_f64() * rest as f64 / self.ended.max(1) as f64;
        let at_this_rate = Duration::try_from_secs_f64(at_this_rate).ok()?;
        (rest > 0).then(|| path.max(at_this_rate))
    }

    /// Whether enough tasks have ended since the last progress line for another one. False at the end, when the
    /// result shows the counts.
    pub(crate) fn is_due(&mut self) -> bool {
        let steps = self.ended.saturating_mul(STEPS).checked_div(self.tasks).unwrap_or_default();
        let is_due = steps > self.told && self.ended < self.tasks;
        self.told = steps;
        is_due
    }
}

#[cfg(test)]
mod tests {
    use model::{Measurement, MeasurementState};

    use super::*;

    fn report(id: &str, status: TaskStatus) -> TaskReport {
        TaskReport::new(id.parse().unwrap(), status)
    }

    #[test]
    fn a_report_is_a_line() {
        let mut judge = report("judge", TaskStatus::Succeeded);
        (judge.score, judge.wall_ms) = (Some(0.75), Some(120));
        assert_eq!(report_line(&judge), "task judge succeeded with score 0.75 in 0.120 s");
        judge.cached = true;
        assert_eq!(report_line(&judge), "task judge succeeded with score 0.75 from the cache");
        let mut link = report("link", TaskStatus::Failed);
        link.exit_code = Some(2);
        assert_eq!(report_line(&link), "task link failed: exit code 2");
        let digest: model::BlobDigest = format!("{}/3", "0".repeat(64)).parse().unwrap();
        link.service_logs.insert("db.stderr".into(), digest);
        let wanted = format!(
            "task link failed: exit code 2; logs of its services: db.stderr (forebay cas get {digest})"
        );
        assert_eq!(report_line(&link), wanted);
        link.service_logs.clear();
        link.reason = Some("output a.out is missing".into());
        assert_eq!(report_line(&link), "task link failed: output a.out is missing");
        let mut test = report("test", TaskStatus::Skipped);
        test.because_of = Some("link".parse().unwrap());
        assert_eq!(report_line(&test), "task test skipped: task link failed");
    }

    #[test]
    fn counts_say_what_there_is() {
        let mut job = JobResult { tasks: 3, succeeded: 3, ..JobResult::default() };
        assert_eq!(counts_text(&job), "3 tasks: 3 succeeded");
        (job.succeeded, job.cached, job.failed, job.skipped, job.score) = (1, 1, 1, 1, Some(1.0 / 3.0));
        assert_eq!(
            counts_text(&job),
            "3 tasks: 1 succeeded (1 from the cache), 1 failed, 1 skipped, score 0.333"
        );
    }

    #[test]
    fn skipped_tasks_are_told_by_their_cause() {
        let mut progress = TaskProgress::default();
        let skipped = |id: &str| TaskReport {
            because_of: Some("a".parse().unwrap()),
            ..report(id, TaskStatus::Skipped)
        };
        let reports = [
            report("ok", TaskStatus::Succeeded),
            report("a", TaskStatus::Failed),
            skipped("b"),
            skipped("c"),
        ];
        let lines = progress.note(Attempt::FIRST, (4, 100), &reports);
        assert_eq!(lines, ["2 tasks skipped because a failed"]);
        assert!(progress.has_failures());
        assert_eq!(progress.counts(), "4 of 100 tasks ended, 1 failed, 2 skipped");
        let cpu = TimeSummary {
            n: 3,
            median_us: 12_000,
            low_us: 11_000,
            high_us: 13_500,
            ..TimeSummary::default()
        };
        let mut measured = report("m", TaskStatus::Succeeded);
        measured.measurement = Some(Box::new(Measurement {
            state: MeasurementState::AllRuns,
            cpu,
            wall: cpu,
            memory_bytes: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            warmup: 0,
            disturbed: 1,
            runs: Vec::new(),
        }));
        let lines = progress.note(Attempt::FIRST, (5, 100), &[measured]);
        let line = "task m succeeded in 3 runs, 12 ms of processor time (11 to 13.5), 1 disturbed";
        assert_eq!(lines, [line], "it replaces the preliminary result");
        assert!(progress.note(Attempt::FIRST.next(), (1, 100), &[]).is_empty());
        assert_eq!(progress.counts(), "1 of 100 tasks ended", "another attempt starts at zero");
    }

    #[test]
    fn what_runs_is_shown_with_its_time_and_what_is_left() {
        let mut progress = TaskProgress::default();
        assert!(progress.live_lines(Millis(0), Millis(0)).is_empty(), "nothing is known of a job");
        progress.note(Attempt::FIRST, (10, 40), &[report("a", TaskStatus::Failed)]);
        assert_eq!(progress.live_lines(Millis(0), Millis(0)), ["  10/40 tasks, 1 failed"]);
        let task = |at: u64| RunningTask {
            id: format!("t{at}").parse().unwrap(),
            since_ms: Millis(1000 * at),
            image: None,
        };
        let running = |critical_path_ms| RunningTasks {
            at_ms: Millis(10_000),
            count: 9,
            longest: (0..8).map(task).collect(),
            critical_path_ms,
        };
        progress.note_running(Some(&running(Some(100_000))));
        let lines = progress.live_lines(Millis(20_000), Millis(0));
        assert_eq!(lines.len(), 1 + RUNNING_MAX);
        assert_eq!(lines[0], "  10/40 tasks, 9 running, 1 failed, about 1m 30s left");
        assert_eq!(lines[6], "    t5 15s");
        progress.note_running(None);
        let lines = progress.live_lines(Millis(100_000), Millis(0));
        assert!(lines[0].ends_with(", about 5m left"), "30 more at 10 s each: {lines:?}");
        progress.note_running(Some(&running(None)));
        assert!(!progress.live_lines(Millis(20_000), Millis(0))[0].contains("left"));
    }

    #[test]
    fn counts_are_told_ten_times_at_most() {
        let mut progress = TaskProgress::default();
        let told = (1..=5000).filter(|ended| {
            progress.note(Attempt::FIRST, (*ended, 5000), &[]);
            progress.is_due()
        });
        assert_eq!(told.collect::<Vec<_>>(), [500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500]);
    }
}
