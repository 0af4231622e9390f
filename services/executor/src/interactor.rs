//! The interactor of an action: a command that talks with its command over two pipes, in a slot and input root of its own.

use std::{fs, io, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use ::images::Image;
use bus::millis;
use command_services::{PATH, PATIENCE, end_of, remove_folder, sandbox_limits};
use input_root::{InputRoot, OutputSpec};
use model::{BlobDigest, DigestFunction, Interactor, TaskLimits};
use policy::actions::interactor_time;
use sandbox::{Cause, Ended, JoinedStreams, Outcome, Run, SandboxError};
use tokio::time::timeout;
use tracing::warn;

use crate::{
    limits::{self, ExceededLimit},
    outcome::Fault,
    shared::Shared,
    slot_threads::SlotThread,
    spec::Spec,
    split,
};

/// The name of the interactor's folder, and the start of the name of its log.
const NAME: &str = "interactor";

/// The interactor of an action, and what it uses.
pub(crate) struct ActionInteractor {
    interactor: sandbox::Interactor,
    /// The streams of the command, until it starts.
    streams: Option<JoinedStreams>,
    limits: TaskLimits,
    folder: PathBuf,
    stderr: PathBuf,
    root: InputRoot,
    /// How it ended, once that is known.
    ended: Option<Ended>,
}

/// The input roots of an action.
pub(crate) struct Roots {
    pub(crate) command: BlobDigest,
    interactor: BlobDigest,
}

impl Roots {
    /// The input root of the command lacks the folder of the interactor.
    pub(crate) async fn of(shared: &Shared, spec: &Spec, function: DigestFunction) -> Result<Self, Fault> {
        let folder = spec.interactor.as_ref().and_then(|interactor| interactor.folder.as_deref());
        let Some(folder) = folder else {
            return Ok(Self { command: spec.input_root, interactor: function.empty() });
        };
        let (interactor, command) = split::split(&shared.cas, spec.input_root, folder).await?;
        Ok(Self { command, interactor })
    }
}

impl ActionInteractor {
    /// Prepares its input root. `memory_bytes` is its limit if its author sets none.
    pub(crate) async fn prepare(
        shared: &Shared,
        (spec, asked, roots): (&Spec, &Interactor, &Roots),
        slot_thread: &SlotThread,
        (image, memory_bytes): (Option<&Arc<Image>>, Option<u64>),
    ) -> Result<Self, Fault> {
        let folder = slot_thread.folder().join(NAME);
        let work = folder.join("work");
        let failed = |error: io::Error| Fault::machine(&error);
        remove_folder(&folder).and_then(|()| fs::create_dir_all(&work)).map_err(failed)?;
        let config = slot_thread.place_of_services().slot_of(NAME, work.clone());
        let pair = JoinedStreams::pair(config.user).map_err(|error| Fault::machine(&error))?;
        let root = shared.inputs.prepare(&work, &roots.interactor, &OutputSpec::default()).await;
        let root = root.map_err(|error| Fault::unprepared(&error))?;
        let asked_time = asked.limits.wall_ms.map(Duration::from_millis);
        let time = interactor_time(asked_time, spec.timeout);
        let memory = asked.limits.memory_bytes.into_iter().chain(shared.settings.action_limits.memory_bytes);
        let limits = TaskLimits {
            memory_bytes: memory.min(),
            ..limits::effective(asked.limits, time, &shared.settings.action_limits)
        };
        let mut env: Vec<(String, String)> = asked.env.clone().into_iter().collect();
        if let Some(image) = image {
            env = image.complete(env);
        }
        if !env.iter().any(|(name, _)| name == "PATH") {
            env.push(("PATH".to_owned(), PATH.to_owned()));
        }
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| folder.join(name));
        let run = Run {
            argv: asked.command.clone(),
            env,
            cwd: PathBuf::new(),
            root: root.path().to_owned(),
            root_is_input: false,
            image: image.map(Image::root),
            devices: Vec::new(),
            shares_network: false,
            timeout: Some(time),
            // A limit kills at once.
            kill_grace: Duration::ZERO,
            stdout,
            stderr: stderr.clone(),
            output_bytes_max: limits.output_bytes.unwrap_or(shared.settings.action_output_bytes_max),
            memory_bytes_max: limits.memory_bytes.or(memory_bytes),
            limits: sandbox_limits(&limits),
        };
        let [of_command, of_interactor] = pair;
        let interactor = sandbox::Interactor::new(config, run, of_interactor);
        Ok(Self { interactor, streams: Some(of_command), limits, folder, stderr, root, ended: None })
    }

    /// Starts it; returns when its process runs.
    pub(crate) async fn start(&mut self, shared: &Shared, function: DigestFunction) -> Result<(), Fault> {
        match self.interactor.started().await {
            Ok(None) => Ok(()),
            // It may end before its start is reported.
            Ok(Some(outcome)) => self.learn(outcome, shared, function).await,
            Err(error) => Err(Fault::machine(&error)),
        }
    }

    /// The streams of the command, which must not exist elsewhere while it runs.
    pub(crate) fn take_streams(&mut self) -> Option<JoinedStreams> {
        self.streams.take()
    }

    /// Runs the command beside the interactor, until both have ended. If the command exceeds a limit, the interactor is
    /// killed; if the interactor does, that is the end of the action.
    pub(crate) async fn beside(
        &mut self,
        command: impl Future<Output = Result<Outcome, SandboxError>>,
        shared: &Shared,
        function: DigestFunction,
    ) -> Result<Result<Outcome, SandboxError>, Fault> {
        let mut command = pin!(command);
        let outcome = loop {
            tokio::select! {
                biased;
                outcome = &mut command => break outcome,
                ended = self.interactor.ended(), if self.ended.is_none() => {
                    let outcome = ended.map_err(|error| Fault::machine(&error))?;
                    self.learn(outcome, shared, function).await?;
                }
            }
        };
        match &outcome {
            Ok(Outcome::Ended(Ended { cause: Cause::Ended, .. })) if self.ended.is_none() => {
                let ended = self.interactor.ended().await.map_err(|error| Fault::machine(&error))?;
                self.learn(ended, shared, function).await?;
            }
            // Its usage is reported, but nothing depends on how it ends.
            Ok(_) | Err(_) => {
                if let (Ok(Outcome::Ended(ended)), None) = (self.interactor.stop().await, &self.ended) {
                    self.ended = Some(ended);
                }
            }
        }
        Ok(outcome)
    }

    /// How it ended; `None` before its end.
    pub(crate) fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// Stores what it wrote to standard error, by its name; nothing if that is empty.
    pub(crate) async fn keep_logs(
        &self,
        shared: &Shared,
        function: DigestFunction,
    ) -> Result<Vec<(String, BlobDigest)>, Fault> {
        if !fs::metadata(&self.stderr).is_ok_and(|file| file.len() > 0) {
            return Ok(Vec::new());
        }
        let stored = shared.cas.put_file(function, &self.stderr, false).await;
        let digest = stored.map_err(|error| Fault::machine(&error))?;
        Ok(vec![(format!("{NAME}.stderr"), digest)])
    }

    /// Kills it, if it still runs, and removes its files. Returns whether all its processes are dead.
    pub(crate) async fn end(mut self, shared: &Shared) -> bool {
        match timeout(PATIENCE, self.interactor.stop()).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                warn!(error = telemetry::error_chain(&error), "the sandbox of an interactor failed");
            }
            Err(_) => {
                warn!(folder = %self.folder.display(), "the interactor of an action does not end in time");
                return false;
            }
        }
        shared.inputs.release(self.root).await;
        if let Err(error) = remove_folder(&self.folder) {
            warn!(%error, folder = %self.folder.display(), "cannot remove the files of an interactor");
        }
        true
    }

    /// Keeps how it ended; fails if it could not run, or exceeded a limit.
    async fn learn(
        &mut self,
        outcome: Outcome,
        shared: &Shared,
        function: DigestFunction,
    ) -> Result<(), Fault> {
        let message = match outcome {
            Outcome::NotStarted { message, .. } => format!("the interactor cannot be started: {message}"),
            Outcome::Ended(ended) => match fault(&ended, &self.limits) {
                None => {
                    self.ended = Some(ended);
                    return Ok(());
                }
                Some(message) => message,
            },
        };
        let said = end_of(&self.stderr);
        let said = said.trim();
        let message = if said.is_empty() { message } else { format!("{message}; it wrote: {said}") };
        let logs = self.keep_logs(shared, function).await?;
        Err(Fault::precondition(message).with_logs(logs))
    }
}

/// Why the end of an interactor is its own fault; `None` if its exit code is a verdict.
fn fault(ended: &Ended, limits: &TaskLimits) -> Option<String> {
    if let Some(broken) = ExceededLimit::find(ended, limits) {
        let text = broken.to_string();
        let what = text.strip_prefix("the command ").unwrap_or(&text);
        return Some(format!("the interactor {what}"));
    }
    match ended.cause {
        Cause::Ended => None,
        Cause::OutOfMemory => {
            Some(format!("the interactor ran out of memory after using {} bytes", ended.peak_memory_bytes))
        }
        Cause::Killed | Cause::Deadline | Cause::OverLimit(_) | Cause::OutputTooLarge(..) => {
            Some(format!("the interactor was killed after {} ms", millis(ended.wall)))
        }
    }
}
