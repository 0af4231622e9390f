//! Reports about tasks while others run: `TASKS_ENDED` events, a few per second and each of bounded size, with what runs; and at the
//! end a file with the reports of all tasks.

use std::time::Duration;

use bytes::Bytes;
use cas::{Cas, CasError};
use invariant::{Present as _, impossible};
use model::{
    Attempt, Digest, DigestFunction, OutputFile, RESERVED_FOLDER, RunningTasks, TaskReport, ToolEvent,
};
use policy::graph::GraphRun;

/// Time between two events.
pub(crate) const EVERY: Duration = Duration::from_millis(250);
/// Time after an event until the next one if no task ended, but others run.
pub(crate) const RUNNING_EVERY: Duration = Duration::from_secs(1);
/// Approximate maximum bytes of reports in one message: the limit of the bus is four times as much.
const BYTES_MAX: usize = 256 << 10;
/// The name of the file with all reports, in the reserved folder.
const FILE: &str = "tasks.jsonl";

/// Reports that are not published yet.
#[derive(Debug, Default)]
pub(crate) struct UnpublishedReports {
    reports: Vec<TaskReport>,
    bytes: usize,
}

impl UnpublishedReports {
    /// Adds a report to publish.
    pub(crate) fn push(&mut self, report: &TaskReport) {
        let report = report.without_runs();
        // Measured as JSON: there a character may need six bytes.
        self.bytes += serde_json::to_vec(&report).map(|json| json.len() + 1).present("a task report as JSON");
        self.reports.push(report);
    }

    /// Whether there are no reports to publish.
    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Whether the reports must be published now, without waiting for the timer.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX
    }

    /// Removes all reports and returns the events to publish, at least one. The last one says what runs, and
    /// contains the preliminary reports.
    pub(crate) fn take(
        &mut self,
        attempt: Attempt,
        run: &GraphRun,
        running: RunningTasks,
        preliminary: Vec<TaskReport>,
    ) -> Vec<ToolEvent> {
        let tasks = run.graph().len() as u64;
        let mut left = run.tasks_ended().saturating_sub(self.reports.len() as u64);
        let mut events = Vec::new();
        let mut part = Self::default();
        for report in std::mem::take(self).reports {
            part.push(&report);
            if part.is_full() {
                left += part.reports.len() as u64;
                let reports = std::mem::take(&mut part).reports;
                let preliminary = Vec::new();
                events.push(ToolEvent::TasksEnded {
                    attempt,
                    ended: left,
                    tasks,
                    reports,
                    running: None,
                    preliminary,
                });
            }
        }
        let ended = left + part.reports.len() as u64;
        let running = Some(running);
        let reports = part.reports;
        events.push(ToolEvent::TasksEnded { attempt, ended, tasks, reports, running, preliminary });
        events
    }
}

/// Stores the reports of all tasks that ended.
pub(crate) async fn keep_reports(run: &GraphRun, cas: &Cas) -> Result<OutputFile, CasError> {
    let mut lines = Vec::new();
    for report in run.reports() {
        match serde_json::to_writer(&mut lines, report) {
            Ok(()) => lines.push(b'\n'),
            Err(error) => impossible!("the report of task {} cannot be encoded as JSON: {error}", report.id),
        }
    }
    let blob = cas.put_bytes(DigestFunction::Sha256, Bytes::from(lines)).await?;
    let digest = Digest::from_sha256(blob.hash);
    Ok(OutputFile {
        path: format!("{RESERVED_FOLDER}/{FILE}"),
        digest,
        size_bytes: blob.size,
        executable: false,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Graph, Job, JobLimits, Millis, TaskStatus};

    use super::*;

    #[test]
    fn the_published_reports_add_up_and_no_message_is_too_large() {
        let tasks: Vec<_> = (0..3000)
            .map(|at| serde_json::json!({"id": format!("t{at}"), "make_folder": format!("f{at}")}))
            .collect();
        let job: Job = serde_json::from_value(serde_json::json!({ "tasks": tasks })).unwrap();
        let mut run = GraphRun::new(Arc::new(Graph::new(&job, &JobLimits::NONE).unwrap()));
        let mut unpublished = UnpublishedReports::default();
        let mut published = 0;
        for round in 0..3 {
            for _ in 0..1000 {
                let index = run.start_next().unwrap();
                let id = run.graph().task(index).unwrap().id.clone();
                let reason = Some("be\u{1}cause ".repeat(100));
                let report = TaskReport { reason, ..TaskReport::new(id, TaskStatus::Failed) };
                run.ended(index, report.clone());
                unpublished.push(&report);
            }
            let (at_ms, count) = (Millis(7), round);
            let running = RunningTasks { at_ms, count, longest: Vec::new(), critical_path_ms: None };
            let early = vec![TaskReport::new("early".parse().unwrap(), TaskStatus::Succeeded)];
            let events = unpublished.take(Attempt(2), &run, running.clone(), early.clone());
            let said = |event: &ToolEvent| {
                let ToolEvent::TasksEnded { running, .. } = event else { panic!() };
                running.clone()
            };
            let (last, others) = events.split_last().unwrap();
            assert_eq!(said(last), Some(running));
            let early_in = |event: &ToolEvent| {
                let ToolEvent::TasksEnded { preliminary, .. } = event else { panic!() };
                preliminary.clone()
            };
            assert_eq!(early_in(last), early);
            assert!(others.iter().all(|event| said(event).is_none() && early_in(event).is_empty()));
            assert!(unpublished.is_empty() && events.len() > 1);
            for event in events {
                assert!(serde_json::to_vec(&event).unwrap().len() < 900 << 10);
                let ToolEvent::TasksEnded { ended, tasks, reports, attempt, .. } = event else { panic!() };
                published += reports.len() as u64;
                assert_eq!((ended, tasks, attempt), (published, 3000, Attempt(2)), "in round {round}");
            }
        }
        assert_eq!(published, 3000);
    }
}
