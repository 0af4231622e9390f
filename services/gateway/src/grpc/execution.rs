//! The methods `Execute` and `WaitExecution`.

use callers::Caller;
use model::{BlobDigest, ExecutionRecord, Sequence};
use policy::access::{Need, Right};
use reapi::{
    execution::{ExecuteRequest, ExecuteResponse, WaitExecutionRequest, execution_server::Execution},
    longrunning::Operation,
};
use tonic::{Request, Response, Status};
use trace::Answer;

use super::{
    Core, abandoned, faults,
    interest::{Invocation, Role},
    names::OperationName,
    response::{self, Inline},
    state::{self, Known},
    submit::{self, Submitted},
    trace::CallTrace,
    validate,
    waiters::Waiter,
    watch_stream::{Operations, Watching},
};

/// Implementation of the `build.bazel.remote.execution.v2.Execution` service.
pub(crate) struct ExecutionApi {
    core: Core,
}

impl ExecutionApi {
    pub(crate) fn new(core: Core) -> Self {
        Self { core }
    }
}

#[tonic::async_trait]
impl Execution for ExecutionApi {
    type ExecuteStream = Operations;
    type WaitExecutionStream = Operations;

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<Operations>, Status> {
        let (headers, extensions, mut request) = request.into_parts();
        let caller = Caller::of(&extensions);
        reapi::instance::check(&request.instance_name)?;
        let mut trace = CallTrace::of(&self.core.traces, &headers);
        let (action, _) = validate::action_digest(request.action_digest.as_ref(), request.digest_function)?;
        let inline = Inline::of(&mut request);
        let submitted = submit::submit(&self.core, (&caller, &headers), &request, action, &trace).await?;
        let stream = match submitted {
            Submitted::Accepted(mut accepted) => {
                trace.answered_by(accepted.answer());
                Watching::asked(&self.core, *accepted, inline, trace).stream()
            }
            Submitted::Cached(result) => {
                trace.answered_by(Answer::Cached);
                trace.complete(result.exit_code == 0);
                let response = response::cached(&self.core.cas, *result, &action, &inline).await;
                at_once(&request.instance_name, &action, &response)
            }
            Submitted::Refused(status) if submit::fits_into_trailers(&status) => return Err(status),
            Submitted::Refused(status) => {
                at_once(&request.instance_name, &action, &response::failed(&status))
            }
        };
        Ok(Response::new(stream))
    }

    async fn wait_execution(
        &self,
        request: Request<WaitExecutionRequest>,
    ) -> Result<Response<Operations>, Status> {
        let role = Role::Waits(Invocation::of(request.metadata()));
        let caller = Caller::of(request.extensions());
        let name = visible(&caller, &request.into_inner().name)?;
        let waiter = find(&self.core, &name, role).await?;
        Ok(Response::new(Watching::new(&self.core, name, waiter).stream()))
    }
}

/// A stream of one operation that is already done and is not stored.
fn at_once(instance: &str, action: &BlobDigest, response: &ExecuteResponse) -> Operations {
    let slash = if instance.is_empty() { "" } else { "/" };
    // This name refers to no stored operation: waiting for it returns `NOT_FOUND`.
    let name = format!("{instance}{slash}operations/done/{}", action.hex());
    let operation: Operation = state::done(&name, state::done_metadata(action), response);
    Box::pin(futures::stream::once(async move { Ok(operation) }))
}

/// The operation of this name, if the caller may run actions in its group. Others are answered as unknown ones.
pub(crate) fn visible(caller: &Caller, name: &str) -> Result<OperationName, Status> {
    let name: OperationName = name.parse()?;
    let checked = caller.rights.check(Need::In(Right::Execute, &name.key.group));
    checked.map_err(|denied| {
        caller.refused(denied);
        unknown(&name)
    })?;
    Ok(name)
}

/// Waits for an operation that any gateway accepted.
pub(crate) async fn find(core: &Core, name: &OperationName, role: Role) -> Result<Waiter, Status> {
    let mut waiter = core.waiters.wait(&name.key, &role).await.map_err(faults::bus)?;
    if waiter.known().last.is_none() {
        // Read after subscribing, so that no event is missed.
        let (sequence, record) = read(core, name).await?;
        waiter.learn(sequence, record);
    }
    if waiter.known().record().is_some_and(|record| record.execution.instance != name.instance) {
        return Err(unknown(name));
    }
    abandoned::keep_running(&core.waiters, &mut waiter).await.map_err(faults::bus)?;
    Ok(waiter)
}

/// The current state of an operation. The caller does not count as a waiting client.
pub(crate) async fn current_state(core: &Core, name: &OperationName) -> Result<Known, Status> {
    let (sequence, record) = read(core, name).await?;
    let mut known = core.waiters.known(&name.key).unwrap_or_default();
    known.apply(sequence, record);
    Ok(known)
}

/// The last record, read from the leader because another gateway may have accepted the execution just now.
async fn read(core: &Core, name: &OperationName) -> Result<(Sequence, ExecutionRecord), Status> {
    let last = core.bus.records().latest(&name.key).await.map_err(faults::bus)?;
    let own = last.filter(|(_, record)| record.execution.instance == name.instance);
    own.ok_or_else(|| unknown(name))
}

fn unknown(name: &OperationName) -> Status {
    Status::not_found(format!("operation {name} not found; execute the action again"))
}
