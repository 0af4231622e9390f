//! Commands that serve another one while it runs.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::join_all;
use invariant::impossible;
use shim::{Cause, Limit, Over, Probe, wait_until};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::config::{Run, SlotConfig};
use crate::error::SandboxError;
use crate::outcome::{Ended, Outcome};
use crate::running::{Event, Running};
use crate::shared_network::SharedNetwork;
use crate::slot::Slot;

/// Pause between two runs of a command that asks whether a service is ready.
const CHECK_PAUSE: Duration = Duration::from_millis(50);
/// Time limit of one such run.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// A command that serves another one, in a slot and a folder of its own.
#[derive(Debug, Clone)]
pub struct Service {
    pub name: String,
    /// Its slot, whose network is replaced by that of the service.
    pub slot: SlotConfig,
    /// The network that it shares with the command that it serves, as it sees it.
    pub network: SharedNetwork,
    pub run: Run,
    /// Names of the services that must be ready before it starts. A name that is unknown counts as ready.
    pub after: Vec<String>,
    pub ready: Readiness,
    /// Maximum time from its start until it is ready.
    pub ready_within: Duration,
    /// Time between SIGTERM and the kill of all its processes.
    pub stop_grace: Duration,
}

/// When a service counts as ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// As soon as its process runs.
    Started,
    /// When a server at its address answers.
    Answers(Probe),
    /// When this command exits with code 0 in the sandbox of the service.
    Command(Vec<String>),
}

impl Readiness {
    /// The condition in words, for a service with this address.
    fn text(&self, address: Ipv4Addr) -> String {
        match self {
            Self::Started => "it runs".to_owned(),
            Self::Answers(Probe::Tcp(port)) => format!("it accepts connections on port {port} of {address}"),
            Self::Answers(Probe::Http { port, path }) => {
                format!("it answers http://{address}:{port}{path} with a status from 200 to 399")
            }
            Self::Command(argv) => format!("`{}` exits with code 0", argv.join(" ")),
        }
    }
}

/// Why a command has no services.
#[derive(Debug, thiserror::Error)]
pub enum ServiceFault {
    /// The command of a service is at fault.
    #[error("the service {name} cannot be started: {message}")]
    NotStarted { name: String, message: String },
    #[error("the service {name} was not ready within {} s: it counts as ready when {}", within.as_secs_f64(), ready.text(*address))]
    NotReady { name: String, ready: Readiness, address: Ipv4Addr, within: Duration },
    /// The command that asks whether it is ready is at fault.
    #[error("the command that says whether the service {name} is ready cannot be started: {message}")]
    NotChecked { name: String, message: String },
    /// It ended without being stopped.
    #[error("the service {name} {}", how(*cause, *exit_code))]
    Ended { name: String, cause: Cause, exit_code: i32 },
    /// The machine failed, not the service.
    #[error("the sandbox of the service {name} failed")]
    Sandbox {
        name: String,
        #[source]
        source: SandboxError,
    },
}

/// How the command of a service ended, for a message.
fn how(cause: Cause, exit_code: i32) -> String {
    match cause {
        Cause::Ended | Cause::Killed => format!("ended with exit code {exit_code}"),
        Cause::Deadline => "was killed at its time limit".to_owned(),
        Cause::OutOfMemory => "ran out of memory".to_owned(),
        Cause::OutputTooLarge(_, bytes) => format!("was killed after it wrote {bytes} bytes of output"),
        Cause::OverLimit(Over { limit, allowed, used }) => {
            let unit = match limit {
                Limit::Cpu => "ms of processor time",
                Limit::Memory => "bytes of memory",
                Limit::Processes => "processes",
                Limit::Disk => "bytes of disk",
                Limit::Files => "files",
            };
            format!("was killed because it used {used} of {allowed} {unit}")
        }
    }
}

/// How a service ended.
#[derive(Debug)]
pub struct ServiceEnd {
    pub name: String,
    /// Its usage, if its command ran.
    pub ended: Option<Ended>,
    /// Why it ended, unless it was stopped: also if it ended just before.
    pub fault: Option<ServiceFault>,
}

/// How services are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// By SIGTERM, and after the grace of each service by SIGKILL.
    Gently,
    /// By SIGKILL, without a grace.
    AtOnce,
}

/// The services of one command, which run until they end or are stopped. Dropping it kills them.
pub struct Services {
    running: JoinSet<ServiceEnd>,
    ready: Vec<watch::Receiver<bool>>,
    ended: Vec<ServiceEnd>,
    stop: watch::Sender<Option<StopMode>>,
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

impl Services {
    /// Starts the services, each in a task of the current runtime.
    pub fn of(all: Vec<Service>) -> Self {
        let stop = watch::Sender::new(None);
        let senders: Vec<(String, watch::Sender<bool>)> =
            all.iter().map(|service| (service.name.clone(), watch::Sender::new(false))).collect();
        let ready = senders.iter().map(|(_, sender)| sender.subscribe()).collect();
        let before = |service: &Service| -> Vec<watch::Receiver<bool>> {
            let is_before = |name: &String| service.after.contains(name);
            senders.iter().filter(|(name, _)| is_before(name)).map(|(_, sender)| sender.subscribe()).collect()
        };
        let before: Vec<_> = all.iter().map(before).collect();
        let mut running = JoinSet::new();
        for ((service, before), (_, ready)) in all.into_iter().zip(before).zip(senders) {
            let stop = stop.subscribe();
            running.spawn(serve(service, before, ready, stop));
        }
        Self { running, ready, ended: Vec::new(), stop }
    }

    /// Returns when all are ready. Fails if one of them ends.
    pub async fn ready(&mut self) -> Result<(), ServiceFault> {
        let mut all = self.ready.clone();
        let ready = join_all(all.iter_mut().map(is_ready));
        let all = tokio::select! {
            fault = fault(&mut self.running, &mut self.ended) => return Err(fault),
            all = ready => all,
        };
        if all.contains(&false) { Err(self.fault().await) } else { Ok(()) }
    }

    /// Returns when a service has ended without being stopped; never if there is none.
    pub async fn fault(&mut self) -> ServiceFault {
        fault(&mut self.running, &mut self.ended).await
    }

    /// Stops all services; returns how each of them ended, when all their processes are dead.
    pub async fn stop(&mut self, mode: StopMode) -> Vec<ServiceEnd> {
        self.stop.send_replace(Some(mode));
        while let Some(end) = next_end(&mut self.running).await {
            self.ended.push(end);
        }
        std::mem::take(&mut self.ended)
    }
}

/// Returns when a service is ready, or with `false` when it has ended before.
async fn is_ready(ready: &mut watch::Receiver<bool>) -> bool {
    ready.wait_for(|ready| *ready).await.is_ok()
}

/// How the next service ended; `None` if none is left.
async fn next_end(running: &mut JoinSet<ServiceEnd>) -> Option<ServiceEnd> {
    Some(match running.join_next().await? {
        Ok(end) => end,
        Err(error) => {
            impossible!("the task of a service ended: {error}");
            let (name, source) = ("of a command".to_owned(), SandboxError::Resources(error.to_string()));
            ServiceEnd {
                name: name.clone(),
                ended: None,
                fault: Some(ServiceFault::Sandbox { name, source }),
            }
        }
    })
}

async fn fault(running: &mut JoinSet<ServiceEnd>, ended: &mut Vec<ServiceEnd>) -> ServiceFault {
    loop {
        let Some(mut end) = next_end(running).await else { return std::future::pending().await };
        let fault = end.fault.take();
        ended.push(end);
        if let Some(fault) = fault {
            return fault;
        }
    }
}

/// Returns when services are to be stopped, and how. `before` is what is known already.
async fn stopped(stop: &mut watch::Receiver<Option<StopMode>>, before: Option<StopMode>) -> StopMode {
    match stop.wait_for(|mode| mode.is_some() && *mode != before).await.ok().and_then(|mode| *mode) {
        Some(mode) => mode,
        // Without a sender they are dropped soon.
        None => std::future::pending().await,
    }
}

/// Runs a service when those `before` it are ready, until it ends or is stopped.
async fn serve(
    service: Service,
    mut before: Vec<watch::Receiver<bool>>,
    ready: watch::Sender<bool>,
    mut stop: watch::Receiver<Option<StopMode>>,
) -> ServiceEnd {
    let name = service.name.clone();
    let all = join_all(before.iter_mut().map(is_ready));
    let is_stopped = tokio::select! {
        _ = stopped(&mut stop, None) => true,
        // Without an answer of one of them this one is dropped soon.
        all = all => all.contains(&false),
    };
    if is_stopped {
        return ServiceEnd { name, ended: None, fault: None };
    }
    let run = async {
        let mut slot = service.start_slot(service.slot.name.clone()).await?;
        let ended = attend(&service, &mut slot, &ready, &mut stop).await;
        slot.stop().await?;
        ended
    };
    match run.await {
        Ok((ended, fault)) => ServiceEnd { name, ended, fault },
        Err(source) => {
            let fault = Some(ServiceFault::Sandbox { name: name.clone(), source });
            ServiceEnd { name, ended: None, fault }
        }
    }
}

async fn attend(
    service: &Service,
    slot: &mut Slot,
    ready: &watch::Sender<bool>,
    stop: &mut watch::Receiver<Option<StopMode>>,
) -> Result<(Option<Ended>, Option<ServiceFault>), SandboxError> {
    let mut running = slot.run(service.run.clone()).await?;
    if let Some(outcome) = started(&mut running).await? {
        return Ok(end_of(service, outcome, false));
    }
    let mut check = service.check_slot().await?;
    let ended = until_the_end(service, running, check.as_mut(), ready, stop).await;
    if let Some(check) = check {
        // Only then can its control groups be removed.
        check.stop().await?;
    }
    ended
}

async fn until_the_end(
    service: &Service,
    mut running: Running<'_>,
    check: Option<&mut Slot>,
    ready: &watch::Sender<bool>,
    stop: &mut watch::Receiver<Option<StopMode>>,
) -> Result<(Option<Ended>, Option<ServiceFault>), SandboxError> {
    let name = || service.name.clone();
    let mut becoming_ready = Box::pin(service.becomes_ready(check));
    let deadline = Instant::now().checked_add(service.ready_within);
    let (mut is_ready, mut failure, mut mode) = (false, None, None);
    loop {
        tokio::select! {
            event = running.next_event() => match event? {
                Event::Started(_) => {}
                Event::Done(Outcome::Ended(ended)) if failure.is_some() => return Ok((Some(ended), failure)),
                Event::Done(outcome) => return Ok(end_of(service, outcome, mode.is_some())),
            },
            answered = &mut becoming_ready, if !is_ready && failure.is_none() => match answered? {
                Ok(()) => {
                    is_ready = true;
                    ready.send_replace(true);
                }
                Err(message) => {
                    failure = Some(ServiceFault::NotChecked { name: name(), message });
                    running.control().kill(Duration::ZERO).await?;
                }
            },
            () = until(deadline), if !is_ready && failure.is_none() && mode.is_none() => {
                let (ready, within) = (service.ready.clone(), service.ready_within);
                let address = service.network.address();
                failure = Some(ServiceFault::NotReady { name: name(), ready, address, within });
                running.control().kill(Duration::ZERO).await?;
            }
            asked = stopped(stop, mode), if mode != Some(StopMode::AtOnce) => {
                mode = Some(asked);
                let grace = match asked {
                    StopMode::Gently => service.stop_grace,
                    StopMode::AtOnce => Duration::ZERO,
                };
                running.control().kill(grace).await?;
            }
        }
    }
}

/// Waits for the start of a command; returns how it ended if it does not start.
async fn started(running: &mut Running<'_>) -> Result<Option<Outcome>, SandboxError> {
    Ok(match running.next_event().await? {
        Event::Started(_) => None,
        Event::Done(outcome) => Some(outcome),
    })
}

fn end_of(service: &Service, outcome: Outcome, is_stopped: bool) -> (Option<Ended>, Option<ServiceFault>) {
    let name = service.name.clone();
    match outcome {
        Outcome::NotStarted { message, .. } => (None, Some(ServiceFault::NotStarted { name, message })),
        Outcome::Ended(ended) => {
            // It may have ended before the request reached it.
            let was_stopped = is_stopped && ended.cause == Cause::Killed;
            let fault = ServiceFault::Ended { name, cause: ended.cause, exit_code: ended.exit_code };
            (Some(ended), (!was_stopped).then_some(fault))
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl Service {
    /// Returns when it is ready. The inner error is why that cannot be found out.
    async fn becomes_ready(&self, check: Option<&mut Slot>) -> Result<Result<(), String>, SandboxError> {
        match (&self.ready, check) {
            (Readiness::Started, _) => Ok(Ok(())),
            (Readiness::Answers(probe), _) => {
                let pid = self.network.pid()?;
                let address = self.network.address();
                let answered = wait_until(&self.slot.program, pid, (address, probe)).await;
                answered.map_err(|source| SandboxError::file("executing", &self.slot.program, source))?;
                Ok(Ok(()))
            }
            (Readiness::Command(argv), Some(slot)) => self.check_succeeds(slot, argv).await,
            (Readiness::Command(_), None) => {
                impossible!("the check of the service {} has no slot", self.name);
                Ok(Err("it has no sandbox".to_owned()))
            }
        }
    }

    /// The slot of the command that says whether it is ready. No service has such a name: theirs have small letters.
    async fn check_slot(&self) -> Result<Option<Slot>, SandboxError> {
        if !matches!(self.ready, Readiness::Command(_)) {
            return Ok(None);
        }
        self.start_slot(format!("{}-CHECK", self.slot.name)).await.map(Some)
    }

    async fn start_slot(&self, name: String) -> Result<Slot, SandboxError> {
        let network = Some(self.network.clone());
        Slot::start(SlotConfig { name, network, ..self.slot.clone() }).await
    }

    /// Returns when this command has exited with code 0. The inner error is why it cannot run.
    async fn check_succeeds(
        &self,
        slot: &mut Slot,
        argv: &[String],
    ) -> Result<Result<(), String>, SandboxError> {
        let beside = |path: &PathBuf| path.with_extension("check");
        let run = Run {
            argv: argv.to_vec(),
            stdout: beside(&self.run.stdout),
            stderr: beside(&self.run.stderr),
            timeout: Some(CHECK_TIMEOUT),
            kill_grace: Duration::ZERO,
            ..self.run.clone()
        };
        loop {
            let outcome = slot.run(run.clone()).await?.finish().await?;
            match outcome {
                Outcome::Ended(ended) if ended.exit_code == 0 => return Ok(Ok(())),
                Outcome::Ended(_) => {}
                // A command that is not there will not be there later.
                Outcome::NotStarted { message, .. } => return Ok(Err(message)),
            }
            sleep(CHECK_PAUSE).await;
        }
    }
}
