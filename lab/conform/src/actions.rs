//! Runs actions on the server under test.

use std::time::Duration;

use prost::Message;
use reapi::{
    execution::{
        ActionResult, Digest, ExecuteOperationMetadata, ExecuteRequest, ExecuteResponse, ExecutionPolicy,
        WaitExecutionRequest, execution_stage,
    },
    longrunning::{Operation, operation},
    protobuf::Any,
    rpc,
    status::rpc_status,
};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::{
    client::Client,
    context::Cx,
    job::{Job, Prepared, platform},
    stop::{Stop, fail, named, need},
};

pub(crate) use execution_stage::Value as Stage;

/// One message of an operation's stream.
#[derive(Debug, Clone)]
pub(crate) struct Update {
    /// Time since the call.
    pub(crate) at: Duration,
    pub(crate) operation: Operation,
}

/// The stream of a running operation.
pub(crate) struct Running {
    begun: Instant,
    stream: Streaming<Operation>,
    pub(crate) action: Digest,
    pub(crate) updates: Vec<Update>,
}

#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) action: Digest,
    pub(crate) updates: Vec<Update>,
    pub(crate) response: ExecuteResponse,
}

/// Decodes the message in an `Any`.
pub(crate) fn unpack<M: Message + Default>(any: Option<&Any>, name: &str, what: &str) -> Result<M, Stop> {
    let Some(any) = any else { fail!("the operation has no {what}") };
    let full = format!("build.bazel.remote.execution.v2.{name}");
    need!(any.type_url.rsplit('/').next() == Some(&*full), "the {what} is a {:?}, not {full}", any.type_url);
    M::decode(&*any.value).map_err(|error| Stop::Fail(format!("the {what} cannot be decoded: {error}")))
}

/// Decodes the metadata of an operation.
pub(crate) fn metadata(operation: &Operation) -> Result<ExecuteOperationMetadata, Stop> {
    unpack(operation.metadata.as_ref(), "ExecuteOperationMetadata", "metadata")
}

/// Returns the current stage of an operation.
pub(crate) fn stage(operation: &Operation) -> Result<Stage, Stop> {
    Ok(metadata(operation)?.stage())
}

/// Returns the response of an operation that is done.
pub(crate) fn response(operation: &Operation) -> Result<ExecuteResponse, Stop> {
    match &operation.result {
        Some(operation::Result::Response(any)) => unpack(Some(any), "ExecuteResponse", "response"),
        Some(operation::Result::Error(error)) => {
            fail!("Operation.error was set: {}", named(Code::from(error.code), &error.message))
        }
        None => fail!("the operation is done without a response"),
    }
}

impl Running {
    fn new(stream: Streaming<Operation>, action: Digest, begun: Instant) -> Self {
        Self { begun, stream, action, updates: Vec::new() }
    }

    /// Reads the next message of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<&Operation>, Status> {
        let Some(operation) = self.stream.message().await? else { return Ok(None) };
        self.updates.push(Update { at: self.begun.elapsed(), operation });
        Ok(self.updates.last().map(|update| &update.operation))
    }

    /// Returns the name of the operation, after waiting for a message if necessary.
    pub(crate) async fn name(&mut self) -> Result<String, Stop> {
        if self.updates.is_empty() {
            self.next().await?;
        }
        match self.updates.first() {
            Some(update) => Ok(update.operation.name.clone()),
            None => fail!("the stream of the operation ended without a message"),
        }
    }

    /// Reads until the operation is in this stage.
    pub(crate) async fn until(&mut self, wanted: Stage) -> Result<(), Stop> {
        loop {
            if let Some(update) = self.updates.last() {
                let now = stage(&update.operation)?;
                if now == wanted {
                    return Ok(());
                }
                need!(
                    !update.operation.done,
                    "the operation was done before it was {}",
                    wanted.as_str_name()
                );
            }
            need!(self.next().await?.is_some(), "the stream ended before the operation was done");
        }
    }

    /// Reads to the end of the stream.
    pub(crate) async fn finish(mut self) -> Result<Run, Stop> {
        while self.next().await?.is_some() {}
        let Some(last) = self.updates.last() else {
            fail!("the stream of the operation ended without a message")
        };
        need!(last.operation.done, "the stream ended without a message that is done");
        let response = response(&last.operation)?;
        let name = last.operation.name.clone();
        Ok(Run { name, action: self.action, updates: self.updates, response })
    }
}

impl Run {
    /// Returns the status with which the server ended the operation.
    pub(crate) fn status(&self) -> (Code, &str) {
        let status = self.response.status.as_ref();
        status.map_or((Code::Ok, ""), |status| (Code::from(status.code), &*status.message))
    }

    /// Returns the result of the action.
    pub(crate) fn result(&self) -> Result<&ActionResult, Stop> {
        match &self.response.result {
            Some(result) => Ok(result),
            None => fail!("the response has no result"),
        }
    }

    /// Returns the result of an action that must exit with this code.
    pub(crate) fn exited(&self, wanted: i32) -> Result<&ActionResult, Stop> {
        let (code, message) = self.status();
        need!(code == Code::Ok, "an action ended with {}", named(code, message));
        let result = self.result()?;
        need!(
            result.exit_code == wanted,
            "the action exited with {}, expected {wanted}{}",
            result.exit_code,
            remark(&result.stderr_raw)
        );
        Ok(result)
    }
}

fn remark(stderr: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(stderr).trim().chars().take(200).collect();
    if text.is_empty() { text } else { format!(" ({text})") }
}

impl Cx {
    /// Encodes the blobs of an action.
    pub(crate) fn prepare(&self, job: &Job) -> Prepared {
        Prepared::new(&self.client, job, platform(&self.options.platform))
    }

    /// Calls Execute for an uploaded action.
    pub(crate) async fn execute(&self, prepared: &Prepared, job: &Job) -> Result<Running, Status> {
        let begun = Instant::now();
        let policy = ExecutionPolicy { priority: job.priority };
        let request = ExecuteRequest {
            instance_name: self.client.instance.clone(),
            skip_cache_lookup: job.skip_cache_lookup,
            action_digest: Some(prepared.action.clone()),
            execution_policy: (job.priority != 0).then_some(policy),
            results_cache_policy: None,
            digest_function: self.client.function_value(),
            inline_stdout: job.inline,
            inline_stderr: job.inline,
            inline_output_files: Vec::new(),
        };
        let stream = self.client.execution().execute(request).await?.into_inner();
        Ok(Running::new(stream, prepared.action.clone(), begun))
    }

    /// Uploads an action and calls Execute.
    pub(crate) async fn start(&self, job: &Job) -> Result<Running, Stop> {
        let prepared = self.prepare(job);
        self.client.put_all(&prepared.all()).await?;
        Ok(self.execute(&prepared, job).await?)
    }

    /// Uploads an action and runs it to its end, whatever the outcome.
    pub(crate) async fn run(&self, job: &Job) -> Result<Run, Stop> {
        self.start(job).await?.finish().await
    }

    /// Runs an action that must exit with 0.
    pub(crate) async fn ok(&self, job: &Job) -> Result<Run, Stop> {
        let run = self.run(job).await?;
        run.exited(0)?;
        Ok(run)
    }

    /// Runs an action that must exit with 0 and returns its standard output.
    pub(crate) async fn output(&self, job: &Job) -> Result<String, Stop> {
        let run = self.ok(job).await?;
        self.stdout(run.result()?).await
    }

    /// Returns the error of an action that must be refused: of the call or in the response.
    pub(crate) async fn refusal(&self, job: &Job, what: &str) -> Result<rpc::Status, Stop> {
        let prepared = self.prepare(job);
        self.client.put_all(&prepared.all()).await?;
        self.refusal_of(&prepared, job, what).await
    }

    /// Like [`Self::refusal`], for an action whose blobs are not all uploaded.
    pub(crate) async fn refusal_of(
        &self,
        prepared: &Prepared,
        job: &Job,
        what: &str,
    ) -> Result<rpc::Status, Stop> {
        let mut running = match self.execute(prepared, job).await {
            Ok(running) => running,
            Err(status) => return Ok(rpc_status(&status)),
        };
        loop {
            match running.next().await {
                Err(status) => return Ok(rpc_status(&status)),
                Ok(None) => fail!("the stream of {what} ended without a message that is done"),
                Ok(Some(operation)) if operation.done => {
                    let response = response(operation)?;
                    return match response.status {
                        Some(status) if Code::from(status.code) != Code::Ok => Ok(status),
                        _ => Err(Stop::Fail(format!("{what} was accepted and ran"))),
                    };
                }
                Ok(Some(_)) => {}
            }
        }
    }

    /// Calls `WaitExecution` for an operation.
    pub(crate) async fn wait(&self, name: &str) -> Result<Running, Status> {
        let begun = Instant::now();
        let request = WaitExecutionRequest { name: name.to_owned() };
        let stream = self.client.execution().wait_execution(request).await?.into_inner();
        Ok(Running::new(stream, Digest::default(), begun))
    }

    /// Returns the standard output of an action.
    pub(crate) async fn stdout(&self, result: &ActionResult) -> Result<String, Stop> {
        text(&self.client, &result.stdout_raw, result.stdout_digest.as_ref()).await
    }

    /// Returns the standard error of an action.
    pub(crate) async fn stderr(&self, result: &ActionResult) -> Result<String, Stop> {
        text(&self.client, &result.stderr_raw, result.stderr_digest.as_ref()).await
    }
}

async fn text(client: &Client, raw: &[u8], digest: Option<&Digest>) -> Result<String, Stop> {
    let content = match digest {
        Some(digest) if raw.is_empty() && digest.size_bytes > 0 => client.read(digest).await?,
        Some(_) | None => raw.to_vec(),
    };
    Ok(String::from_utf8_lossy(&content).into_owned())
}
