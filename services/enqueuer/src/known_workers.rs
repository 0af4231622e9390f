//! Checks what builds require against what workers have offered.

use std::{sync::Arc, time::Duration};

use bus::{Bus, BusError};
use model::{BuildRequirements, WorkerProperties};
use policy::{NoWorker, check_requirements};
use tokio::{sync::Mutex, time::Instant};

/// Age from which the kinds of workers are read again before a build is accepted.
const AGE_MAX: Duration = Duration::from_secs(10);
/// Age from which they are read again before a build is refused, and while no worker is known: one may have started since.
const AGE_OF_REFUSAL: Duration = Duration::from_millis(200);

/// The kinds of workers that the farm has or had. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KnownWorkers {
    bus: Bus,
    read: Arc<Mutex<Option<Read>>>,
}

#[derive(Clone)]
struct Read {
    at: Instant,
    kinds: Arc<[WorkerProperties]>,
}

/// Why a build is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unmet {
    /// No worker can ever run it.
    #[error(transparent)]
    Never(#[from] NoWorker),
    #[error(transparent)]
    Bus(#[from] BusError),
}

impl KnownWorkers {
    pub(crate) fn new(bus: Bus) -> Self {
        Self { bus, read: Arc::default() }
    }

    /// Checks that some worker can run what requires `requirements`: a live one, or one that left and may come back.
    pub(crate) async fn check(&self, requirements: &BuildRequirements) -> Result<(), Unmet> {
        if requirements.is_empty() {
            return Ok(());
        }
        let kinds = self.younger_than(AGE_MAX).await?;
        // While no worker is known, one may register at any time.
        if !kinds.is_empty() && check_requirements(requirements, &kinds).is_ok() {
            return Ok(());
        }
        let kinds = self.younger_than(AGE_OF_REFUSAL).await?;
        Ok(check_requirements(requirements, &kinds)?)
    }

    async fn younger_than(&self, age: Duration) -> Result<Arc<[WorkerProperties]>, BusError> {
        // One caller reads, the others wait for its result.
        let mut read = self.read.lock().await;
        if let Some(known) = read.as_ref().filter(|known| known.at.elapsed() < age) {
            return Ok(known.kinds.clone());
        }
        let kinds: Arc<[WorkerProperties]> =
            self.bus.buckets().all::<WorkerProperties>().await?.into_values().collect();
        *read = Some(Read { at: Instant::now(), kinds: kinds.clone() });
        Ok(kinds)
    }
}
