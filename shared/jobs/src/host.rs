//! What a job uses of the worker that runs it.

use std::{io, path::PathBuf, time::SystemTime};

use bus::ChunkFault;
use bytes::Bytes;
use futures::future::BoxFuture;
use model::{ExecutionKey, ExecutorId, OutputStream, ToolEvent};

/// The worker that runs a job, for one run.
pub trait Host: Send + Sync {
    /// Writes a chunk of a task's output to the build's console output.
    fn write(&mut self, stream: OutputStream, data: Bytes) -> BoxFuture<'_, Result<(), ChunkFault>>;

    /// Writes a line from the worker into the build's console output.
    fn say<'a>(&'a mut self, line: &'a str) -> BoxFuture<'a, Result<(), ChunkFault>>;

    /// Publishes a tool event.
    fn tool<'a>(&'a mut self, event: &'a ToolEvent) -> BoxFuture<'a, Result<(), ChunkFault>>;

    /// Asks now for the address of a live gateway, `grpc://HOST:PORT`.
    fn find_gateway(&self) -> BoxFuture<'_, Option<String>>;

    /// Returns when the run must stop.
    fn stop_wanted(&self) -> BoxFuture<'_, ()>;

    /// Whether the run must stop because another process ended or requeued the build.
    fn is_ended_elsewhere(&self) -> bool;

    /// A folder for files that the build does not use. Creates it if it is missing.
    fn own_folder(&self) -> io::Result<PathBuf>;

    /// Tells an executor to stop the shared services of an execution.
    fn stop_services<'a>(&'a self, executor: &'a ExecutorId, execution: ExecutionKey) -> BoxFuture<'a, ()>;

    /// Records that the first task may start, at this farm time.
    fn tasks_start(&self, at: SystemTime);
}
