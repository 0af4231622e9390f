//! Execution of an action in a slot: prepares the input root, runs the command, stores the outputs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bus::{FarmClock, millis};
use cas::Cas;
use command_services::{Failure, Used, sandbox_limits};
use images::Image;
use input_root::{CollectError, Collected, InputRoot, OutputSpec};
use invariant::Present as _;
use model::{
    BlobDigest, DigestFunction, ExecutionOutcome, ExecutionRecord, ExecutionStage, Measured, StoredResult,
    TaskLimits,
};
use policy::actions::{CopyEnd, deadlock, joint_exit_code};
use prost::Message as _;
use reapi::execution::ActionResult;
use sandbox::{Cause, Ended, Event, ImageRoot, JoinedStreams, Outcome, Run};
use sensors::{Alone, Together};
use service::{Step, crash_point};
use telemetry::metrics::{Histogram, Label, observe};
use trace::CopyTimes;
use tracing::warn;

use crate::{
    devices::Assigned,
    held_actions::{Outputs, Work},
    interactor::{ActionInteractor, Roots},
    interference::InterferenceWatch,
    limits::{self, ExceededLimit},
    memory,
    metadata::{Times, metadata},
    outcome::{Fault, Ran, blamed_service, verdict},
    progress::Progress,
    provenance::provenance,
    services::ActionServices,
    shared::Shared,
    shared_services::Joined,
    slot_threads::SlotThread,
    spec::Spec,
};

/// Maximum size of an encoded result on the bus, in bytes; a larger one is stored in the CAS.
const INLINE_MAX: usize = 64 << 10;

/// Observes how long an action waited that starts at `started`. Further copies of a slow action did not keep it waiting.
fn observe_queue_time(record: &ExecutionRecord, started: SystemTime) {
    if record.so_far.hedges == 0 {
        let waited = started.duration_since(record.waits_since().into()).unwrap_or_default();
        let band = record.urgency().band;
        observe(Histogram::ActionQueueSeconds, &[(Label::Priority, band.as_str())], waited);
    }
}

/// What an execution leaves, however it ends.
#[derive(Default)]
pub(crate) struct Left {
    /// Its input root, if there is one.
    pub(crate) root: Option<InputRoot>,
    /// Times of its phases.
    pub(crate) times: CopyTimes,
    /// Its devices, which others may get when its processes are dead.
    pub(crate) devices: Assigned,
    /// Its image, of which no file is removed while this exists.
    pub(crate) image: Option<Arc<Image>>,
    /// The commands that serve its command.
    pub(crate) services: Option<ActionServices>,
    /// The command that its command talks with.
    pub(crate) interactor: Option<ActionInteractor>,
    /// Its turn on the machine, which lasts until its processes are dead.
    pub(crate) turn: Option<Turn>,
}

/// What an action may run beside.
pub(crate) enum Turn {
    Together(#[expect(dead_code, reason = "held until it is dropped")] Together),
    Alone(#[expect(dead_code, reason = "held until it is dropped")] Alone),
}

impl Turn {
    /// Waits for the turn of an action.
    async fn of(shared: &Shared, work: &Work) -> Self {
        if work.claimed.record.execution.needs.exclusive {
            Self::Alone(shared.machine.alone(shared.settings.alone_patience).await)
        } else {
            Self::Together(shared.machine.together().await)
        }
    }
}

/// Executes an action. `fetched` is the time already spent on fetching its inputs.
pub(crate) async fn execute(
    shared: &Shared,
    work: &Work,
    (slot_thread, left): (&mut SlotThread, &mut Left),
    fetched: Duration,
    progress: &Progress<'_>,
) -> Result<CopyEnd, Fault> {
    let execution = &work.claimed.record.execution;
    let clock = shared.context.bus.clock();
    let begun = clock.system_time();
    let mut times = Times { queued: execution.accepted_at_ms.into(), ..Times::at(begun) };
    // The fetch counts as if it ended now: the wait for a slot belongs to neither step.
    times.started = begun.checked_sub(fetched).unwrap_or(begun);
    times.fetch_started = times.started;
    left.times.started = Some(times.started);
    observe_queue_time(&work.claimed.record, times.started);
    progress.enter(ExecutionStage::Fetching).await;
    let spec = Spec::read(&shared.cas, execution, &shared.settings.pool_properties).await?;
    if spec.network && !shared.settings.action_network {
        // Schedulers do not send it here; the record of an earlier version may lack the requirement.
        return Err(Fault::precondition(
            "this executor gives no network to actions (action_network)".to_owned(),
        ));
    }
    left.devices = shared.devices.assign(&work.claimed.size.custom).map_err(|why| Fault::unassigned(&why))?;
    left.image.clone_from(&work.images.own);
    let outputs = OutputSpec::of(&spec.command).map_err(|error| Fault::unprepared(&error))?;
    let roots = Roots::of(shared, &spec, execution.action.function).await?;
    let prepared = shared.inputs.prepare(slot_thread.work(), &roots.command, &outputs).await;
    let prepared = prepared.map_err(|error| Fault::unprepared(&error))?;
    let root = &*left.root.insert(prepared.watched(spec.meets_others()));
    times.fetch_ended = clock.system_time();
    left.times.inputs_ready = Some(times.fetch_ended);
    // The clock may be set back between two steps.
    let took = |from: SystemTime, to: SystemTime| to.duration_since(from).unwrap_or_default();
    observe(Histogram::ActionFetchSeconds, &[], took(times.fetch_started, times.fetch_ended));
    crash_point(Step::ActionInputsReady);
    let memory = memory::limit(&work.claimed, shared.settings.action_limits.memory_bytes);
    if !spec.services.is_empty() {
        let place = slot_thread.place_of_services();
        let services = left.services.insert(ActionServices::create(&spec, &place).await?);
        services.prepare(shared, &spec, &place, (memory, &work.images)).await?;
    }
    if let Some(asked) = &spec.interactor {
        let given = (left.image.as_ref(), memory);
        let asked = (&spec, asked, &roots);
        left.interactor = Some(ActionInteractor::prepare(shared, asked, slot_thread, given).await?);
    }
    left.turn = Some(Turn::of(shared, work).await);
    let measured = execution.needs.measured;
    if let Some(services) = &mut left.services {
        services.start(shared, execution.action.function).await?;
    }
    if let Some(interactor) = &mut left.interactor {
        interactor.start(shared, execution.action.function).await?;
    }
    let limits = limits::effective(spec.limits, spec.timeout, &shared.settings.action_limits);
    let mut joined = join(shared, work, &spec)?;
    let beside = (left.services.as_mut(), joined.as_mut(), left.interactor.as_mut());
    let given = (&left.devices, left.image.as_ref(), beside);
    let watch = measured.then(|| InterferenceWatch::start(&slot_thread.config().cores.processors));
    let mut ended = command(shared, work, slot_thread, (&spec, &limits, given), root, progress).await?;
    let watched = watch.map(InterferenceWatch::end);
    let beside = (left.services.as_mut(), joined, left.interactor.as_ref());
    let of_services = end_services(shared, beside, &mut ended, execution.action.function).await?;
    let interactor = left.interactor.as_ref().and_then(ActionInteractor::ended);
    let own = ended.cpu + interactor.map_or(Duration::ZERO, |ended| ended.cpu);
    let interference = watched.and_then(|watched| watched.beside(own));
    crash_point(Step::ActionCommandEnded);
    let ran = Ran { ended: in_farm_time(clock, &ended), interference };
    left.times.command = Some((ran.ended.started_at, ran.ended.ended_at));
    let beside = interactor.map_or(0, |ended| ended.peak_memory_bytes);
    shared.usage.set_memory(&work.key(), ended.peak_memory_bytes.saturating_add(beside));
    let band = work.claimed.record.urgency().band;
    observe(Histogram::ActionRunSeconds, &[(Label::Priority, band.as_str())], ended.wall);
    progress.enter(ExecutionStage::Uploading).await;
    times.upload_started = clock.system_time();
    let console = slot_thread.console(&ended);
    let inputs = shared.inputs.storing_by(shared.store_of(execution));
    let collected = inputs.collect(root, &outputs, &console, execution.action.function).await;
    times.upload_ended = clock.system_time();
    observe(Histogram::ActionUploadSeconds, &[], took(times.upload_started, times.upload_ended));
    conclude(shared, work, (&ran, interactor, &limits, of_services), (collected, &spec), times).await
}

/// Stops the services of a command that has ended, and keeps what those beside it wrote.
async fn end_services(
    shared: &Shared,
    (services, joined, interactor): (Option<&mut ActionServices>, Option<Joined>, Option<&ActionInteractor>),
    ended: &mut Ended,
    function: DigestFunction,
) -> Result<OfServices, Fault> {
    let mut of_services = OfServices::default();
    if let Some(services) = services {
        let stopped = services.stop().await;
        count_services(ended, &stopped.used);
        of_services.failure = stopped.failure;
        of_services.logs = services.keep_logs(shared, function).await?;
    }
    if let Some(mut joined) = joined.filter(|_| ended.cause == Cause::Ended && ended.exit_code != 0) {
        of_services.failure = joined.failed_by_now().await.map(|message| Failure::Service { message });
    }
    if let Some(interactor) = interactor {
        of_services.logs = interactor.keep_logs(shared, function).await?;
    }
    Ok(of_services)
}

/// Adds what the services of a command used to its own usage.
fn count_services(ended: &mut Ended, used: &Used) {
    ended.cpu += used.cpu;
    ended.peak_memory_bytes = ended.peak_memory_bytes.saturating_add(used.peak_memory_bytes);
    ended.switches += used.switches;
}

/// The shared services that an action uses; `None` if it uses none.
fn join(shared: &Shared, work: &Work, spec: &Spec) -> Result<Option<Joined>, Fault> {
    let Some((_, id)) = spec.shared_services else { return Ok(None) };
    let joined = shared.services_here.join(id, &work.claimed.record.execution.group);
    let ended = || Fault::Machine { reason: "the shared services do not run here any more".to_owned() };
    joined.map(Some).ok_or_else(ended)
}

/// What runs beside a command: those that serve it, those that serve others too, or the one that it talks with.
type Beside<'a> = (Option<&'a mut ActionServices>, Option<&'a mut Joined>, Option<&'a mut ActionInteractor>);

/// What a command gets: devices, its image, and what runs beside it.
type Given<'a> = (&'a Assigned, Option<&'a Arc<Image>>, Beside<'a>);

/// Runs the command until it and its interactor end, or until one of the commands beside it fails.
async fn command(
    shared: &Shared,
    work: &Work,
    slot_thread: &mut SlotThread,
    (spec, limits, (devices, image, (services, joined, interactor))): (&Spec, &TaskLimits, Given<'_>),
    root: &InputRoot,
    progress: &Progress<'_>,
) -> Result<Ended, Fault> {
    let settings = &shared.settings;
    let renewed = slot_thread.renew_outputs(spec.meets_others());
    let (stdout, stderr) = renewed.map_err(|error| Fault::machine(&error))?;
    let mut env = spec.environment();
    shared.devices.put_variables(devices, &mut env);
    if let Some(image) = image {
        env = image.complete(env);
    }
    let memory_bytes_max = memory::limit(&work.claimed, settings.action_limits.memory_bytes);
    let run = Run {
        argv: spec.command.arguments.clone(),
        env,
        cwd: spec.command.working_directory.clone().into(),
        root: root.path().to_owned(),
        root_is_input: shared.pool.root_is_input,
        image: image.map(|image| image_root(image, spec, work, memory_bytes_max)),
        devices: shared.devices.nodes(devices),
        shares_network: spec.network,
        timeout: Some(spec.timeout),
        kill_grace: settings.kill_grace,
        stdout: stdout.clone(),
        stderr: stderr.clone(),
        output_bytes_max: limits
            .output_bytes
            .present_or(settings.action_output_bytes_max, "an action has no limit of output"),
        memory_bytes_max,
        limits: sandbox_limits(limits),
    };
    let kills = shared.oom.before();
    let own = services.as_ref().map(|services| services.network());
    let slot = match own.or_else(|| joined.as_ref().map(|joined| joined.network.clone())) {
        None => slot_thread.slot().await,
        Some(network) => slot_thread.slot_in(network).await,
    };
    let slot = slot.map_err(|error| Fault::machine(&error))?;
    let (mut interactor, function) = (interactor, work.claimed.record.execution.action.function);
    let streams = interactor.as_mut().and_then(|interactor| interactor.take_streams());
    let running = watch(shared, work, slot, (run, streams), Outputs { stdout, stderr }, progress);
    let outcome = match (services, joined, interactor) {
        (None, None, None) => running.await,
        (None, None, Some(interactor)) => interactor.beside(running, shared, function).await?,
        (Some(services), _, _) => tokio::select! {
            outcome = running => outcome,
            fault = services.fault(shared, function) => return Err(fault),
        },
        (None, Some(joined), _) => tokio::select! {
            outcome = running => outcome,
            message = joined.failed() => return Err(Fault::precondition(message)),
        },
    };
    match outcome {
        Ok(Outcome::Ended(mut ended)) => {
            // If the command has a control group, the sandbox has already determined this.
            if ended.cause == Cause::Ended && shared.oom.explain(ended.exit_code, kills) {
                ended.cause = Cause::OutOfMemory;
            }
            Ok(ended)
        }
        Ok(Outcome::NotStarted { why, message }) => Err(Fault::not_started(why, message)),
        Err(error) => {
            warn!(key = %work.key(), error = telemetry::error_chain(&error), "the sandbox failed");
            slot_thread.break_slot();
            Err(Fault::machine(&error))
        }
    }
}

/// The image as the root of a command. What the command writes into its folders is in memory, which counts as its own.
fn image_root(image: &Arc<Image>, spec: &Spec, work: &Work, memory_bytes_max: Option<u64>) -> ImageRoot {
    let bytes = || memory_bytes_max.unwrap_or(work.claimed.size.memory_bytes);
    ImageRoot { writable_bytes: spec.writable_root.then(bytes), ..image.root() }
}

async fn watch(
    shared: &Shared,
    work: &Work,
    slot: &mut sandbox::Slot,
    (run, streams): (Run, Option<JoinedStreams>),
    outputs: Outputs,
    progress: &Progress<'_>,
) -> Result<Outcome, sandbox::SandboxError> {
    let mut running = match streams {
        Some(streams) => slot.run_joined(run, streams).await?,
        None => slot.run(run).await?,
    };
    shared.actions.set_outputs(&work.key(), &work.handle, outputs);
    loop {
        match running.next_event().await? {
            Event::Started(_) => progress.enter(ExecutionStage::Running).await,
            Event::Done(outcome) => return Ok(outcome),
        }
    }
}

/// Converts the times from the local clock to the clock of the farm.
fn in_farm_time(clock: &FarmClock, ended: &Ended) -> Ended {
    Ended { started_at: clock.of_local(ended.started_at), ended_at: clock.of_local(ended.ended_at), ..*ended }
}

/// How the command and its interactor ended, the limits of the command, and what is left of those beside it.
type OfRun<'a> = (&'a Ran, Option<&'a Ended>, &'a TaskLimits, OfServices);

/// What is left of the services or the interactor of a command that ended.
#[derive(Default)]
struct OfServices {
    logs: Vec<(String, BlobDigest)>,
    /// Why one of the services had ended before.
    failure: Option<Failure>,
}

impl OfServices {
    /// The reason why a command did not succeed, if it is one of its services: the command may notice its end first.
    fn is_to_blame(&self, ended: &Ended) -> Option<(i32, String)> {
        let has_failed = ended.cause == Cause::Ended && ended.exit_code != 0;
        match &self.failure {
            Some(Failure::Service { message }) if has_failed => {
                Some(blamed_service(message, ended.exit_code))
            }
            Some(Failure::Service { .. } | Failure::Machine { .. }) | None => None,
        }
    }
}

/// Determines how the copy ended after its command has ended; a success is cached first.
async fn conclude(
    shared: &Shared,
    work: &Work,
    (ran, interactor, limits, of_services): OfRun<'_>,
    (collected, spec): (Result<Collected, CollectError>, &Spec),
    mut times: Times,
) -> Result<CopyEnd, Fault> {
    let execution = &work.claimed.record.execution;
    let ended = &ran.ended;
    let broken = ExceededLimit::find(ended, limits);
    let mut status = match of_services.is_to_blame(ended) {
        Some(blamed) => Some(blamed),
        None => verdict(ended, broken.as_ref())?,
    };
    if let (Some((_, message)), Some(hint)) = (&mut status, stuck(ended, interactor)) {
        *message = format!("{message}; {hint}");
    }
    let collected = match (collected, &status) {
        (Ok(collected), _) => collected,
        // The reason for killing the command matters more than its outputs.
        (Err(error), Some((code, message))) => {
            let message = format!("{message}; {}", telemetry::error_chain(&error));
            return Ok(end(shared, work, ran, ExecutionOutcome::without_run(*code, message)));
        }
        (Err(error), None) if error.is_the_actions() => return Err(Fault::precondition(error.to_string())),
        (Err(error), None) => return Err(Fault::uncollected(&error)),
    };
    crash_point(Step::ActionOutputsKept);
    times.completed = shared.context.bus.clock().system_time();
    let exit_code =
        interactor.map_or(ended.exit_code, |other| joint_exit_code(ended.exit_code, other.exit_code));
    let metadata = metadata(shared.id.as_str(), &times, (ran, interactor), broken.as_ref());
    let result = collected.into_result(exit_code, metadata);
    let cacheable = status.is_none() && exit_code == 0 && !execution.do_not_cache;
    let store = shared.store_of(execution);
    if cacheable {
        let mut entry = result.clone();
        reapi::provenance::set(&mut entry, &provenance(shared, work, spec));
        let kept = store.put_action(&execution.instance, &execution.action, &entry).await;
        if let Err(error) = kept {
            // The result is valid, it is only not cached.
            warn!(key = %execution.key(), error = telemetry::error_chain(&error), "failed to cache a result");
        }
        crash_point(Step::ActionCached);
    }
    let mut server_logs = of_services.logs;
    if status.is_some() {
        server_logs.extend(logs(&result, execution.action.function));
    }
    let (code, message) = status.unwrap_or_default();
    let outcome = ExecutionOutcome {
        exit_code: Some(result.exit_code),
        result: Some(stored(&store, &result).await?),
        server_logs,
        ..ExecutionOutcome::without_run(code, message)
    };
    Ok(end(shared, work, ran, outcome))
}

/// What is said of a command that was killed at its time limit while its interactor still ran.
fn stuck(command: &Ended, interactor: Option<&Ended>) -> Option<String> {
    // It started before its command. Once that is killed, it may end by itself, at the end of its input.
    let interactor = interactor.filter(|it| it.cause == Cause::Killed || it.wall >= command.wall)?;
    let is_late = command.cause == Cause::Deadline;
    is_late.then(|| deadlock(command.wall, [command.cpu, interactor.cpu])).flatten()
}

/// The end of the copy with this outcome, the executor, and the measured usage.
fn end(shared: &Shared, work: &Work, ran: &Ran, outcome: ExecutionOutcome) -> CopyEnd {
    let ended = &ran.ended;
    let measured = Measured {
        wall_ms: millis(ended.wall),
        cpu_ms: millis(ended.cpu),
        memory_bytes: ended.peak_memory_bytes,
        wall_us: micros(ended.wall),
        cpu_us: micros(ended.cpu),
        voluntary_switches: ended.switches.voluntary,
        involuntary_switches: ended.switches.involuntary,
    };
    let outcome = ExecutionOutcome {
        executor: Some(shared.id.clone()),
        measured: Some(measured),
        interference: ran.interference.map(Box::new),
        ..outcome
    };
    if ended.cause != Cause::OutOfMemory {
        return CopyEnd::Outcome(outcome);
    }
    let limit = memory::limit(&work.claimed, shared.settings.action_limits.memory_bytes);
    let had = limit.unwrap_or_else(|| work.claimed.size.memory_bytes.max(ended.peak_memory_bytes));
    CopyEnd::OutOfMemory { outcome, had, most: shared.pool.capacity.memory_bytes }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The output that a command had written when it was killed.
fn logs(result: &ActionResult, function: DigestFunction) -> Vec<(String, BlobDigest)> {
    let log = |name: &str, digest: Option<&reapi::execution::Digest>| {
        let empty = function.empty();
        let digest = digest.map_or(empty, |digest| {
            reapi::digest::from_proto(digest, function)
                .present_or(empty, "a digest of an output is malformed")
        });
        (name.to_owned(), digest)
    };
    vec![log("stdout", result.stdout_digest.as_ref()), log("stderr", result.stderr_digest.as_ref())]
}

pub(crate) async fn stored(store: &Cas, result: &ActionResult) -> Result<StoredResult, Fault> {
    let encoded = result.encode_to_vec();
    if encoded.len() <= INLINE_MAX {
        return Ok(StoredResult::Inline(STANDARD.encode(encoded)));
    }
    let kept = store.put_bytes(DigestFunction::Sha256, encoded.into()).await;
    kept.map(StoredResult::Blob).map_err(|error| Fault::machine(&error))
}
