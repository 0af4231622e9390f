//! Checks what builds require against what workers have offered.

use std::{sync::Arc, time::Duration};

use bus::{Bus, BusError};
use model::{BuildRequirements, WorkerProperties};
use policy::{NoWorker, check_requirements};
use tokio::{sync::Mutex, time::Instant};

/// Age from which the kinds of workers are read again before a build is accepted.
const AGE_MAX: Duration = Duration::from_secs(10);

/// The kinds of workers that the farm has or had. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KnownWorkers {
    bus: Bus,
    read: Arc<Mutex<Option<Read>>>,
}

#[derive(Clone)]
struct Read {
    /// Time before they were read.
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
        let asked = Instant::now();
        let kinds = self.read_since(asked.checked_sub(AGE_MAX).unwrap_or(asked)).await?;
        // While no worker is known, one may register at any time.
        if !kinds.is_empty() && check_requirements(requirements, &kinds).is_ok() {
            return Ok(());
        }
        // A worker may have registered before this request.
        let kinds = self.read_since(asked).await?;
        Ok(check_requirements(requirements, &kinds)?)
    }

    /// The kinds of workers, read after `time`.
    async fn read_since(&self, time: Instant) -> Result<Arc<[WorkerProperties]>, BusError> {
        // One caller reads, the others wait for its result.
        let mut read = self.read.lock().await;
        if let Some(known) = read.as_ref().filter(|known| known.at >= time) {
            return Ok(known.kinds.clone());
        }
        let at = Instant::now();
        let kinds: Arc<[WorkerProperties]> =
            self.bus.buckets().all::<WorkerProperties>().await?.into_values().collect();
        *read = Some(Read { at, kinds: kinds.clone() });
        Ok(kinds)
    }
}
