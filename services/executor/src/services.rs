//! The services of an action: commands that serve its command while it runs, each in a slot and input root of its own.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use ::images::{Image, PullProgress};
use input_root::{InputRoot, OutputSpec};
use model::{BlobDigest, DigestFunction, HttpCheck, ReadyCheck, ServiceName, ServiceRequest, TaskLimits};
use sandbox::{Ended, Probe, Readiness, Run, Service, ServiceFault, Services, SharedNetwork, StopMode};
use telemetry::metrics::{Histogram, observe};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::{image, limits, outcome::Fault, shared::Shared, slot_threads::SlotThread, spec::Spec};

/// The search path of programs if neither a service nor its image has one.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The file with the names of the services, beside their folders: no service has a dot in its name.
const HOSTS: &str = "etc.hosts";
/// Time limit for services to end after they were killed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum bytes at the end of a log that a message repeats.
const SHOWN_BYTES: u64 = 500;

/// The services of an action, and what they use.
pub(crate) struct ActionServices {
    services: Services,
    network: SharedNetwork,
    folder: PathBuf,
    logs: Vec<(ServiceName, [PathBuf; 2])>,
    roots: Vec<InputRoot>,
}

impl ActionServices {
    /// Creates the folder and the network of the services. They need [`ActionServices::end`] from then on.
    pub(crate) async fn create(spec: &Spec, slot_thread: &SlotThread) -> Result<Self, Fault> {
        let folder = slot_thread.folder().join("services");
        let failed = |error: io::Error| Fault::machine(&error);
        remove(&folder).and_then(|()| fs::create_dir(&folder)).map_err(failed)?;
        let names: Vec<String> =
            spec.services.iter().flat_map(ServiceRequest::hosts).map(str::to_owned).collect();
        let program = &slot_thread.config().program;
        let network = SharedNetwork::create(program, folder.join(HOSTS), &names).await;
        let network = network.map_err(|error| Fault::machine(&error))?;
        let services = Services::of(Vec::new());
        Ok(Self { services, network, folder, logs: Vec::new(), roots: Vec::new() })
    }

    /// Prepares the input roots and images. `memory_bytes` is the limit of services without one.
    pub(crate) async fn prepare(
        &mut self,
        shared: &Shared,
        spec: &Spec,
        slot_thread: &SlotThread,
        (memory_bytes, progress): (Option<u64>, &PullProgress),
    ) -> Result<(), Fault> {
        let mut all = Vec::with_capacity(spec.services.len());
        for request in &spec.services {
            all.push(self.service(shared, (spec, request), slot_thread, (memory_bytes, progress)).await?);
        }
        self.services = Services::of(all);
        Ok(())
    }

    /// The network of the services and the command.
    pub(crate) fn network(&self) -> SharedNetwork {
        self.network.clone()
    }

    async fn service(
        &mut self,
        shared: &Shared,
        (spec, request): (&Spec, &ServiceRequest),
        slot_thread: &SlotThread,
        (memory_bytes, progress): (Option<u64>, &PullProgress),
    ) -> Result<Service, Fault> {
        let folder = self.folder.join(request.name.as_str());
        let work = folder.join("work");
        fs::create_dir_all(&work).map_err(|error| Fault::machine(&error))?;
        let root = shared.inputs.prepare(&work, &spec.input_root, &OutputSpec::default()).await;
        let root = root.map_err(|error| Fault::unprepared(&error))?;
        let path = root.path().to_owned();
        self.roots.push(root);
        let image = match &request.image {
            Some(reference) => Some(image::named(shared, reference, progress).await?),
            None => None,
        };
        let argv = match &image {
            Some(image) if request.command.is_empty() => image.config.command.clone(),
            Some(_) | None => request.command.clone(),
        };
        if argv.is_empty() {
            let message = format!(
                "the image of the service {} has neither an entry point nor a command: give the service a `command`",
                request.name
            );
            return Err(Fault::precondition(message));
        }
        let mut env: Vec<(String, String)> = request.env.clone().into_iter().collect();
        if let Some(image) = &image {
            env = image::environment(env, image);
        }
        if !env.iter().any(|(name, _)| name == "PATH") {
            env.push(("PATH".to_owned(), PATH.to_owned()));
        }
        let limits = most(request.limits, &shared.settings.action_limits);
        let output_bytes_max = limits.output_bytes.unwrap_or(shared.settings.action_output_bytes_max);
        let [stdout, stderr] = ["stdout", "stderr"].map(|name| folder.join(name));
        self.logs.push((request.name.clone(), [stdout.clone(), stderr.clone()]));
        let run = Run {
            argv,
            env,
            cwd: PathBuf::new(),
            root: path,
            root_is_input: false,
            image: image.as_ref().map(Image::root),
            devices: Vec::new(),
            shares_network: false,
            timeout: limits.wall_ms.map(Duration::from_millis),
            // Limits are no request to end.
            kill_grace: Duration::ZERO,
            stdout,
            stderr,
            output_bytes_max,
            memory_bytes_max: limits.memory_bytes.or(memory_bytes),
            limits: limits::in_sandbox(&limits),
        };
        Ok(Service {
            name: request.name.to_string(),
            slot: slot_thread.slot_of_service(request.name.as_str(), work),
            network: self.network(),
            run,
            after: request.after.iter().map(ServiceName::to_string).collect(),
            ready: readiness(request.ready.as_ref()),
            ready_within: request.ready_within(),
            stop_grace: request.stop_grace(),
        })
    }

    /// Starts the services; returns when all are ready.
    pub(crate) async fn start(&mut self, shared: &Shared, function: DigestFunction) -> Result<(), Fault> {
        let begun = Instant::now();
        if let Err(fault) = self.services.ready().await {
            return Err(self.explain(shared, function, &fault).await);
        }
        observe(Histogram::ServicesReadySeconds, &[], begun.elapsed());
        Ok(())
    }

    /// Returns when a service has ended although the command still runs.
    pub(crate) async fn fault(&mut self, shared: &Shared, function: DigestFunction) -> Fault {
        let fault = self.services.fault().await;
        self.explain(shared, function, &fault).await
    }

    /// Stops the services as they ask for, and adds what they used to the usage of the command.
    pub(crate) async fn stop(&mut self, ended: &mut Ended) {
        for end in self.services.stop(StopMode::Gently).await {
            if let Some(ServiceFault::Sandbox { .. }) = &end.fault {
                warn!(service = end.name, fault = ?end.fault, "the sandbox of a service failed");
            }
            if let Some(used) = end.ended {
                ended.cpu += used.cpu;
                ended.peak_memory_bytes = ended.peak_memory_bytes.saturating_add(used.peak_memory_bytes);
                ended.switches += used.switches;
            }
        }
    }

    /// Stores what the services wrote, by the name of the service and of the stream. Empty outputs are left out.
    pub(crate) async fn keep_logs(
        &self,
        shared: &Shared,
        function: DigestFunction,
    ) -> Result<Vec<(String, BlobDigest)>, Fault> {
        let mut kept = Vec::new();
        for (name, [stdout, stderr]) in &self.logs {
            for (stream, path) in [("stdout", stdout), ("stderr", stderr)] {
                if fs::metadata(path).is_ok_and(|file| file.len() > 0) {
                    let stored = shared.cas.put_file(function, path, false).await;
                    let digest = stored.map_err(|error| Fault::machine(&error))?;
                    kept.push((format!("{name}.{stream}"), digest));
                }
            }
        }
        Ok(kept)
    }

    /// Kills what still runs and removes the files of the services. Returns whether all processes are dead.
    pub(crate) async fn end(mut self, shared: &Shared) -> bool {
        let is_dead = timeout(PATIENCE, self.services.stop(StopMode::AtOnce)).await.is_ok();
        if !is_dead {
            warn!(folder = %self.folder.display(), "the services of an action do not end in time");
            return false;
        }
        for root in self.roots {
            shared.inputs.release(root).await;
        }
        if let Err(error) = remove(&self.folder) {
            warn!(%error, folder = %self.folder.display(), "cannot remove the files of services");
        }
        true
    }

    /// The fault of the action, with the end of the service's output, and all of it as logs.
    async fn explain(&self, shared: &Shared, function: DigestFunction, fault: &ServiceFault) -> Fault {
        let message = telemetry::error_chain(fault);
        let name = match fault {
            ServiceFault::NotStarted { name, .. }
            | ServiceFault::NotChecked { name, .. }
            | ServiceFault::NotReady { name, .. }
            | ServiceFault::Ended { name, .. } => name,
            ServiceFault::Sandbox { .. } => return Fault::Machine { reason: message },
        };
        let log = self.logs.iter().find(|(other, _)| other.as_str() == name);
        let said: Vec<String> =
            log.into_iter().flat_map(|(_, paths)| paths).map(|path| end_of(path)).collect();
        let said = said.join("\n");
        let said = said.trim();
        let message = if said.is_empty() { message } else { format!("{message}; it wrote: {said}") };
        match self.keep_logs(shared, function).await {
            Ok(logs) => Fault::precondition(message).with_logs(logs),
            Err(fault) => fault,
        }
    }
}

/// The limits of a service: never more than the settings allow.
fn most(asked: TaskLimits, allowed: &TaskLimits) -> TaskLimits {
    let wall_ms = asked.wall_ms;
    let memory_bytes = asked.memory_bytes.into_iter().chain(allowed.memory_bytes).min();
    TaskLimits { wall_ms, memory_bytes, ..limits::effective(asked, Duration::ZERO, allowed) }
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

/// The end of a log, for a message.
pub(crate) fn end_of(path: &Path) -> String {
    let read = || {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    // A service that was not started has no log.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    match disk::remove_tree(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
