//! Orders to workers and executors by their id, for callers that do not know which of the two it is.

use model::{Control, ErrorCode, ExecutorControl, ExecutorId, WorkerId};

use crate::{Client, ClientError};

/// Whether a process accepts new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// It finishes what it runs, and accepts nothing new.
    Drain,
    /// It accepts new work again.
    Resume,
}

impl Order {
    /// Name in audit events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Resume => "resume",
        }
    }
}

/// The process that received an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    Worker(WorkerId),
    Executor(ExecutorId),
}

impl Client {
    /// Sends the order to the live executor, or else the worker, with this id. Fails with `not_found` if there is none.
    pub async fn order(&self, id: &str, order: Order) -> Result<Ordered, ClientError> {
        let executors = self.bus().leases().executors().await?;
        if let Some(it) = executors.into_iter().find(|it| it.executor.as_str() == id) {
            let order = match order {
                Order::Drain => ExecutorControl::Drain,
                Order::Resume => ExecutorControl::Resume,
            };
            self.bus().order_executor(&it.executor, &order).await?;
            return Ok(Ordered::Executor(it.executor));
        }
        let missing = || ClientError::api(ErrorCode::NotFound, format!("no worker or executor {id}"));
        let worker: WorkerId = id.parse().map_err(|_| missing())?;
        let order = match order {
            Order::Drain => Control::Drain,
            Order::Resume => Control::Resume,
        };
        match self.control(&worker, &order).await {
            Err(ClientError::Api(answer)) if answer.error == ErrorCode::NotFound => Err(missing()),
            Ok(()) => Ok(Ordered::Worker(worker)),
            Err(error) => Err(error),
        }
    }
}
