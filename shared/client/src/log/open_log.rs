//! The log of one run of a build, as it is at a moment.

use std::sync::Arc;

use bus::{EventKind, EventSubject, stream};
use model::{Attempt, BuildKey, BuildView, ErrorCode, InvocationId, Sequence, State};

use super::{BuildLogs, LogRange, LogWindow, RunChoice, RunLog, StoredSource, read_lines};
use crate::{Blobs, Client, ClientError};

/// The log of one run of a build: its index, and the state of the build.
#[derive(Debug, Clone)]
pub struct OpenLog {
    pub key: BuildKey,
    /// State of the build before the index was read.
    pub build: BuildView,
    /// The indexes of all runs.
    pub logs: Arc<BuildLogs>,
    /// The attempt that was chosen; none if none has started.
    pub attempt: Option<Attempt>,
    choice: RunChoice,
}

impl Client {
    /// Opens the log of a run, from the archive if the bus has it no more. Only messages are read that are newer than
    /// `known`, which an earlier call returned for the build.
    ///
    /// # Errors
    ///
    /// Fails if the build or the run does not exist.
    pub async fn open_log(
        &self,
        key: &BuildKey,
        choice: RunChoice,
        known: Arc<BuildLogs>,
    ) -> Result<OpenLog, ClientError> {
        let build = self.get(key).await?;
        if let Some(console) = self.archived_console(&build, None).await? {
            let logs = Arc::new(BuildLogs::of_archive(console).await?);
            let attempt = chosen(&build, choice, &logs)?;
            return Ok(OpenLog { key: key.clone(), build, logs, attempt, choice });
        }
        let subject = EventSubject { key: key.clone(), kind: EventKind::Console }.to_string();
        let last = self.bus().stream(stream::EVENTS).last(&subject).await?;
        let until = last.map_or(Sequence(0), |stored| stored.sequence);
        let mut logs = known;
        if logs.read_to() < until {
            Arc::make_mut(&mut logs).update(self.bus(), &subject, until).await?;
        }
        let attempt = chosen(&build, choice, &logs)?;
        Ok(OpenLog { key: key.clone(), build, logs, attempt, choice })
    }

    /// Reads the record of a build of which an attempt has started.
    ///
    /// # Errors
    ///
    /// Fails if it has not, or if the build does not exist.
    pub async fn get_with_attempt(
        &self,
        key: &BuildKey,
        attempt: Option<Attempt>,
    ) -> Result<BuildView, ClientError> {
        let build = self.get(key).await?;
        let choice = attempt.map_or(RunChoice::Last, RunChoice::Attempt);
        chosen(&build, choice, &BuildLogs::default())?;
        Ok(build)
    }
}

/// The last attempt that started: the previous one while the build is queued. 0: none.
fn last_attempt(build: &BuildView) -> Attempt {
    let attempt = build.record.attempt;
    if build.state == State::Enqueued { Attempt(attempt.0.saturating_sub(1)) } else { attempt }
}

fn chosen(build: &BuildView, choice: RunChoice, logs: &BuildLogs) -> Result<Option<Attempt>, ClientError> {
    let (key, last) = (build.record.build.key(), last_attempt(build));
    let missing = |what: String| Err(ClientError::api(ErrorCode::NotFound, what));
    match choice {
        RunChoice::Last => Ok((last.0 > 0).then_some(last)),
        RunChoice::Attempt(attempt) if attempt.0 > 0 && attempt <= last => Ok(Some(attempt)),
        RunChoice::Attempt(attempt) => {
            missing(format!("build {key} has no attempt {attempt}: {last} attempts have started"))
        }
        RunChoice::Invocation(invocation) => match logs.run(choice, last) {
            Some(run) => Ok(Some(run.attempt)),
            None if build.record.invocation_id() == Some(invocation) => Ok(Some(last)),
            None => missing(format!("build {key} has no output of an invocation {invocation}")),
        },
    }
}

impl OpenLog {
    /// The index of the run. None: it has no output.
    pub fn run(&self) -> Option<&RunLog> {
        self.logs.run(self.choice, self.attempt?)
    }

    /// Whether the run has ended, so that its log does not grow.
    pub fn is_complete(&self) -> bool {
        self.is_superseded() || self.build.state == State::Finished
    }

    /// Id of the run. None: it has no output and was lost.
    fn invocation(&self) -> Option<InvocationId> {
        let current = self.build.record.invocation_id().filter(|_| !self.is_superseded());
        self.run().map_or(current, |run| run.invocation)
    }

    fn is_superseded(&self) -> bool {
        self.attempt.is_some_and(|attempt| attempt < self.build.record.attempt)
    }

    /// Reads lines of the log.
    ///
    /// # Errors
    ///
    /// Fails if the bus does not answer.
    pub async fn window(
        &self,
        client: &Client,
        blobs: &mut impl Blobs,
        range: LogRange,
    ) -> Result<LogWindow, ClientError> {
        let mut window = LogWindow {
            attempt: self.attempt,
            invocation: self.invocation(),
            lines: Vec::new(),
            missing: Vec::new(),
            next_line: None,
            total_lines: 0,
            total_bytes: 0,
            complete: self.is_complete(),
        };
        let Some(run) = self.run() else { return Ok(window) };
        let mut source = StoredSource { bus: client.bus(), key: &self.key, run, blobs };
        let found = read_lines(&mut source, &run.index, range).await?;
        window.total_bytes = run.index.bytes();
        (window.lines, window.missing) = (found.lines, found.missing);
        (window.next_line, window.total_lines) = (found.next_line, found.total);
        Ok(window)
    }
}
