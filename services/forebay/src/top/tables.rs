//! The tables of `forebay top`, made from a snapshot.

use std::collections::BTreeMap;

use model::{
    BuildKey, BuildView, ExecutorHeartbeat, Millis, Priority, QuotaReply, State, WorkerView, WorkspaceState,
};

use super::{snapshot::Snapshot, view::View};
use crate::{
    bytes_text::{age, size},
    executors, ls,
    record_text::work_text,
    style::{Tone, one_line},
    workers,
};

/// A value in a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Option<Tone>,
    /// Orders rows if the column is sorted; `None`: by the text.
    pub(crate) rank: Option<f64>,
}

/// A row and what it is about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Identifies the row in the next snapshot.
    pub(crate) id: String,
    pub(crate) cells: Vec<Cell>,
    pub(crate) build: Option<BuildKey>,
}

/// A table with a row of headings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Table {
    pub(crate) head: Vec<&'static str>,
    pub(crate) rows: Vec<Row>,
    /// What to do if there is no row.
    pub(crate) empty: &'static str,
}

impl Cell {
    fn text(text: impl AsRef<str>) -> Self {
        Self { text: one_line(text.as_ref(), usize::MAX), tone: None, rank: None }
    }

    fn ranked(text: impl AsRef<str>, rank: f64) -> Self {
        Self { rank: Some(rank), ..Self::text(text) }
    }

    fn number(number: u64) -> Self {
        Self::ranked(number.to_string(), number as f64)
    }

    fn toned(self, tone: Option<Tone>) -> Self {
        Self { tone, ..self }
    }
}

/// The table of a view.
pub(crate) fn table(view: View, snapshot: &Snapshot) -> Table {
    match view {
        View::Overview => overview(snapshot),
        View::Builds => builds(&snapshot.builds, snapshot.at_ms),
        View::Workers => of_workers(&snapshot.workers, snapshot.at_ms),
        View::Executors => of_executors(&snapshot.executors, snapshot.at_ms),
        View::Queues => queues(snapshot),
        View::Quota => quota(snapshot.quota.as_ref()),
    }
}

/// What needs attention: failed builds and what does not work, worst first, then what runs.
fn overview(snapshot: &Snapshot) -> Table {
    let rank = |view: &BuildView| match (view.record.result(), view.state) {
        (Some(_), _) if Tone::of(&view.record) == Tone::Bad => (0, u64::MAX - view.record.at_ms.0),
        (Some(_), _) => (3, 0),
        (None, State::InProgress) => (1, view.record.build.submitted_at_ms.0),
        (None, _) => (2, view.record.build.submitted_at_ms.0),
    };
    let mut shown: Vec<BuildView> = snapshot.builds.iter().filter(|view| rank(view).0 < 3).cloned().collect();
    shown.sort_by_key(rank);
    let mut table = builds(&shown, snapshot.at_ms);
    table.empty = "nothing runs, waits or failed: submit a build with `forebay submit`";
    table
}

fn builds(builds: &[BuildView], now: Millis) -> Table {
    let row = |view: &BuildView| {
        let build = &view.record.build;
        let submitted = build.submitted_at_ms;
        Row {
            id: build.key().to_string(),
            build: Some(build.key()),
            cells: vec![
                Cell::text(build.id.to_string().chars().take(ls::ID_MIN).collect::<String>()),
                Cell::text(ls::state_text(view)).toned(Some(Tone::of(&view.record))),
                Cell::text(build.group.as_str()),
                Cell::ranked(build.priority.to_string(), priority_rank(build.priority)),
                Cell::ranked(age(submitted, now), now.since(submitted).as_secs_f64()),
                Cell::ranked(ls::time(view, now), ls::seconds_of(view, now)),
                Cell::text(work_text(build)),
            ],
        }
    };
    Table {
        head: vec!["ID", "STATUS", "GROUP", "PRIORITY", "AGE", "TIME", "COMMAND"],
        rows: builds.iter().map(row).collect(),
        empty: "no builds yet: submit one with `forebay submit`",
    }
}

fn priority_rank(priority: Priority) -> f64 {
    Priority::ALL.iter().position(|known| *known == priority).unwrap_or(0) as f64
}

fn of_workers(found: &[WorkerView], now: Millis) -> Table {
    let row = |WorkerView { heartbeat }: &WorkerView| {
        let busy = heartbeat.workspaces.iter().filter(|it| matches!(it, WorkspaceState::Busy { .. })).count();
        let all = heartbeat.workspaces.len();
        let builds: Vec<String> = heartbeat.workspaces.iter().filter_map(workers::build_of).collect();
        Row {
            id: heartbeat.worker.to_string(),
            build: None,
            cells: vec![
                Cell::text(heartbeat.worker.as_str()),
                Cell::text(&heartbeat.host),
                Cell::text(workers::status(heartbeat.status)).toned(workers::tone(heartbeat.status)),
                Cell::ranked(format!("{busy}/{all}"), busy as f64),
                Cell::ranked(
                    age(heartbeat.started_at_ms, now),
                    now.since(heartbeat.started_at_ms).as_secs_f64(),
                ),
                Cell::text(builds.join(" ")),
            ],
        }
    };
    Table {
        head: vec!["WORKER", "HOST", "STATUS", "BUSY", "UP", "BUILDS"],
        rows: found.iter().map(row).collect(),
        empty: "no worker is running: start one with `forebay serve worker`",
    }
}

fn of_executors(found: &[ExecutorHeartbeat], now: Millis) -> Table {
    let row = |it: &ExecutorHeartbeat| {
        let (held, all) = (&it.held, &it.capacity);
        let processors = format!("{}/{}", executors::processors(held), executors::processors(all));
        let memory = format!("{}/{}", size(held.memory_bytes), size(all.memory_bytes));
        Row {
            id: it.executor.to_string(),
            build: None,
            cells: vec![
                Cell::text(it.executor.as_str()),
                Cell::text(it.pool.as_str()),
                Cell::text(&it.host),
                Cell::text(executors::status(it)).toned(executors::tone(it)),
                Cell::ranked(format!("{}/{}", it.running.len(), it.slots), it.running.len() as f64),
                Cell::ranked(processors, held.cpu_millis as f64),
                Cell::ranked(memory, held.memory_bytes as f64),
                Cell::ranked(format!("{}/{}", it.window.used, it.window.size), f64::from(it.window.used)),
                Cell::ranked(age(it.started_at_ms, now), now.since(it.started_at_ms).as_secs_f64()),
            ],
        }
    };
    Table {
        head: vec!["EXECUTOR", "POOL", "HOST", "STATUS", "ACTIONS", "PROCESSORS", "MEMORY", "WINDOW", "UP"],
        rows: found.iter().map(row).collect(),
        empty: "no executor is running: start one with `forebay serve executor`",
    }
}

/// Waiting builds by group and priority.
fn queues(snapshot: &Snapshot) -> Table {
    let now = snapshot.at_ms;
    let mut waiting: BTreeMap<(&str, usize), (u64, Millis)> = BTreeMap::new();
    for view in snapshot.builds.iter().filter(|view| view.state == State::Enqueued) {
        let build = &view.record.build;
        let at = Priority::ALL.iter().position(|known| *known == build.priority).unwrap_or(0);
        let since = view.record.queue.enqueued_at_ms;
        let queue = waiting.entry((build.group.as_str(), at)).or_insert((0, since));
        *queue = (queue.0 + 1, queue.1.min(since));
    }
    let groups = snapshot.quota.iter().flat_map(|reply| &reply.groups);
    let throttled: BTreeMap<&str, &str> =
        groups.filter_map(|it| Some((it.group.as_str(), it.throttled.as_deref()?))).collect();
    let row = |((group, at), (count, since)): (&(&str, usize), &(u64, Millis))| {
        let priority = Priority::ALL.get(*at).map(ToString::to_string).unwrap_or_default();
        Row {
            id: format!("{group} {at}"),
            build: None,
            cells: vec![
                Cell::text(group),
                Cell::ranked(priority, *at as f64),
                Cell::number(*count),
                Cell::ranked(age(*since, now), now.since(*since).as_secs_f64()),
                Cell::text(throttled.get(group).copied().unwrap_or_default()),
            ],
        }
    };
    Table {
        head: vec!["GROUP", "PRIORITY", "WAITING", "LONGEST", "THE FIRST WAITS FOR"],
        rows: waiting.iter().map(row).collect(),
        empty: "no build waits",
    }
}

fn quota(reply: Option<&QuotaReply>) -> Table {
    let mut rows = Vec::new();
    for group in reply.iter().flat_map(|reply| &reply.groups) {
        for (kind, governed) in &group.governed {
            let amounts = [governed.quota, governed.pv, governed.sp, governed.borrowed, governed.target];
            let amounts = amounts.iter().map(|esu| Cell::ranked(esu.to_string(), esu.units()));
            let names = [Cell::text(group.group.as_str()), Cell::text(kind.as_str())];
            let queued = Cell::number(group.queued);
            rows.push(Row {
                id: format!("{} {kind}", group.group),
                build: None,
                cells: names.into_iter().chain(amounts).chain([queued]).collect(),
            });
        }
    }
    Table {
        head: vec!["GROUP", "TYPE", "QUOTA", "PV", "SP", "BORROWED", "TARGET", "QUEUED"],
        rows,
        empty: "no group has used the farm yet; without any quota no group is limited: `forebay quota set`",
    }
}
