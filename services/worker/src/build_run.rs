//! A run of a claimed build: its workspace, its console, and what stops it.

use std::sync::Arc;

use bus::ChunkFault;
use command_services::CommandServices;
use images::Image;
use jobs::JobEnd;
use model::{BuildLimits, BuildRecord, ToolFacts, WorkspaceKeys};
use policy::{workspace::live_keys, writes_to_image};
use sandbox::WorkspaceSandbox;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::{
    build_secrets::BuildSecrets,
    console::Console,
    ending::{Ended, Ending},
    limits,
    owner::WorkspaceUsers,
    shared::Shared,
    stop::{Cause, Stop},
    tool_events,
    warm::WorkspaceOrigin,
    workspace::Workspace,
    workspace_shim::BuildParts,
};

/// State shared by the steps of a run.
pub(crate) struct Run<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) workspace: Workspace,
    pub(crate) stop: &'a Stop,
    pub(crate) console: &'a mut Console,
    pub(crate) record: &'a BuildRecord,
    pub(crate) timeout_at: Instant,
    /// The limits of the build and of its workspace together.
    pub(crate) limits: BuildLimits,
    /// The image that its command runs in, if it asks for one.
    pub(crate) image: Option<Arc<Image>>,
    /// The secrets of its command, if it asks for some.
    pub(crate) secrets: Option<BuildSecrets>,
    /// The services of its command, while there are any.
    pub(crate) services: Option<CommandServices>,
    /// Duration of filling the workspace, if it was attempted.
    pub(crate) preparation_seconds: Option<f64>,
    /// The result of its job, if it is one.
    pub(crate) job: Option<Box<JobEnd>>,
}

impl Run<'_> {
    /// The ending for the cause that the run was stopped for; `ended` holds the measurements of its command.
    pub(crate) fn stopped(&self, ended: Option<Ended>) -> Ending {
        Ending::stopped(self.stop.cause(), &self.shared.id, ended)
    }

    /// The sandbox of its command; `None`: it runs without.
    pub(crate) fn sandbox(&self) -> Option<Arc<WorkspaceSandbox>> {
        let build = &self.record.build;
        let needs_one = self.image.is_some() || !build.services.is_empty() || !build.secrets.is_empty();
        self.shared.isolation.of(build, needs_one)
    }

    /// What its command has of its own in its sandbox.
    pub(crate) fn own_parts(&self) -> BuildParts {
        let writes = self.image.is_some() && writes_to_image(&self.record.build.requirements);
        BuildParts {
            image: self.image.clone(),
            writable_bytes: writes.then(|| limits::writable_bytes(&self.limits)),
            network: self.services.as_ref().map(CommandServices::network),
            secrets: self.secrets.as_ref().and_then(|secrets| secrets.mount(&self.workspace.folder)),
        }
    }

    /// Ends the sandbox of its command with all that is left in it, if no other build may have it.
    pub(crate) async fn leave_own_sandbox(&mut self) {
        if !self.workspace.shim_lives || !self.workspace.shim.is_for_one() {
            return;
        }
        if let Err(error) = self.workspace.shim.leave_sandbox().await {
            warn!(error = telemetry::error_chain(&error), "cannot end the sandbox of a build");
            self.workspace.shim_lives = false;
        }
        // What the command left was in that sandbox.
        self.workspace.guard = None;
    }

    /// The users of its commands.
    pub(crate) fn users(&self) -> WorkspaceUsers {
        WorkspaceUsers::of(&self.shared.settings, self.workspace.number)
    }

    /// The ending of a run that cannot write to its console.
    pub(crate) fn fault(&self, fault: &ChunkFault) -> Ending {
        if self.stop.cause().is_some_and(Cause::is_of_own_files) {
            return self.stopped(None);
        }
        debug!(build = %self.record.build.id, error = telemetry::error_chain(fault), "console lost, the run ends");
        Ending::NotOurs
    }

    /// Keys by which the next build finds the workspace, if it may be kept: an untouched workspace is still that
    /// of the build `before`.
    pub(crate) fn keys(&self, ending: &Ending, before: Option<WorkspaceKeys>) -> Option<WorkspaceKeys> {
        if !self.workspace.warm || self.stop.cause().is_some() {
            return None;
        }
        if ending.is_complete() {
            return Some(live_keys(&self.record.build).workspace);
        }
        before.filter(|_| self.is_untouched(ending))
    }

    /// Whether the command called Bazel. Few builds do: the others pay one look.
    pub(crate) fn called_bazel(&self) -> bool {
        let events = std::fs::read_dir(&self.workspace.folder.tool_events);
        events.is_ok_and(|mut events| events.next().is_some())
    }

    /// What the calls of Bazel of a command that ended reported.
    pub(crate) async fn tool_facts(&mut self, ending: &Ending) -> Option<Box<ToolFacts>> {
        // From here on, the worker reads what the build wrote.
        self.workspace.hold(true).await;
        let folder = self.workspace.folder.tool_events.clone();
        if !ending.is_complete() || !self.called_bazel() {
            return None;
        }
        let call = self.record.build.tool_call().into_owned();
        let taken = tokio::task::spawn_blocking(move || tool_events::take(&folder, &call)).await;
        let taken = taken.inspect_err(|error| {
            debug!(
                error = telemetry::error_chain(error),
                "reading the events of the build's tool was aborted"
            );
        });
        let facts = taken.ok().flatten()?;
        Some(Box::new(match &self.secrets {
            Some(secrets) => secrets.mask_tool(facts),
            None => facts,
        }))
    }

    /// Whether the workspace still holds only the files of the build before.
    pub(crate) fn is_untouched(&self, ending: &Ending) -> bool {
        self.workspace.origin == WorkspaceOrigin::Reused
            && matches!(ending, Ending::NoContent(_) | Ending::NotFetched(_))
    }
}
