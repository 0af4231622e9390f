//! Names of spans and attributes. Those without the prefix `forebay.` are of the semantic conventions of OpenTelemetry
//! (v1.44: CI/CD and RPC are release candidates, messaging is in development) and will change with them.

/// A build, from its acceptance to its end.
pub const BUILD: &str = "BUILD";
/// The acceptance of a build request by an enqueuer.
pub const ENQUEUE: &str = "enqueue";
/// The publication of a build by the command line.
pub const SUBMIT: &str = "submit";
/// The wait of a build or an execution in its queue.
pub const QUEUE: &str = "queue";
/// The part of a wait in which no workspace was idle.
pub const WAIT_WORKSPACE: &str = "wait for workspace";
/// The part of a wait in which no worker offered what the build requires.
pub const WAIT_WORKER: &str = "wait for worker";
/// The part of a wait in which the target of its group had no room for it.
pub const WAIT_QUOTA: &str = "wait for quota";
/// The part of a wait in which the executors had no room for it.
pub const WAIT_EXECUTORS: &str = "wait for executors";
/// From the choice of a workspace for a build to its claim by the worker.
pub const OFFER: &str = "offer";
/// One run of a build by a worker.
pub const INVOCATION: &str = "invocation";
/// The preparation of the workspace.
pub const PREPARE: &str = "prepare";
/// The run of a command.
pub const COMMAND: &str = "command";
/// The run of the tasks of a job.
pub const JOB: &str = "job";
/// The storage of outputs and logs.
pub const OUTPUTS: &str = "outputs";
/// The part of an attempt in which its worker renewed the lease, if the worker was lost.
pub const UNTIL_SILENT: &str = "run until the last sign of life";
/// An attempt that was requeued by its worker.
pub const UNTIL_REQUEUE: &str = "run until the requeue";
/// From the last renewal of a lease to its expiry.
pub const LEASE_EXPIRY: &str = "lease expiry";
/// A call of `Execute`: a client's wait for an execution or a cached result.
pub const CALL: &str = "build.bazel.remote.execution.v2.Execution/Execute";
/// Calls of `Execute` that are not in the trace of their build, because it has enough of them.
pub const FURTHER_CALLS: &str = "further calls of Execute";
/// An execution, from its acceptance to its result.
pub const EXECUTION: &str = "execution";
/// The run of one copy of an execution by an executor.
pub const COPY: &str = "run";
/// The preparation of the input root of an action.
pub const INPUTS: &str = "inputs";

/// How a pipeline ended: `success`, `failure`, `error`, `timeout`, `cancellation` or `skip`.
pub const RESULT: &str = "cicd.pipeline.result";
pub const PIPELINE: &str = "cicd.pipeline.name";
pub const RUN_ID: &str = "cicd.pipeline.run.id";
pub const ACTION_NAME: &str = "cicd.pipeline.action.name";
pub const TASK_RESULT: &str = "cicd.pipeline.task.run.result";
pub const TASK_ID: &str = "cicd.pipeline.task.run.id";
pub const TASK_NAME: &str = "cicd.pipeline.task.name";
pub const WORKER: &str = "cicd.worker.id";
pub const ERROR_TYPE: &str = "error.type";
pub const EXIT_CODE: &str = "process.exit.code";
pub const MESSAGING_SYSTEM: &str = "messaging.system";
pub const DESTINATION: &str = "messaging.destination.template";
pub const RPC_SYSTEM: &str = "rpc.system.name";
pub const RPC_METHOD: &str = "rpc.method";
pub const RPC_STATUS: &str = "rpc.response.status_code";

pub const GROUP: &str = "forebay.group";
pub const BUILD_ID: &str = "forebay.build";
pub const ATTEMPT: &str = "forebay.attempt";
pub const PRIORITY: &str = "forebay.priority";
pub const WORKSPACE: &str = "forebay.workspace";
/// Why a build or an execution waits again, or why a run ended.
pub const REASON: &str = "forebay.reason";
pub const EXECUTION_ID: &str = "forebay.execution";
pub const EXECUTOR: &str = "forebay.executor";
pub const ACTION: &str = "forebay.action";
pub const TARGET: &str = "forebay.target";
pub const MNEMONIC: &str = "forebay.mnemonic";
/// Number of a copy of an execution, from 0; further ones were started because the first is slow.
pub const COPY_NUMBER: &str = "forebay.copy";
/// How a call was answered: `started` an execution, `merged` into one, or `cached`.
pub const ANSWER: &str = "forebay.answer";
/// Numbers of calls of `Execute` that a span stands for: all of them, and those of each answer.
pub const CALLS: &str = "forebay.calls";
pub const CALLS_STARTED: &str = "forebay.calls.started";
pub const CALLS_MERGED: &str = "forebay.calls.merged";
pub const CALLS_CACHED: &str = "forebay.calls.cached";
/// Calls whose action failed, or whose client left.
pub const CALLS_FAILED: &str = "forebay.calls.failed";
/// Time of all calls that a span stands for, added up, in seconds.
pub const CALLS_SECONDS: &str = "forebay.calls.seconds";
