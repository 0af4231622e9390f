//! Messages on an execution's live subject: its records as they are stored, and its executor's progress reports.

use async_nats::{HeaderMap, Subscriber};
use futures::StreamExt as _;
use model::{ExecutionKey, ExecutionProgress, ExecutorControl, ExecutorId};

use crate::{
    ActionSubject, Bus, BusError, FromJson as _, Message, Stored, Subject,
    headers::{PROGRESS, header},
    message,
};

message!(ExecutionProgress);

/// A message on an execution's live subject.
#[derive(Debug, Clone)]
pub enum Live {
    /// A record, as the stream stored it.
    Stored(Stored),
    /// Progress reported by the executor.
    Progress(ExecutionProgress),
}

impl Live {
    /// Parses a message; `None` if it is neither.
    pub fn of(message: async_nats::Message) -> Option<Self> {
        if header(message.headers.as_ref(), PROGRESS).is_some() {
            return ExecutionProgress::from_json(&message.payload).ok().map(Self::Progress);
        }
        Stored::from_live(message).map(|(stored, _)| Self::Stored(stored))
    }
}

/// The live messages of one execution. Some may be lost.
#[derive(Debug)]
pub struct LiveExecution(Subscriber);

impl LiveExecution {
    /// The next message; `None` after the connection was closed. An unreadable message is skipped. The call may be
    /// dropped and repeated without losing a message.
    pub async fn next(&mut self) -> Option<Live> {
        loop {
            if let Some(live) = Live::of(self.0.next().await?) {
                return Some(live);
            }
        }
    }
}

impl Bus {
    /// Subscribes to the live messages of an execution.
    pub async fn live_execution(&self, key: &ExecutionKey) -> Result<LiveExecution, BusError> {
        let subscribed = self.client.subscribe(ActionSubject::live(key)).await;
        Ok(LiveExecution(subscribed.map_err(BusError::failed(format!("waiting for {key}")))?))
    }

    /// Sends an order to an executor and waits until the server has it. Does not confirm that
    /// the executor received it.
    pub async fn order_executor(
        &self,
        executor: &ExecutorId,
        order: &ExecutorControl,
    ) -> Result<(), BusError> {
        let what = || format!("sending an order to executor {executor}");
        let subject = Subject::ExecutorControl(executor.clone()).to_string();
        let sent = self.client.publish(subject, order.to_json()).await;
        sent.map_err(BusError::failed(what()))?;
        self.client.flush().await.map_err(BusError::failed(what()))
    }

    /// Reports an executor's progress to all waiting clients. Progress is not stored.
    pub async fn publish_progress(
        &self,
        key: &ExecutionKey,
        progress: &ExecutionProgress,
    ) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(PROGRESS, "1");
        let payload = progress.to_json();
        let subject = ActionSubject::live(key);
        let published = self.client.publish_with_headers(subject, headers, payload).await;
        published.map_err(BusError::failed(format!("publishing the progress of {key}")))
    }
}
