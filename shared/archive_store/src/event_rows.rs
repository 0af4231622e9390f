//! The rows that tool events of a build give.

use bus::{FromJson as _, Stored};
use model::{BuildKey, Millis, TaskReport, ToolEvent};

use crate::{
    plain::{INDEXED_MAX, clean, whole},
    rows::{PreparedRow, TaskRow},
    unreadable::Unreadable,
};

/// The rows of a tool event.
pub(crate) enum WorkerRows {
    Prepared(PreparedRow),
    Tasks(Vec<TaskRow>),
    /// Progress only, which is not archived.
    None,
}

/// The rows of a tool event at `position`.
pub(crate) fn tool(key: &BuildKey, stored: &Stored, position: i64) -> Result<WorkerRows, Unreadable> {
    Ok(match ToolEvent::from_json(&stored.payload)? {
        ToolEvent::WorkspacePreparing { .. } => WorkerRows::None,
        ToolEvent::WorkspacePrepared { attempt, .. } => WorkerRows::Prepared(PreparedRow {
            build_group: key.group.to_string(),
            build_id: key.id.to_string(),
            attempt: i64::from(attempt.0),
            prepared_ms: whole(stored.at.0),
            position,
        }),
        ToolEvent::TasksEnded { attempt, reports, .. } => {
            let attempt = i64::from(attempt.0);
            WorkerRows::Tasks(
                reports.iter().map(|report| task(key, attempt, report, (position, stored.at))).collect(),
            )
        }
    })
}

fn task(key: &BuildKey, attempt: i64, report: &TaskReport, (position, at): (i64, Millis)) -> TaskRow {
    TaskRow {
        build_group: key.group.to_string(),
        build_id: key.id.to_string(),
        attempt,
        task: report.id.to_string(),
        position,
        status: report.status.as_str(),
        reason: report.reason.as_deref().map(|reason| clean(reason, 1000)),
        exit_code: report.exit_code.map(i64::from),
        cached: i64::from(report.cached),
        executor: report.executor.as_deref().map(|executor| clean(executor, INDEXED_MAX)),
        wall_ms: report.wall_ms.map(whole),
        ended_ms: whole(at.0),
    }
}
