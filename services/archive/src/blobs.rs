//! Build events that are blobs of the store, which may be away for any time.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use bus::Patience;
use bytes::Bytes;
use cas::Cas;
use model::BlobDigest;
use service::Context;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::retries::Delay;

/// The store, once it is open. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Blobs {
    cas: Arc<OnceLock<Cas>>,
    /// Whether the log says that the store is away.
    reported: Arc<AtomicBool>,
}

/// What the store says of a blob.
pub(crate) enum Answer {
    Content(Bytes),
    /// The store does not have it, or not in a form that can be read; asking again gives the same answer.
    Never,
    /// The store is away.
    Later,
}

impl Blobs {
    /// Opens the store, with retries until it works. Messages without blobs do not wait for it.
    pub(crate) async fn open(&self, context: &Context) {
        // Waits by itself, so that it is logged once in either case.
        let context = Context { patience: Patience::None, ..context.clone() };
        let mut delay = Delay::new();
        loop {
            match context.cas_with_small_caches().await {
                Ok(cas) => {
                    // Nothing else opens it.
                    let _ = self.cas.set(cas);
                    return self.works();
                }
                Err(error) => self.failed(&error),
            }
            sleep(delay.next()).await;
        }
    }

    pub(crate) async fn get(&self, blob: &BlobDigest) -> Answer {
        let Some(cas) = self.cas.get() else { return Answer::Later };
        let found = cas.get(blob).await;
        match found {
            Err(error) if !error.is_about_content() => {
                self.failed(&error);
                return Answer::Later;
            }
            Err(error) => debug!(%blob, error = telemetry::error_chain(&error), "a blob cannot be read"),
            Ok(Some(content)) => {
                self.works();
                return Answer::Content(content);
            }
            Ok(None) => {}
        }
        self.works();
        Answer::Never
    }

    fn failed(&self, error: &dyn std::error::Error) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            let error = telemetry::error_chain(error);
            warn!(
                error,
                "the store is away: build events that are in blobs are archived when it answers again"
            );
        }
    }

    fn works(&self) {
        if self.reported.swap(false, Ordering::Relaxed) {
            info!("the store answers again");
        }
    }
}
