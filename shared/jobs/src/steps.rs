//! Internal steps of tasks: they run on the worker without a process, and mostly move no bytes.

use std::sync::Arc;

use invariant::impossible;
use model::{FetchSource, JobPath, PathKind, Step, Task, TaskIndex, TaskReport, TaskStatus};

use crate::{
    compare, extract, fetch, job_files::Effect, output::TaskOutput, pack, runner::Runner, task_end::TaskEnd,
    task_error::TaskError, tree::Node, truncate::truncate, visible::VisibleEffects,
};

impl Runner {
    /// Runs an internal step of a task.
    pub(crate) async fn step(
        &self,
        index: TaskIndex,
        task: &Task,
        step: &Step,
        visible: &VisibleEffects,
    ) -> Result<TaskEnd, TaskError> {
        let began = std::time::Instant::now();
        self.running.start(index, None);
        let mut report = TaskReport::new(task.id.clone(), TaskStatus::Succeeded);
        let mut output = TaskOutput::default();
        let effect = match step {
            Step::Fetch { from, to } => {
                let file = self.folder.join(format!("{}", index.get()));
                let node = match from {
                    FetchSource::Url { url, digest } => {
                        fetch::fetch(&self.downloader, url, digest.as_ref(), &file, self.bytes_max).await?
                    }
                    FetchSource::Store { digest, size_bytes } => {
                        fetch::from_store(&self.cas, (digest, *size_bytes), &file, self.bytes_max).await?
                    }
                };
                Effect::Adds(vec![(to.as_str().to_owned(), node)])
            }
            Step::Extract { from, to } => {
                let archive = self.job_files.source(index, from, visible)?;
                let folder = self.folder.join(format!("{}", index.get()));
                let farm = (&self.remote, &self.patience);
                let node = extract::extract(&archive, from.as_str(), folder, self.bytes_max, farm).await?;
                Effect::Adds(vec![(to.as_str().to_owned(), Node::Folder(node))])
            }
            Step::Copy { from, to } => {
                let node = self.job_files.source(index, from, visible)?;
                Effect::Adds(vec![(to.as_str().to_owned(), node)])
            }
            Step::Archive { from, to } => {
                let node = self.job_files.source(index, from, visible)?;
                let folder = self.folder.join(format!("{}", index.get()));
                let names = (from.as_str(), to.as_str());
                let farm = (&self.remote, &self.patience);
                let node = pack::pack(node, names, folder, self.bytes_max, farm).await?;
                Effect::Adds(vec![(to.as_str().to_owned(), node)])
            }
            Step::Rename { from, to, replace } => {
                let node = self.job_files.entry(index, from, visible)?;
                if !replace {
                    self.job_files.check_free(index, to, visible)?;
                }
                let (from, to) = (from.as_str().to_owned(), to.as_str().to_owned());
                Effect::Moves { from, to, node, replace: *replace }
            }
            Step::Truncate { from, to, bytes } => {
                let node = self.job_files.source(index, from, visible)?;
                let file = self.folder.join(format!("{}", index.get()));
                let farm = (&self.remote, &self.patience);
                let bytes = (*bytes, self.bytes_max);
                let node = truncate(&node, from.as_str(), bytes, file, farm).await?;
                Effect::Adds(vec![(to.as_str().to_owned(), node)])
            }
            Step::Exists { path, kind } => {
                check_kind(&self.job_files.source(index, path, visible)?, path, *kind)?;
                Effect::Adds(Vec::new())
            }
            Step::MakeFolder(path) => {
                Effect::Adds(vec![(path.as_str().to_owned(), Node::Folder(Arc::default()))])
            }
            Step::Remove(path) => Effect::Removes(path.as_str().to_owned()),
            Step::Compare(wanted) => {
                let found = self.job_files.source(index, &wanted.found, visible)?;
                let expected = self.job_files.source(index, &wanted.expected, visible)?;
                let _turn = self.comparing.lock().await;
                let farm = (&self.remote, &self.patience);
                let judged = compare::compare(wanted, (&found, &expected), farm).await?;
                compare::conclude(wanted, judged, &mut report, &mut output);
                Effect::Adds(Vec::new())
            }
            Step::Command(_) => {
                impossible!("the command of task {} is run as an internal step", task.id);
                return Err(TaskError::Own("it is not an internal step".to_owned()));
            }
        };
        report.wall_ms = Some(bus::millis(began.elapsed()));
        Ok(TaskEnd { effect: Some(effect), output, ..TaskEnd::of(report) })
    }
}

/// Fails if `node`, which is at `path`, is not of this kind, or is a symlink that leads nowhere.
fn check_kind(node: &Node, path: &JobPath, kind: Option<PathKind>) -> Result<(), TaskError> {
    let why = match (node, kind) {
        (Node::Link(target), _) => format!("{path} does not exist: its symlink leads to {target:?}"),
        (Node::File { .. }, Some(PathKind::Folder)) => format!("{path} is a file: expected a folder"),
        (Node::Folder(_), Some(PathKind::File)) => format!("{path} is a folder: expected a file"),
        (Node::File { .. }, Some(PathKind::File) | None)
        | (Node::Folder(_), Some(PathKind::Folder) | None) => {
            return Ok(());
        }
    };
    Err(TaskError::Own(why))
}
