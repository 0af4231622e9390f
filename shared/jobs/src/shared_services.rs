//! The services that tasks of a job share: one execution runs them, and the tasks that use them name its id.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use invariant::impossible;
use model::{BlobDigest, ExecutionKey, ExecutorId, Graph, SharedServicesId};
use parking_lot::Mutex;
use policy::graph::{GraphRun, ServicesEnd, ServicesRun, ServicesStart, ServicesUse};
use tokio::{
    sync::{OnceCell, watch},
    task::AbortHandle,
};

/// How the services ended.
#[derive(Debug, Clone)]
pub(crate) struct EndOfServices {
    pub(crate) end: ServicesEnd,
    /// Why, unless they were stopped.
    pub(crate) reason: String,
    /// What they wrote, by the name of the service and of the stream.
    pub(crate) logs: BTreeMap<String, BlobDigest>,
}

/// Where a start of the services is.
#[derive(Debug, Clone)]
pub(crate) enum ServicesStage {
    Starting,
    Ready,
    Ended(Arc<EndOfServices>),
}

/// The execution that runs services.
#[derive(Debug, Clone, Default)]
struct OfServices {
    /// Name of its operation.
    operation: Option<String>,
    executor: Option<ExecutorId>,
}

/// One start of the services.
#[derive(Debug)]
pub(crate) struct StartedServices {
    pub(crate) number: ServicesStart,
    pub(crate) id: SharedServicesId,
    stage: watch::Sender<ServicesStage>,
    execution: Mutex<OfServices>,
    /// Set when the tasks that had succeeded with an earlier start have run again, with the reason if one failed.
    pub(crate) replayed: OnceCell<Result<(), String>>,
    /// The task that waits for the execution.
    waiting: Mutex<Option<AbortHandle>>,
}

/// The shared services of a job.
#[derive(Debug)]
pub(crate) struct SharedServices {
    state: Mutex<State>,
    /// How long they may take to stop.
    stop_within: Duration,
}

#[derive(Debug)]
struct State {
    run: ServicesRun,
    last: Option<Arc<StartedServices>>,
    /// Why they failed, after which no task can use them.
    failed: Option<Arc<EndOfServices>>,
    /// Whether the last start was asked to stop.
    is_stopping: bool,
}

/// What a task that is to use the services finds.
pub(crate) enum Found {
    /// It is the first, and starts them.
    ToStart(Arc<StartedServices>),
    Started(Arc<StartedServices>),
    Failed(Arc<EndOfServices>),
}

/// Time for the executor to stop services and to store what they wrote, beyond what they ask for themselves.
const STOPPING: Duration = Duration::from_secs(15);

impl SharedServices {
    /// Those of a job of which no task has started.
    pub(crate) fn new(graph: &Graph) -> Self {
        let longest = graph.services().iter().map(model::ServiceRequest::stop_grace).max();
        let state = State { run: ServicesRun::new(graph), last: None, failed: None, is_stopping: false };
        Self { state: Mutex::new(state), stop_within: longest.unwrap_or_default() + STOPPING }
    }

    /// What a task finds that is to use them now.
    pub(crate) fn begin(&self) -> Found {
        let mut state = self.state.lock();
        match state.run.begin() {
            ServicesUse::Start(number) => {
                let started = Arc::new(StartedServices {
                    number,
                    id: SharedServicesId::generate(),
                    stage: watch::Sender::new(ServicesStage::Starting),
                    execution: Mutex::default(),
                    replayed: OnceCell::new(),
                    waiting: Mutex::default(),
                });
                state.last = Some(Arc::clone(&started));
                state.is_stopping = false;
                Found::ToStart(started)
            }
            ServicesUse::Join(_) => {
                // They are given up only at the end of the run.
                let unknown = || Arc::new(EndOfServices::lost("the shared services were given up"));
                state.last.clone().map_or_else(|| Found::Failed(unknown()), Found::Started)
            }
            ServicesUse::Fail => {
                let unknown = || Arc::new(EndOfServices::lost("the shared services failed"));
                Found::Failed(state.failed.clone().unwrap_or_else(unknown))
            }
        }
    }

    /// Records how a start of them ended.
    pub(crate) fn ended(&self, started: &StartedServices, end: EndOfServices) {
        let end = Arc::new(end);
        let mut state = self.state.lock();
        if state.run.ended(started.number, end.end) && end.end == ServicesEnd::Failed {
            state.failed = Some(Arc::clone(&end));
        }
        drop(state);
        started.stage.send_replace(ServicesStage::Ended(end));
    }

    /// Records that a task succeeded with them.
    pub(crate) fn succeeded(&self, task: model::TaskIndex) {
        self.state.lock().run.succeeded(task);
    }

    /// The tasks that run again when the services have started again.
    pub(crate) fn replays(&self) -> Vec<model::TaskIndex> {
        self.state.lock().run.replays().to_vec()
    }

    /// The services that are to be stopped now, because all tasks that use them have ended. Each start is returned once.
    pub(crate) fn to_stop(&self, run: &GraphRun) -> Option<Arc<StartedServices>> {
        let mut state = self.state.lock();
        if state.is_stopping || !state.run.are_done(run) {
            return None;
        }
        state.is_stopping = true;
        state.last.clone()
    }

    /// Returns when they have ended, with what they wrote; nothing if they do not end in time.
    pub(crate) async fn logs(&self) -> BTreeMap<String, BlobDigest> {
        let last = self.state.lock().last.clone();
        let Some(started) = last else { return BTreeMap::new() };
        let ended = tokio::time::timeout(self.stop_within, started.ended()).await;
        ended.map(|end| end.logs.clone()).unwrap_or_default()
    }

    /// Ends the wait for their execution. Returns the operation to cancel.
    pub(crate) fn give_up(&self) -> Option<String> {
        let started = self.state.lock().last.take()?;
        if let Some(waiting) = started.waiting.lock().take() {
            waiting.abort();
        }
        started.execution.lock().operation.take().filter(|_| !started.has_ended())
    }
}

impl StartedServices {
    /// Notes the task that waits for the execution.
    pub(crate) fn set_waiting(&self, task: AbortHandle) {
        *self.waiting.lock() = Some(task);
    }

    /// Records what is known of the execution, and whether the services are ready.
    pub(crate) fn learn(&self, operation: &str, executor: &str, is_ready: bool) {
        let mut execution = self.execution.lock();
        execution.operation = Some(operation.to_owned());
        if let Ok(executor) = executor.parse() {
            execution.executor = Some(executor);
        }
        drop(execution);
        if is_ready {
            self.stage.send_if_modified(|stage| {
                let is_news = matches!(stage, ServicesStage::Starting);
                if is_news {
                    *stage = ServicesStage::Ready;
                }
                is_news
            });
        }
    }

    /// Whether the farm has accepted the execution.
    pub(crate) fn is_accepted(&self) -> bool {
        self.execution.lock().operation.is_some()
    }

    /// The execution and its executor, if the services are ready.
    pub(crate) fn ready_at(&self) -> Option<(ExecutorId, ExecutionKey)> {
        let is_ready = matches!(&*self.stage.borrow(), ServicesStage::Ready);
        let execution = self.execution.lock();
        let key = execution_key(execution.operation.as_deref()?)?;
        Some((execution.executor.clone().filter(|_| is_ready)?, key))
    }

    /// Returns when they are ready, or have ended.
    pub(crate) async fn ready(&self) -> Result<(), Arc<EndOfServices>> {
        let mut stage = self.stage.subscribe();
        let stage = stage.wait_for(|stage| !matches!(stage, ServicesStage::Starting)).await;
        match stage.map(|stage| stage.clone()) {
            Ok(ServicesStage::Ready) => Ok(()),
            Ok(ServicesStage::Ended(end)) => Err(end),
            Ok(ServicesStage::Starting) | Err(_) => {
                impossible!("services are neither ready nor over");
                Err(Arc::new(EndOfServices::lost("the shared services are unknown")))
            }
        }
    }

    /// Returns when they have ended.
    pub(crate) async fn ended(&self) -> Arc<EndOfServices> {
        let mut stage = self.stage.subscribe();
        let stage = stage.wait_for(|stage| matches!(stage, ServicesStage::Ended(_))).await;
        match stage.map(|stage| stage.clone()) {
            Ok(ServicesStage::Ended(end)) => end,
            // The sender is a part of this value.
            Ok(ServicesStage::Starting | ServicesStage::Ready) | Err(_) => std::future::pending().await,
        }
    }

    fn has_ended(&self) -> bool {
        matches!(&*self.stage.borrow(), ServicesStage::Ended(_))
    }
}

impl EndOfServices {
    /// The loss of services that may start elsewhere.
    pub(crate) fn lost(reason: impl Into<String>) -> Self {
        Self { end: ServicesEnd::Lost, reason: reason.into(), logs: BTreeMap::new() }
    }
}

/// The execution of an operation, whose name ends with `operations/GROUP/ID`.
fn execution_key(operation: &str) -> Option<ExecutionKey> {
    let mut parts = operation.rsplitn(3, '/');
    let (id, group) = (parts.next()?, parts.next()?);
    Some(ExecutionKey { group: group.parse().ok()?, id: id.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_names_its_execution() {
        let id = model::ExecutionId::generate();
        let key = execution_key(&format!("operations/demo/{id}")).unwrap();
        assert_eq!((key.group.as_str(), key.id), ("demo", id));
        assert!(execution_key("operations/done/abc").is_none() && execution_key("x").is_none());
    }
}
