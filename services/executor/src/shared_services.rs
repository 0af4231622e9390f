//! The shared services that run here, for the actions that use them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use model::{ExecutionKey, Group, SharedServicesId};
use parking_lot::Mutex;
use sandbox::SharedNetwork;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a command that failed waits for the end of a service to become known: it may notice that end first.
const NOTICE: Duration = Duration::from_millis(300);

/// All shared services that run here. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedServicesHere(Arc<Mutex<HashMap<SharedServicesId, Entry>>>);

#[derive(Debug)]
struct Entry {
    /// The execution that runs them.
    execution: ExecutionKey,
    network: SharedNetwork,
    stop: CancellationToken,
    failed: watch::Receiver<Option<String>>,
}

/// The services of one execution, which others can use until this is dropped.
#[derive(Debug)]
pub(crate) struct Offered {
    all: SharedServicesHere,
    id: SharedServicesId,
    /// Cancelled when they are to be stopped, because all that use them have ended.
    pub(crate) stop: CancellationToken,
    failed: watch::Sender<Option<String>>,
}

/// What an action has of the services that it uses.
#[derive(Debug, Clone)]
pub(crate) struct Joined {
    pub(crate) network: SharedNetwork,
    failed: watch::Receiver<Option<String>>,
}

impl SharedServicesHere {
    /// Offers the services of an execution to others. `None` if there are some with this id.
    pub(crate) fn offer(
        &self,
        id: SharedServicesId,
        execution: ExecutionKey,
        network: SharedNetwork,
    ) -> Option<Offered> {
        let mut all = self.0.lock();
        if all.contains_key(&id) {
            return None;
        }
        let (stop, (sender, failed)) = (CancellationToken::new(), watch::channel(None));
        all.insert(id, Entry { execution, network, stop: stop.clone(), failed });
        Some(Offered { all: self.clone(), id, stop, failed: sender })
    }

    /// The services with this id, if they run here for this group.
    pub(crate) fn join(&self, id: SharedServicesId, group: &Group) -> Option<Joined> {
        let all = self.0.lock();
        let entry = all.get(&id).filter(|entry| entry.execution.group == *group)?;
        Some(Joined { network: entry.network.clone(), failed: entry.failed.clone() })
    }

    /// Has the services of an execution stopped, if they run here.
    pub(crate) fn stop(&self, execution: &ExecutionKey) {
        let all = self.0.lock();
        all.values().filter(|entry| entry.execution == *execution).for_each(|entry| entry.stop.cancel());
    }

    /// The ids of all, for heartbeats.
    pub(crate) fn ids(&self) -> Vec<SharedServicesId> {
        let mut ids: Vec<SharedServicesId> = self.0.lock().keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}

impl Offered {
    /// Ends the use of services of which one has failed, as `message` says.
    pub(crate) fn fail(self, message: &str) {
        self.failed.send_replace(Some(message.to_owned()));
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}

impl Joined {
    /// Returns when a service has failed, with the reason; never if they end in another way, which ends this action too.
    pub(crate) async fn failed(&mut self) -> String {
        match self.failed.wait_for(Option::is_some).await.ok().and_then(|message| message.clone()) {
            Some(message) => message,
            None => std::future::pending().await,
        }
    }

    /// Why a service has failed, if it has or is about to become known.
    pub(crate) async fn failed_by_now(&mut self) -> Option<String> {
        tokio::time::timeout(NOTICE, self.failed()).await.ok()
    }
}
