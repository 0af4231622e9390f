//! Reads the result of an execution: how the task ended, its usage, its outputs, and what it printed.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bus::millis;
use model::{
    BlobDigest, CommandStep, InteractorReport, Interference, RunFigures, ServiceRequest, Task, TaskReport,
    TaskStatus,
};
use policy::{
    actions::{joint_failure, limits::Limit},
    graph::judged,
};
use prost::Message as _;
use prost_types::{Struct, value::Kind};
use reapi::{
    digest::from_proto,
    directory::{AbsoluteTargets, check_with},
    execution::{ActionResult, Directory, ExecutedActionMetadata, LogFile, Tree},
    rpc,
};
use tonic::Code;

use crate::{
    action::relative,
    extent::DEPTH_MAX,
    tree::{Content, FUNCTION, Folder, Node},
};

/// The metadata field that names the limit which the command exceeded.
const LIMIT: &str = "limit";
const STRUCT: &str = "/google.protobuf.Struct";

/// The report of a task whose action ended with `status` and perhaps a `result`, and printed `stdout`.
pub(crate) fn report(
    task: &Task,
    status: &rpc::Status,
    result: Option<&ActionResult>,
    cached: bool,
    stdout: &[u8],
) -> TaskReport {
    let mut report = TaskReport { cached, ..TaskReport::new(task.id.clone(), TaskStatus::Succeeded) };
    let used = result.and_then(|result| result.execution_metadata.as_ref()).map(Used::of).unwrap_or_default();
    report.executor.clone_from(&used.executor);
    report.wall_ms = used.wall.map(millis);
    report.cpu_ms = used.cpu.map(millis);
    report.memory_bytes = used.memory_bytes;
    report.figures = used.figures();
    report.interactor.clone_from(&used.interactor);
    let own_code = |result: &ActionResult| used.command_exit_code.unwrap_or(result.exit_code);
    report.exit_code = result.filter(|_| status.code == 0).map(own_code);
    if status.code != 0 {
        report.status = fault(Code::from(status.code), &used);
        report.reason = Some(model::brief(status.message.clone()));
        return report;
    }
    let Some(result) = result else {
        report.status = TaskStatus::FarmFailed;
        report.reason = Some("the execution succeeded without a result".to_owned());
        return report;
    };
    if prints_score(task) {
        match judged(result.exit_code, stdout) {
            Ok(score) => report.score = Some(score),
            Err(bad) => fail(&mut report, bad.to_string()),
        }
    } else if let Some(interactor) = &used.interactor {
        if let Some(reason) = joint_failure(own_code(result), interactor.exit_code) {
            fail(&mut report, reason);
        }
    } else if result.exit_code != 0 {
        fail(&mut report, format!("exit code {}", result.exit_code));
    }
    report
}

/// The logs of the services or the interactor of a task's command, among those that the executor kept.
pub(crate) fn service_logs(
    command: &CommandStep,
    logs: &HashMap<String, LogFile>,
) -> BTreeMap<String, BlobDigest> {
    let is_interactor = |name: &str| command.interactor.is_some() && name == "interactor";
    logs_of(logs, |name| is_interactor(name) || is_of(&command.services, name))
}

/// Whether one of these services has this name.
pub(crate) fn is_of(services: &[ServiceRequest], name: &str) -> bool {
    services.iter().any(|service| service.name.as_str() == name)
}

/// The logs of those commands that `is_service` names.
pub(crate) fn logs_of(
    logs: &HashMap<String, LogFile>,
    is_service: impl Fn(&str) -> bool,
) -> BTreeMap<String, BlobDigest> {
    let log = |(name, log): (&String, &LogFile)| {
        let (service, _) = name.split_once('.')?;
        let digest = from_proto(log.digest.as_ref()?, FUNCTION).ok()?;
        is_service(service).then(|| (name.clone(), digest))
    };
    logs.iter().filter_map(log).collect()
}

/// Whether the command of a task is a judge: the score of `compare` is found without what the command prints.
pub(crate) fn prints_score(task: &Task) -> bool {
    task.judge.is_some() && task.step.as_command().is_some_and(|command| command.compare.is_none())
}

/// Marks the task itself as failed.
pub(crate) fn fail(report: &mut TaskReport, reason: String) {
    report.status = TaskStatus::Failed;
    report.reason = Some(model::brief(reason));
}

/// Classifies the failure of an action without a result of its command.
fn fault(code: Code, used: &Used) -> TaskStatus {
    let ran = used.limit || used.executor.is_some();
    // RESOURCE_EXHAUSTED may also mean that the farm is full: then no executor ran it.
    if code == Code::DeadlineExceeded || (code == Code::ResourceExhausted && ran) {
        TaskStatus::OverLimit
    } else if is_own(code) {
        TaskStatus::Failed
    } else {
        TaskStatus::FarmFailed
    }
}

/// Whether a refusal with this code is the task's own fault: a retry would be refused too.
pub(crate) fn is_own(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}

/// Usage of a run, from the metadata of its result.
#[derive(Debug, Default)]
struct Used {
    executor: Option<String>,
    wall: Option<Duration>,
    cpu: Option<Duration>,
    memory_bytes: Option<u64>,
    /// Voluntary and involuntary context switches.
    switches: (u64, u64),
    interference: Option<Interference>,
    /// Whether the metadata names an exceeded limit.
    limit: bool,
    /// The end of its interactor, and the exit code of the command itself, if it has one.
    interactor: Option<InteractorReport>,
    command_exit_code: Option<i32>,
}

impl Used {
    fn of(metadata: &ExecutedActionMetadata) -> Self {
        let mut used = Self {
            executor: Some(metadata.worker.clone()).filter(|worker| !worker.is_empty()),
            wall: metadata.virtual_execution_duration.as_ref().map(|wall| {
                let seconds = u64::try_from(wall.seconds).unwrap_or_default();
                Duration::new(seconds, u32::try_from(wall.nanos).unwrap_or_default())
            }),
            ..Self::default()
        };
        let mut all = metadata.auxiliary_metadata.iter();
        let usage = all.find(|any| any.type_url.ends_with(STRUCT));
        let Some(usage) = usage.and_then(|any| Struct::decode(any.value.as_slice()).ok()) else {
            return used;
        };
        used.cpu = seconds(&usage, "cpu_seconds");
        used.memory_bytes = whole(&usage, "peak_memory_bytes");
        let switches = |kind: &str| whole(&usage, &format!("{kind}_context_switches")).unwrap_or_default();
        used.switches = (switches("voluntary"), switches("involuntary"));
        used.interference = interference(&usage);
        used.command_exit_code = exit_code(&usage, "command_exit_code");
        used.interactor = match usage.fields.get("interactor").and_then(|value| value.kind.as_ref()) {
            Some(Kind::StructValue(interactor)) => interactor_report(interactor),
            Some(
                Kind::NumberValue(_)
                | Kind::NullValue(_)
                | Kind::StringValue(_)
                | Kind::BoolValue(_)
                | Kind::ListValue(_),
            )
            | None => None,
        };
        used.limit = matches!(
            usage.fields.get(LIMIT).and_then(|value| value.kind.as_ref()),
            Some(Kind::StringValue(name)) if Limit::ALL.iter().any(|limit| limit.name() == name)
        );
        used
    }

    /// The figures of the run, if its times are known.
    fn figures(&self) -> Option<RunFigures> {
        Some(RunFigures {
            cpu_us: micros(self.cpu?),
            wall_us: micros(self.wall?),
            memory_bytes: self.memory_bytes.unwrap_or_default(),
            voluntary_switches: self.switches.0,
            involuntary_switches: self.switches.1,
            interference: self.interference,
        })
    }
}

/// A number of a usage, which is not negative.
fn number(usage: &Struct, name: &str) -> Option<f64> {
    match usage.fields.get(name)?.kind.as_ref()? {
        Kind::NumberValue(number) if *number >= 0.0 => Some(*number),
        Kind::NumberValue(_)
        | Kind::NullValue(_)
        | Kind::StringValue(_)
        | Kind::BoolValue(_)
        | Kind::StructValue(_)
        | Kind::ListValue(_) => None,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked; saturates")]
fn whole(usage: &Struct, name: &str) -> Option<u64> {
    number(usage, name).map(|number| number as u64)
}

fn seconds(usage: &Struct, name: &str) -> Option<Duration> {
    number(usage, name).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

fn exit_code(usage: &Struct, name: &str) -> Option<i32> {
    i32::try_from(whole(usage, name)?).ok()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn interference(usage: &Struct) -> Option<Interference> {
    let time = |name: &str| seconds(usage, name).map(micros).unwrap_or_default();
    let processors = whole(usage, "processors")?;
    Some(Interference {
        processors: u32::try_from(processors).unwrap_or(u32::MAX),
        own_processors: whole(usage, "own_processors") == Some(1),
        steal_us: time("steal_seconds"),
        other_us: time("other_cpu_seconds"),
        throttled_periods: whole(usage, "throttled_periods").unwrap_or_default(),
        thermal_throttles: whole(usage, "thermal_throttles").unwrap_or_default(),
    })
}

fn interactor_report(usage: &Struct) -> Option<InteractorReport> {
    Some(InteractorReport {
        exit_code: exit_code(usage, "exit_code")?,
        wall_ms: seconds(usage, "wall_seconds").map(millis).unwrap_or_default(),
        cpu_ms: seconds(usage, "cpu_seconds").map(millis).unwrap_or_default(),
        memory_bytes: whole(usage, "peak_memory_bytes").unwrap_or_default(),
    })
}

/// An output of a task.
pub(crate) enum ProducedOutput {
    /// The output is fully known.
    Node(Node),
    /// A folder whose tree must be read.
    Tree(BlobDigest),
}

/// The outputs of `step` in a result, with their paths; fails with the first one that is missing.
pub(crate) fn outputs(
    step: &CommandStep,
    result: &ActionResult,
) -> Result<Vec<(String, ProducedOutput)>, String> {
    let mut found: HashMap<&str, ProducedOutput> = HashMap::new();
    for file in &result.output_files {
        let digest = digest(file.digest.as_ref())?;
        let content = Arc::new(Content::remote(digest));
        found
            .insert(&file.path, ProducedOutput::Node(Node::File { content, executable: file.is_executable }));
    }
    for link in &result.output_symlinks {
        found.insert(&link.path, ProducedOutput::Node(Node::Link(link.target.as_str().into())));
    }
    for folder in &result.output_directories {
        found.insert(&folder.path, ProducedOutput::Tree(digest(folder.tree_digest.as_ref())?));
    }
    let mut made = Vec::with_capacity(step.outputs.len());
    for path in &step.outputs {
        let name = relative(&step.folder, path);
        let output = found.remove(name.as_str()).ok_or_else(|| format!("output {path} is missing"))?;
        made.push((path.as_str().to_owned(), output));
    }
    Ok(made)
}

fn digest(digest: Option<&reapi::execution::Digest>) -> Result<BlobDigest, String> {
    let digest = digest.ok_or("an output in the result has no digest")?;
    from_proto(digest, FUNCTION)
        .map_err(|error| format!("an output in the result has an invalid digest: {error}"))
}

/// The folder that a `Tree` message describes.
pub(crate) fn folder_of(tree: &[u8]) -> Result<Arc<Folder>, String> {
    let tree = Tree::decode(tree).map_err(|error| format!("cannot decode an output folder: {error}"))?;
    let children: HashMap<BlobDigest, &Directory> =
        tree.children.iter().map(|child| (FUNCTION.digest(&child.encode_to_vec()), child)).collect();
    let mut made = HashMap::new();
    unfold(&tree.root.unwrap_or_default(), &children, &mut made, 0)
}

/// Equal folders are shared. No message can hold its own digest, so the recursion ends.
fn unfold(
    directory: &Directory,
    children: &HashMap<BlobDigest, &Directory>,
    made: &mut HashMap<BlobDigest, Arc<Folder>>,
    depth: usize,
) -> Result<Arc<Folder>, String> {
    if depth >= DEPTH_MAX {
        return Err(format!("an output folder is nested deeper than {DEPTH_MAX} folders"));
    }
    check_with(directory, AbsoluteTargets::Allowed)
        .map_err(|fault| format!("an output folder is invalid: {fault}"))?;
    let mut folder = Arc::default();
    for file in &directory.files {
        let content = Arc::new(Content::remote(digest(file.digest.as_ref())?));
        Folder::put(&mut folder, &file.name, Node::File { content, executable: file.is_executable });
    }
    for link in &directory.symlinks {
        Folder::put(&mut folder, &link.name, Node::Link(link.target.as_str().into()));
    }
    for child in &directory.directories {
        let digest = digest(child.digest.as_ref())?;
        let below = if let Some(known) = made.get(&digest) {
            Arc::clone(known)
        } else {
            let found = children.get(&digest).ok_or("the tree of an output folder lacks a subfolder")?;
            let below = unfold(found, children, made, depth + 1)?;
            made.insert(digest, Arc::clone(&below));
            below
        };
        Folder::put(&mut folder, &child.name, Node::Folder(below));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests;
