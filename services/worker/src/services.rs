//! The services of a build: commands that serve its command while it runs. They see the files of its workspace as they are
//! before the command starts, in copies.

use std::{fs, io, path::Path, sync::Arc};

use bus::ChunkFault;
use command_services::{CommandServices, Failure, Parts, Stopped};
use disk::{Confined, Reserve};
use images::Image;
use model::{BuildLimits, Reason, ReasonCode, ServiceRequest, TaskLimits};
use sandbox::{Cores, Sandbox, SandboxError, SlotConfig, StopMode};
use shim::User;
use tracing::warn;

use crate::{
    build_run::Run,
    ending::{Ended, Ending},
    folder::RunFolder,
    owner, prepare,
    prepare_step::FileWork,
    sync::{Choice, FolderSource, Sync, TransferMode},
};

/// Where the outputs of services are in the result of a build.
const OUTPUTS: &str = ".forebay/services";
/// All of them, as an output glob.
pub(crate) const OUTPUTS_GLOB: &str = ".forebay/services/*";

impl Run<'_> {
    /// Prepares the services of the build in a workspace whose processes are held; returns how the run ends if that fails.
    pub(crate) async fn prepare_services(&mut self) -> Result<Option<Ending>, ChunkFault> {
        let requests = &self.record.build.services;
        if requests.is_empty() {
            return Ok(None);
        }
        let folder = self.workspace.folder.services.clone();
        let created = CommandServices::create(folder, &self.shared.program, requests).await;
        let mut services = match created {
            Ok(services) => services,
            Err(error) => return Ok(Some(unprepared(&error))),
        };
        for request in requests {
            if let Some(ending) = self.prepare_service(&mut services, request).await? {
                services.remove();
                return Ok(Some(ending));
            }
        }
        self.services = Some(services);
        Ok(None)
    }

    async fn prepare_service(
        &mut self,
        services: &mut CommandServices,
        request: &ServiceRequest,
    ) -> Result<Option<Ending>, ChunkFault> {
        let image = match self.image_of(request).await {
            Ok(image) => image,
            Err(ending) => return Ok(Some(ending)),
        };
        let made = services.work(request).and_then(|work| {
            let root = work.join("root");
            fs::create_dir(&root).map(|()| (work, root))
        });
        let (work, root) = match made {
            Ok(made) => made,
            Err(error) => return Ok(Some(Ending::GiveBack(prepare::unusable(&error)))),
        };
        let user = self.user_of_services();
        let what = format!("copying the files of the workspace for the service {}", request.name);
        let copy = match self.copy_to(&root, user) {
            Ok(copy) => copy,
            Err(error) => return Ok(Some(Ending::GiveBack(prepare::unusable(&error)))),
        };
        if let Some(ending) = self.prepare_files(&what, copy, None).await? {
            return Ok(Some(ending));
        }
        let Some(sandbox) = self.sandbox() else {
            // Dispatchers send it to workers that offer services.
            return Ok(Some(Ending::GiveBack(not_here())));
        };
        let number = self.workspace.number;
        let slot = SlotConfig {
            name: format!("worker-{}-{number}-service-{}", std::process::id(), request.name),
            program: self.shared.program.clone(),
            work,
            sandbox: Sandbox::Bubblewrap,
            bubblewrap: sandbox.of_services(),
            user,
            processes_max: None,
            cgroups: self.shared.cgroups.clone(),
            cores: Cores::default(),
            is_bare: false,
            network: None,
            lease: Some(self.workspace.lease.deadline.clone()),
        };
        let allowed = allowed(&self.limits);
        let output_bytes_max = self.shared.settings.output_bytes_max;
        let parts = Parts { slot, root, image, allowed, memory_bytes: None, output_bytes_max };
        let added = services.add(request, parts);
        Ok(added.err().map(|error| Ending::Failed(failed(error.to_string()), None)))
    }

    /// Starts the services; returns when all are ready, or how the run ends.
    pub(crate) async fn start_services(&mut self) -> Result<(), Ending> {
        let Some(services) = &mut self.services else { return Ok(()) };
        let failure = tokio::select! {
            started = services.start() => match started {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            },
            () = self.stop.wanted() => return Err(self.stopped(None)),
            () = tokio::time::sleep_until(self.timeout_at) => return Err(Ending::TimedOut(None)),
        };
        // A passed deadline, at which they were killed, means that the lease was not renewed.
        let is_lost = self.workspace.lease.deadline.borrow().has_passed();
        Err(if is_lost { self.stopped(None) } else { Ending::of_services(failure, None) })
    }

    /// Stops the services of a run that ends, and all that is left of its command in their network. What they used counts
    /// for the build. If one of them had ended on its own, a failure of the command is due to that.
    pub(crate) async fn end_services(&mut self, mut ending: Ending) -> Ending {
        let Some(mut services) = self.services.take() else { return ending };
        let stopped = if self.stop.cause().is_some() {
            Stopped::default()
        } else {
            tokio::select! {
                stopped = services.stop(StopMode::Gently) => stopped,
                () = self.stop.wanted() => Stopped::default(),
                () = tokio::time::sleep_until(self.timeout_at) => Stopped::default(),
            }
        };
        // What does not end in time is killed when it is dropped.
        let killed = services.kill().await.unwrap_or_else(|| {
            // Its processes must not run beside those of the next build.
            warn!("the services of a build do not end in time");
            self.workspace.shim_lives = false;
            Stopped::default()
        });
        let used = [stopped.used, killed.used];
        self.shared.usage.services_ended(self.workspace.number, &used);
        if let Some(ended) = ending.ended_mut() {
            for used in used {
                ended.exit.cpu += used.cpu;
                let peak = &mut ended.exit.peak_memory_bytes;
                *peak = peak.saturating_add(used.peak_memory_bytes);
            }
        }
        self.leave_own_sandbox().await;
        if let Err(error) = keep_logs(&services, &self.workspace.folder) {
            warn!(%error, "cannot keep what the services of a build wrote");
        }
        ending.blame_service(stopped.failure)
    }

    /// The image of a service, fetched and unpacked. The enqueuer put it in place of the name of an environment.
    async fn image_of(&mut self, request: &ServiceRequest) -> Result<Option<Arc<Image>>, Ending> {
        match &request.image {
            None => Ok(None),
            Some(image) => self.fetch(image).await.map(Some),
        }
    }

    /// The user that services run as: that of the build, and never root.
    fn user_of_services(&self) -> Option<User> {
        self.users().without_rights
    }

    /// Copies the files of the workspace to the folder of a service, which `user` gets.
    fn copy_to(&self, root: &Path, user: Option<User>) -> io::Result<FileWork> {
        let folder = self.workspace.folder.build.canonicalize()?;
        let opened = Confined::open(&folder)?;
        let source = FolderSource { folder, choice: Choice::default(), mode: TransferMode::Copy(opened) };
        let sync = Sync {
            target: root.to_owned(),
            manifest: None,
            fresh: true,
            reserve: Reserve::new(self.shared.settings.disk_left_percent),
            progress: Arc::default(),
        };
        Ok(Box::new(move |cancelled| {
            sync.run(&source, cancelled)?;
            user.map_or(Ok(()), |user| owner::give(&sync.target, user))
        }))
    }
}

/// The most that a service of a build with these limits may use: as much as its command.
fn allowed(limits: &BuildLimits) -> TaskLimits {
    TaskLimits {
        memory_bytes: limits.memory_bytes,
        processes: limits.processes,
        disk_bytes: limits.disk_bytes,
        output_bytes: limits.output_bytes,
        ..TaskLimits::default()
    }
}

/// Moves what the services wrote to where it is kept as outputs.
fn keep_logs(services: &CommandServices, folder: &RunFolder) -> io::Result<()> {
    let to = folder.service_logs().join(OUTPUTS);
    for (name, path) in services.logs() {
        fs::create_dir_all(&to)?;
        fs::rename(path, to.join(name))?;
    }
    Ok(())
}

/// The reason of a build whose service is at fault.
pub(crate) fn failed(message: String) -> Reason {
    Reason { code: ReasonCode::ServiceFailed, message }
}

fn not_here() -> Reason {
    let message = "this worker does not run services of builds".to_owned();
    Reason { code: ReasonCode::WorkerFault, message }
}

fn unprepared(error: &SandboxError) -> Ending {
    let message = format!("the services cannot be prepared: {}", telemetry::error_chain(error));
    Ending::GiveBack(Reason { code: ReasonCode::WorkerFault, message })
}

impl Ending {
    /// The build has no services any more; `ended` holds the measurements of its command.
    pub(crate) fn of_services(failure: Failure, ended: Option<Ended>) -> Self {
        match failure {
            Failure::Service { message } => Self::Failed(failed(message), ended),
            Failure::Machine { message } => Self::GiveBack(Reason { code: ReasonCode::WorkerFault, message }),
        }
    }

    /// Attributes the failure of a command to a service that had ended: the command may notice that first.
    fn blame_service(self, failure: Option<Failure>) -> Self {
        match (self, failure) {
            (Self::Exited(ended), Some(Failure::Service { message }))
                if !ended.is_success() && ended.over.is_none() =>
            {
                let message = format!("{message}; then the command failed: {}", ended.text());
                Self::Failed(failed(message), Some(ended))
            }
            (ending, _) => ending,
        }
    }
}
