//! The output of a running action as a log stream: requested from its executor piece by piece, then read
//! from the stored result.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use cas::Cas;
use futures::{StreamExt as _, stream::BoxStream};
use model::{ExecutionRecord, ExecutorId, LiveOutputRequest, OutputStream};
use tonic::Status;

use super::{
    Core, execution, faults,
    interest::Role,
    names::{LiveName, OperationName},
    response,
    waiters::Waiter,
};

/// A stream of the pieces of an output.
pub(crate) type Output = BoxStream<'static, Result<Bytes, Status>>;

/// Timeout of a request to an executor, which answers sooner even if there is no output.
const ANSWER: Duration = Duration::from_secs(10);
/// Pause before the next request if no executor answers.
const PAUSE: Duration = Duration::from_secs(1);

/// Follows an output of an execution from `offset` until it is complete.
pub(crate) async fn follow(core: &Core, parent: &str, name: LiveName, offset: u64) -> Result<Output, Status> {
    let operation = OperationName { instance: parent.to_owned(), key: name.key.clone() };
    let waiter = execution::find(core, &operation, Role::Reads).await?;
    let following =
        Following { core: core.clone(), name, waiter, offset, executor: None, rest: None, ended: false };
    let pieces = futures::stream::unfold(following, async |mut following| {
        let piece = following.next().await?;
        Some((piece, following))
    });
    Ok(pieces.boxed())
}

struct Following {
    core: Core,
    name: LiveName,
    waiter: Waiter,
    /// Offset of the next byte.
    offset: u64,
    /// The executor to ask: the same one as long as it has a copy of the execution.
    executor: Option<ExecutorId>,
    /// The rest of the stored output, once the execution has ended.
    rest: Option<Output>,
    ended: bool,
}

impl Following {
    async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        loop {
            if let Some(rest) = self.rest.as_mut() {
                return rest.next().await;
            }
            if self.ended {
                return None;
            }
            let known = self.waiter.known();
            if known.is_over() {
                let record = known.last.map(|(_, record)| record);
                match stored(&self.core.cas, &self.name, self.offset, record).await {
                    Ok(rest) => self.rest = Some(rest),
                    Err(error) => {
                        self.ended = true;
                        return Some(Err(error));
                    }
                }
                continue;
            }
            let before = known.executors().find(|executor| self.executor.as_ref() == Some(executor));
            self.executor = match before.or(known.executors().next()) {
                Some(executor) => Some(executor.clone()),
                None => self.runner().await,
            };
            if let Some(executor) = self.executor.clone()
                && let Some(piece) = self.ask(&executor).await
            {
                self.offset += piece.len() as u64;
                return Some(Ok(piece));
            }
            tokio::select! {
                () = self.waiter.changed() => {}
                () = tokio::time::sleep(PAUSE) => {}
                () = self.core.stop.cancelled() => {
                    self.ended = true;
                    return Some(Err(Status::unavailable("this gateway is stopping; resume at another")));
                }
            }
        }
    }

    async fn runner(&mut self) -> Option<ExecutorId> {
        let snapshot = self.core.pools.snapshot().await.ok()?;
        snapshot.runner(&self.name.key).map(|runner| runner.executor.clone())
    }

    /// The output at the executor from the offset on; `None` if there is no more to request for now.
    async fn ask(&mut self, executor: &ExecutorId) -> Option<Bytes> {
        loop {
            let (execution, stream) = (self.name.key.clone(), self.name.stream);
            let question = LiveOutputRequest { execution, stream, offset: self.offset };
            let reply = tokio::select! {
                reply = self.core.bus.answer_to(executor, &question, Some(ANSWER)) => reply.ok()?,
                // The state of the execution changed: it may have a result now.
                () = self.waiter.changed() => return None,
            };
            let piece = STANDARD.decode(reply.data).ok()?;
            if !piece.is_empty() {
                return Some(piece.into());
            }
            if reply.complete {
                return None;
            }
        }
    }
}

/// The stored output from the offset on.
async fn stored(
    cas: &Cas,
    name: &LiveName,
    offset: u64,
    record: Option<Arc<ExecutionRecord>>,
) -> Result<Output, Status> {
    let gone = || Status::not_found(format!("the output of {} is no longer stored", name.key));
    let record = record.ok_or_else(gone)?;
    let action = &record.execution.action;
    let outcome = record.outcome().ok_or_else(gone)?;
    let result = response::read_result(cas, outcome.result.as_ref(), action).await;
    let Some(result) = result.map_err(|status| reapi::status::from_rpc(&status))? else {
        return Ok(futures::stream::empty().boxed());
    };
    let (raw, digest) = match name.stream {
        OutputStream::Stdout => (result.stdout_raw, result.stdout_digest),
        OutputStream::Stderr => (result.stderr_raw, result.stderr_digest),
    };
    if !raw.is_empty() {
        let raw = Bytes::from(raw);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(raw.len());
        return Ok(futures::stream::once(async move { Ok(raw.slice(from..)) }).boxed());
    }
    let digest = digest.and_then(|digest| reapi::digest::from_proto(&digest, action.function).ok());
    let Some(digest) = digest.filter(|digest| digest.size > offset) else {
        return Ok(futures::stream::empty().boxed());
    };
    let pieces = cas.read(&digest, offset, None).await;
    let pieces = pieces.map_err(|error| faults::store(&error))?.ok_or_else(gone)?;
    Ok(pieces.map(|piece| piece.map_err(|error| faults::store(&error))).boxed())
}
