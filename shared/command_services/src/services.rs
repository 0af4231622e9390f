//! The services of one command.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use images::Image;
use model::{HttpCheck, ReadyCheck, ServiceName, ServiceRequest, TaskLimits};
use sandbox::{
    Probe, Readiness, Run, SandboxError, Service, ServiceEnd, ServiceFault, Services, SharedNetwork,
    SlotConfig, StopMode, Switches,
};
use telemetry::metrics::{Histogram, observe};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::{
    limits::{of_service, sandbox_limits},
    logs::ServiceLogs,
};

/// The search path of programs if neither a service nor its image has one.
pub const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Time limit for services to end after they were killed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The services of one command. Dropping it kills them.
#[derive(Debug)]
pub struct CommandServices {
    /// Services that wait for their start.
    prepared: Vec<Service>,
    services: Services,
    network: SharedNetwork,
    folder: PathBuf,
    logs: Vec<ServiceLogs>,
}

/// What a service gets of its executor or worker.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Its slot, in the folder of [`CommandServices::work`].
    pub slot: SlotConfig,
    /// Its files, a folder in that of the slot.
    pub root: PathBuf,
    pub image: Option<Arc<Image>>,
    /// The most that it may use.
    pub allowed: TaskLimits,
    /// Its limit of memory if none is asked for and allowed.
    pub memory_bytes: Option<u64>,
    /// Its limit of output if none is asked for and allowed.
    pub output_bytes_max: u64,
}

/// A service without a command.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the image of the service {name} has neither an entry point nor a command: give the service a `command`"
)]
pub struct NoCommand {
    name: ServiceName,
}

/// Why a command has no services, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A service is at fault: another run would find the same.
    Service { message: String },
    /// The machine is at fault.
    Machine { message: String },
}

/// Resources that services used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    pub cpu: Duration,
    /// The peaks of all together.
    pub peak_memory_bytes: u64,
    pub switches: Switches,
}

/// How services ended that were stopped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stopped {
    pub used: Used,
    /// Why one of them ended before it was asked to, if this was not known yet.
    pub failure: Option<Failure>,
}

impl CommandServices {
    /// Creates the folder, empty, and the network of services. `program` is that of the slots.
    pub async fn create(
        folder: PathBuf,
        program: &Path,
        requests: &[ServiceRequest],
    ) -> Result<Self, SandboxError> {
        let failed = |source| SandboxError::File { doing: "creating", path: folder.clone(), source };
        remove_folder(&folder).and_then(|()| fs::create_dir(&folder)).map_err(failed)?;
        let hosts: Vec<Vec<String>> =
            requests.iter().map(|request| request.hosts().map(str::to_owned).collect()).collect();
        let network = SharedNetwork::create(program, &folder, &hosts).await?;
        let services = Services::of(Vec::new());
        Ok(Self { prepared: Vec::new(), services, network, folder, logs: Vec::new() })
    }

    /// The network of the services and the command, as the command sees it.
    pub fn network(&self) -> SharedNetwork {
        self.network.clone()
    }

    /// The folder for the slot of a service, created now.
    pub fn work(&self, request: &ServiceRequest) -> io::Result<PathBuf> {
        let work = self.of(request).join("work");
        fs::create_dir_all(&work)?;
        Ok(work)
    }

    /// The folder of a service: no name has a dot, as the files with names have.
    fn of(&self, request: &ServiceRequest) -> PathBuf {
        self.folder.join(request.name.as_str())
    }

    /// Adds a service, in the order of the requests; [`CommandServices::start`] starts it.
    pub fn add(&mut self, request: &ServiceRequest, parts: Parts) -> Result<(), NoCommand> {
        let Parts { slot, root, image, allowed, memory_bytes, output_bytes_max } = parts;
        let argv = match &image {
            Some(image) if request.command.is_empty() => image.config.command.clone(),
            Some(_) | None => request.command.clone(),
        };
        if argv.is_empty() {
            return Err(NoCommand { name: request.name.clone() });
        }
        let mut env: Vec<(String, String)> = request.env.clone().into_iter().collect();
        if let Some(image) = &image {
            env = image.complete(env);
        }
        if !env.iter().any(|(name, _)| name == "PATH") {
            env.push(("PATH".to_owned(), PATH.to_owned()));
        }
        let limits = of_service(request.limits, allowed);
        let logs = ServiceLogs::new(request.name.clone(), &self.of(request));
        let [stdout, stderr] = logs.files();
        let run = Run {
            argv,
            env,
            cwd: PathBuf::new(),
            root,
            root_is_input: false,
            image: image.as_ref().map(Image::root),
            devices: Vec::new(),
            shares_network: false,
            timeout: limits.wall_ms.map(Duration::from_millis),
            // A limit kills at once.
            kill_grace: Duration::ZERO,
            stdout,
            stderr,
            output_bytes_max: limits.output_bytes.unwrap_or(output_bytes_max),
            memory_bytes_max: limits.memory_bytes.or(memory_bytes),
            limits: sandbox_limits(&limits),
        };
        let service = Service {
            name: request.name.to_string(),
            slot,
            network: self.network.of_service(self.logs.len()),
            run,
            after: request.after.iter().map(ServiceName::to_string).collect(),
            ready: readiness(request.ready.as_ref()),
            ready_within: request.ready_within(),
            stop_grace: request.stop_grace(),
        };
        self.logs.push(logs);
        self.prepared.push(service);
        Ok(())
    }

    /// Starts the services; returns when all are ready. Fails if one of them ends.
    pub async fn start(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        self.services = Services::of(std::mem::take(&mut self.prepared));
        if let Err(fault) = self.services.ready().await {
            return Err(self.explain(&fault));
        }
        observe(Histogram::ServicesReadySeconds, &[], begun.elapsed());
        Ok(())
    }

    /// Returns when a service has ended although the command still runs; never if there is none.
    pub async fn failure(&mut self) -> Failure {
        let fault = self.services.fault().await;
        self.explain(&fault)
    }

    /// Stops the services. May be dropped and called again with another mode.
    pub async fn stop(&mut self, mode: StopMode) -> Stopped {
        let mut stopped = Stopped::default();
        for ServiceEnd { name, ended, fault } in self.services.stop(mode).await {
            if let Some(ended) = ended {
                let used = &mut stopped.used;
                used.cpu += ended.cpu;
                used.peak_memory_bytes = used.peak_memory_bytes.saturating_add(ended.peak_memory_bytes);
                used.switches += ended.switches;
            }
            match fault {
                None => {}
                Some(fault @ ServiceFault::Sandbox { .. }) => {
                    let error = telemetry::error_chain(&fault);
                    warn!(service = name, error, "the sandbox of a service failed");
                }
                Some(fault) => stopped.failure = stopped.failure.or_else(|| Some(self.explain(&fault))),
            }
        }
        stopped
    }

    /// What the services wrote, by the name of the service and of the stream. Empty logs are left out.
    pub fn logs(&self) -> Vec<(String, PathBuf)> {
        self.logs.iter().flat_map(ServiceLogs::written).collect()
    }

    /// Kills what still runs; `None` if some processes may still be alive.
    pub async fn kill(&mut self) -> Option<Stopped> {
        let stopped = timeout(PATIENCE, self.stop(StopMode::AtOnce)).await.ok();
        if stopped.is_none() {
            warn!(folder = %self.folder.display(), "the services of a command do not end in time");
        }
        stopped
    }

    /// Removes the files of services that are dead.
    pub fn remove(self) {
        if let Err(error) = remove_folder(&self.folder) {
            warn!(%error, folder = %self.folder.display(), "cannot remove the files of services");
        }
    }

    /// A fault in words, with the end of the service's output.
    fn explain(&self, fault: &ServiceFault) -> Failure {
        let message = telemetry::error_chain(fault);
        let name = match fault {
            ServiceFault::NotStarted { name, .. }
            | ServiceFault::NotChecked { name, .. }
            | ServiceFault::NotReady { name, .. }
            | ServiceFault::Ended { name, .. } => name,
            ServiceFault::Sandbox { .. } => return Failure::Machine { message },
        };
        let said = self.logs.iter().find(|logs| logs.is_of(name)).map(ServiceLogs::end).unwrap_or_default();
        let message = if said.is_empty() { message } else { format!("{message}; it wrote: {said}") };
        Failure::Service { message }
    }
}

fn readiness(check: Option<&ReadyCheck>) -> Readiness {
    match check {
        None => Readiness::Started,
        Some(ReadyCheck::Tcp(port)) => Readiness::Answers(Probe::Tcp(*port)),
        Some(ReadyCheck::Http(HttpCheck { port, path })) => {
            Readiness::Answers(Probe::Http { port: *port, path: path.clone() })
        }
        Some(ReadyCheck::Command(argv)) => Readiness::Command(argv.clone()),
    }
}

/// Removes a folder of a command, if there is one.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    match disk::remove_tree(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
