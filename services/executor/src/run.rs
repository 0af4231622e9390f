//! One action, from the offer to its result.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::FutureExt as _;
use input_root::{CollectError, Collected, InputError, InputRoot, OutputSpec};
use model::{
    BlobDigest, DigestFunction, Esu, Execution, ExecutionKey, ExecutionOffer, ExecutionOutcome,
    ExecutionStage, StoredResult,
};
use prost::Message as _;
use reapi::execution::ActionResult;
use sandbox::{Cause, Ended, Event, NotStarted, Outcome, Run};
use service::{Step, crash_point};
use telemetry::metrics::{Histogram, observe};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    Shared, finish,
    hands::{Hand, Outputs},
    metadata::{Times, metadata},
    outcome::{Fault, code},
    progress::Progress,
    spec::Spec,
    stages::Stage,
    usage,
};

/// Bytes of an encoded result on the bus at most; a larger one is kept in the store.
const INLINE_MAX: usize = 64 << 10;

/// Has what was offered run in the next free slot, and writes its result, unless it is stopped: then nobody wants one.
pub(crate) fn begin(shared: &Arc<Shared>, offer: ExecutionOffer, hand: Hand) {
    if shared.cas.config().backing.is_none() {
        give(shared, offer, hand, Duration::ZERO);
        return;
    }
    // What comes from afar is fetched before it takes a slot, many things at a time.
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let begun = Instant::now();
        fetch(&shared, &offer.record.execution, &hand.stop).await;
        give(&shared, offer, hand, begun.elapsed());
    });
}

/// Has an action run whose inputs took so long to fetch.
fn give(shared: &Arc<Shared>, offer: ExecutionOffer, hand: Hand, fetched: Duration) {
    let (shared, main) = (Arc::clone(shared), tokio::runtime::Handle::current());
    shared.clone().stages.give(Box::new(move |stage| {
        Box::pin(async move {
            let key = offer.record.execution.key();
            shared.usage.begin(&key);
            let run = AssertUnwindSafe(run(&shared, &offer, &hand, stage, fetched)).catch_unwind().await;
            let outcome = run.unwrap_or_else(|_| {
                stage.break_slot();
                Fault::new(code::INTERNAL, "the executor panicked".to_owned()).outcome(&shared.id)
            });
            let used = shared.usage.end(&key);
            // The slot has more to do than to wait for the word of the store.
            main.spawn(settle(shared, offer, outcome, used));
        })
    }));
}

/// Has the inputs of an action in the local tier. What fails here is tried again, and told, in the slot.
async fn fetch(shared: &Shared, execution: &Execution, stop: &CancellationToken) {
    let key = execution.key();
    let progress = Progress::of(shared, &key);
    progress.enter(ExecutionStage::Fetching).await;
    let fetch = async {
        if let Ok(spec) = Spec::read(&shared.cas, execution).await
            && let Err(error) = shared.inputs.fetch(&spec.input_root).await
        {
            debug!(%key, error = telemetry::error_chain(&error), "fetched again in the slot");
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = fetch => {}
        never = progress.grow_loud() => match never {},
    }
}

/// The outcome; `None` when nobody wants it.
async fn run(
    shared: &Shared,
    offer: &ExecutionOffer,
    hand: &Hand,
    stage: &mut Stage,
    fetched: Duration,
) -> Option<ExecutionOutcome> {
    let key = offer.record.execution.key();
    let progress = Progress::of(shared, &key);
    let outcome = tokio::select! {
        biased;
        () = hand.stop.cancelled() => Err(Fault::Stopped),
        outcome = execute(shared, offer, stage, fetched, &progress) => outcome,
        never = progress.grow_loud() => match never {},
    };
    outcome.map_or_else(|fault| fault.outcome(&shared.id), Some)
}

async fn settle(shared: Arc<Shared>, offer: ExecutionOffer, outcome: Option<ExecutionOutcome>, used: Esu) {
    let key = offer.record.execution.key();
    shared.hands.finishing(&key);
    usage::tell(&shared, &offer.record.execution, used).await;
    if let Some(outcome) = outcome {
        debug!(%key, code = outcome.code, exit = outcome.exit_code, "action ended");
        finish::finish(&shared, &offer, outcome).await;
    } else {
        debug!(%key, "action stopped");
    }
    shared.hands.release(&key);
}

async fn execute(
    shared: &Shared,
    offer: &ExecutionOffer,
    stage: &mut Stage,
    fetched: Duration,
    progress: &Progress<'_>,
) -> Result<ExecutionOutcome, Fault> {
    let execution = &offer.record.execution;
    let key = execution.key();
    let mut times = Times { queued: execution.accepted_at_ms.into(), ..Times::default() };
    // As if it had been fetched here and now: the wait for a slot is no part of either.
    times.started = SystemTime::now().checked_sub(fetched).unwrap_or_else(SystemTime::now);
    times.fetch_started = times.started;
    progress.enter(ExecutionStage::Fetching).await;
    let spec = Spec::read(&shared.cas, execution).await?;
    let outputs = OutputSpec::of(&spec.command).map_err(|error| unprepared(&error))?;
    let prepared = shared.inputs.prepare(stage.work(), &spec.input_root, &outputs).await;
    let root = prepared.map_err(|error| unprepared(&error))?;
    times.fetch_ended = SystemTime::now();
    let took = |from: SystemTime, to: SystemTime| to.duration_since(from).unwrap_or_default();
    observe(Histogram::ActionFetchSeconds, &[], took(times.fetch_started, times.fetch_ended));
    crash_point(Step::ActionInputsReady);
    let ended = command(shared, &key, stage, &spec, &root, progress).await;
    let collected = match &ended {
        Ok(ended) => {
            crash_point(Step::ActionCommandEnded);
            shared.usage.set_memory(&key, ended.peak_memory_bytes);
            observe(Histogram::ActionRunSeconds, &[], ended.wall);
            progress.enter(ExecutionStage::Uploading).await;
            times.upload_started = SystemTime::now();
            let console = stage.console(ended);
            let collected = shared.inputs.collect(&root, &outputs, &console, execution.action.function).await;
            times.upload_ended = SystemTime::now();
            observe(Histogram::ActionUploadSeconds, &[], took(times.upload_started, times.upload_ended));
            Some(collected)
        }
        Err(_) => None,
    };
    shared.inputs.release(root).await;
    let ended = ended?;
    let Some(collected) = collected else { return Err(Fault::Stopped) };
    conclude(shared, offer, &ended, collected, times).await
}

/// Runs the command to its end.
async fn command(
    shared: &Shared,
    key: &ExecutionKey,
    stage: &mut Stage,
    spec: &Spec,
    root: &InputRoot,
    progress: &Progress<'_>,
) -> Result<Ended, Fault> {
    let settings = &shared.context.settings;
    let (stdout, stderr) = stage.outputs();
    let run = Run {
        argv: spec.command.arguments.clone(),
        env: spec.environment(),
        cwd: spec.command.working_directory.clone().into(),
        root: root.path().to_owned(),
        root_is_input: shared.pool.root_is_input,
        timeout: Some(spec.timeout),
        kill_grace: Duration::from_millis(settings.kill_grace_ms),
        stdout: stdout.clone(),
        stderr: stderr.clone(),
        output_bytes_max: settings.action_output_bytes_max,
        memory_bytes_max: Some(settings.action_memory_bytes_max).filter(|bytes| *bytes > 0),
    };
    let slot = stage.slot().await.map_err(|error| Fault::internal(&error))?;
    let outcome = watch(shared, key, slot, run, Outputs { stdout, stderr }, progress).await;
    match outcome {
        Ok(Outcome::Ended(ended)) => Ok(ended),
        Ok(Outcome::NotStarted { why, message }) => Err(not_started(why, message)),
        Err(error) => {
            warn!(%key, error = telemetry::error_chain(&error), "the sandbox failed");
            stage.break_slot();
            Err(Fault::internal(&error))
        }
    }
}

async fn watch(
    shared: &Shared,
    key: &ExecutionKey,
    slot: &mut sandbox::Slot,
    run: Run,
    outputs: Outputs,
    progress: &Progress<'_>,
) -> Result<Outcome, sandbox::SandboxError> {
    let mut running = slot.run(run).await?;
    shared.hands.set_outputs(key, outputs);
    loop {
        match running.next_event().await? {
            Event::Started(_) => progress.enter(ExecutionStage::Running).await,
            Event::Done(outcome) => return Ok(outcome),
        }
    }
}

/// What the outcome is, now that the command has ended; a success goes to the action cache first.
async fn conclude(
    shared: &Shared,
    offer: &ExecutionOffer,
    ended: &Ended,
    collected: Result<Collected, CollectError>,
    mut times: Times,
) -> Result<ExecutionOutcome, Fault> {
    let execution = &offer.record.execution;
    let status = verdict(ended, shared.context.settings.action_output_bytes_max);
    let collected = match (collected, &status) {
        (Ok(collected), _) => collected,
        // What killed the command matters more than what it left.
        (Err(error), Some((code, message))) => {
            return Err(Fault::new(*code, format!("{message}; {}", telemetry::error_chain(&error))));
        }
        (Err(error), None) if error.is_the_actions() => return Err(Fault::precondition(error.to_string())),
        (Err(error), None) => return Err(uncollected(&error)),
    };
    crash_point(Step::ActionOutputsKept);
    times.completed = SystemTime::now();
    let result = collected.into_result(ended.exit_code, metadata(shared.id.as_str(), &times, ended));
    let cacheable = status.is_none() && ended.exit_code == 0 && !execution.do_not_cache;
    if cacheable {
        let kept = shared.cas.put_action(&execution.instance, &execution.action, &result).await;
        if let Err(error) = kept {
            // The result is good, it is only not remembered.
            warn!(key = %execution.key(), error = telemetry::error_chain(&error), "a result was not cached");
        }
        crash_point(Step::ActionCached);
    }
    let exit_code = Some(result.exit_code);
    let server_logs = if status.is_some() { logs(&result, execution.action.function) } else { Vec::new() };
    let (code, message) = status.unwrap_or_default();
    Ok(ExecutionOutcome {
        executor: Some(shared.id.clone()),
        code,
        message,
        missing: Vec::new(),
        exit_code,
        result: Some(stored(shared, &result).await?),
        server_logs,
    })
}

/// What a command had written when it was cut off.
fn logs(result: &ActionResult, function: DigestFunction) -> Vec<(String, BlobDigest)> {
    let one = |name: &str, digest: Option<&reapi::execution::Digest>| {
        let digest = digest.and_then(|digest| reapi::digest::from_proto(digest, function).ok());
        (name.to_owned(), digest.unwrap_or_else(|| function.empty()))
    };
    vec![one("stdout", result.stdout_digest.as_ref()), one("stderr", result.stderr_digest.as_ref())]
}

async fn stored(shared: &Shared, result: &ActionResult) -> Result<StoredResult, Fault> {
    let encoded = result.encode_to_vec();
    if encoded.len() <= INLINE_MAX {
        return Ok(StoredResult::Inline(STANDARD.encode(encoded)));
    }
    let kept = shared.cas.put_bytes(DigestFunction::Sha256, encoded.into()).await;
    kept.map(StoredResult::Blob).map_err(|error| Fault::internal(&error))
}

/// What made the command end, unless it ended by itself.
fn verdict(ended: &Ended, output_max: u64) -> Option<(i32, String)> {
    let seconds = ended.wall.as_secs_f64();
    match ended.cause {
        Cause::Ended => None,
        Cause::TimedOut => Some((
            code::DEADLINE_EXCEEDED,
            format!("the command was killed after {seconds:.1} s, its time limit"),
        )),
        Cause::OutOfMemory => Some((
            code::RESOURCE_EXHAUSTED,
            format!("the command was killed for want of memory: it used {} bytes", ended.peak_memory_bytes),
        )),
        Cause::OutputTooLarge(stream) => Some((
            code::RESOURCE_EXHAUSTED,
            format!("the command was killed: it wrote more than {output_max} bytes to {stream:?}"),
        )),
        Cause::Killed => Some((code::INTERNAL, "the command was killed".to_owned())),
    }
}

fn not_started(why: NotStarted, message: String) -> Fault {
    match why {
        NotStarted::NotFound | NotStarted::NotExecutable | NotStarted::WorkingDirectory => {
            Fault::precondition(message)
        }
        NotStarted::TooLarge | NotStarted::Invalid => Fault::invalid(message),
    }
}

fn unprepared(error: &InputError) -> Fault {
    match error {
        InputError::Missing(missing) => Fault::missing(missing.clone()),
        InputError::Invalid(why) => Fault::invalid(why.clone()),
        InputError::Stopping => Fault::Stopped,
        InputError::Io { .. } | InputError::Cas(_) => Fault::internal(error),
    }
}

fn uncollected(error: &CollectError) -> Fault {
    if matches!(error, CollectError::Stopping) { Fault::Stopped } else { Fault::internal(error) }
}
