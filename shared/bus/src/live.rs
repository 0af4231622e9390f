//! What is told on an execution's live subject: its records as they are stored, and its executor's progress.

use async_nats::{HeaderMap, Message};
use model::{ExecutionKey, ExecutionProgress, ExecutorControl, ExecutorId};

use crate::{
    ActionSubject, Bus, BusError, Encoding, Stored, Subject, decode, encode,
    headers::{PROGRESS, header},
};

/// A message of an execution's live subject.
#[derive(Debug, Clone)]
pub enum Live {
    /// A record, as it was stored.
    Stored(Stored),
    /// What the executor is doing.
    Progress(ExecutionProgress),
}

impl Live {
    /// Reads a message; `None` for one that is neither.
    pub fn of(message: Message) -> Option<Self> {
        if header(message.headers.as_ref(), PROGRESS).is_some() {
            return decode(Encoding::Json, &message.payload).ok().map(Self::Progress);
        }
        Stored::from_live(message).map(|(stored, _)| Self::Stored(stored))
    }
}

impl Bus {
    /// Sends an order to an executor, and makes sure that the server has it. Whether the executor hears it shows.
    pub async fn order_executor(
        &self,
        executor: &ExecutorId,
        order: &ExecutorControl,
    ) -> Result<(), BusError> {
        let what = || format!("an order to executor {executor}");
        let subject = Subject::ExecutorControl(executor.clone()).to_string();
        let sent = self.client.publish(subject, encode(Encoding::Json, order)).await;
        sent.map_err(BusError::failed(what()))?;
        self.client.flush().await.map_err(BusError::failed(what()))
    }

    /// Tells whoever waits for an execution what its executor is doing. Kept by nobody.
    pub async fn publish_progress(
        &self,
        key: &ExecutionKey,
        progress: &ExecutionProgress,
    ) -> Result<(), BusError> {
        let mut headers = HeaderMap::new();
        headers.insert(PROGRESS, "1");
        let payload = encode(Encoding::Json, progress);
        let subject = ActionSubject::live(key);
        let told = self.client.publish_with_headers(subject, headers, payload).await;
        told.map_err(BusError::failed(format!("telling the progress of {key}")))
    }
}
