//! Documents of issuers, kept while they are recent, and read again at most so often.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use download::{Downloader, Reach};
use parking_lot::Mutex;

/// Minimum time between two reads, so that calls with invented values cause no flood of them.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Age after which a document is read again before use.
const AGE_MAX: Duration = Duration::from_secs(3600);

const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a document.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

/// A document of an issuer.
#[derive(Debug)]
pub(crate) struct Fetched<T> {
    /// The document, and when it was read.
    kept: Mutex<Option<(Arc<T>, Instant)>>,
    /// Held while it is read; when that began last.
    reading: tokio::sync::Mutex<Option<Instant>>,
}

impl<T> Default for Fetched<T> {
    fn default() -> Self {
        Self { kept: Mutex::default(), reading: tokio::sync::Mutex::default() }
    }
}

impl<T> Fetched<T> {
    /// What `find` finds in the document, which is read if it is old or if nothing is found in it. One that cannot be read again
    /// stays in use. `what` names it in the log.
    pub(crate) async fn find<R>(
        &self,
        what: &str,
        find: impl Fn(&T) -> Option<R>,
        read: impl Future<Output = Result<T, String>>,
    ) -> Option<R> {
        if let Some(found) = self.recent().and_then(|document| find(&document)) {
            return Some(found);
        }
        // Only those who find nothing wait for the issuer.
        let mut reading = self.reading.lock().await;
        if let Some(found) = self.recent().and_then(|document| find(&document)) {
            return Some(found);
        }
        if reading.is_none_or(|at| at.elapsed() > READ_AGAIN) {
            *reading = Some(Instant::now());
            match read.await {
                Ok(document) => *self.kept.lock() = Some((Arc::new(document), Instant::now())),
                Err(reason) => tracing::warn!(document = what, reason, "cannot read a document of an issuer"),
            }
        }
        drop(reading);
        let kept = self.kept.lock().as_ref().map(|(document, _)| Arc::clone(document));
        kept.and_then(|document| find(&document))
    }

    /// The document, if it was read a short time ago.
    fn recent(&self) -> Option<Arc<T>> {
        let kept = self.kept.lock();
        let (document, read_at) = kept.as_ref()?;
        (read_at.elapsed() <= AGE_MAX).then(|| Arc::clone(document))
    }
}

/// The document at an address of an issuer.
pub(crate) async fn read_document(url: &str) -> Result<Vec<u8>, String> {
    let chain = |error: download::DownloadError| telemetry::error_chain(&error);
    let downloader = Downloader::new(Reach::everywhere()).map_err(chain)?;
    let reading = downloader.read(url, &[], DOCUMENT_BYTES_MAX);
    let late = |_| format!("{url} did not answer within {} s", READ_TIMEOUT.as_secs());
    tokio::time::timeout(READ_TIMEOUT, reading).await.map_err(late)?.map_err(chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_issuer_that_does_not_answer_is_asked_once_in_a_while() {
        let fetched = Fetched::default();
        let reads = std::sync::atomic::AtomicU32::new(0);
        let read = |answer: Result<u32, String>| {
            let reads = &reads;
            async move {
                reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                answer
            }
        };
        let number = |wanted: u32| move |document: &u32| (*document == wanted).then_some(*document);
        assert_eq!(fetched.find("it", number(1), read(Err("away".into()))).await, None);
        assert_eq!(fetched.find("it", number(1), read(Ok(1))).await, None, "it was asked a moment ago");
        *fetched.reading.lock().await = None;
        assert_eq!(fetched.find("it", number(1), read(Ok(1))).await, Some(1));
        assert_eq!(fetched.find("it", number(1), read(Ok(2))).await, Some(1));
        *fetched.reading.lock().await = None;
        *fetched.kept.lock() =
            Instant::now().checked_sub(AGE_MAX * 2).map(|long_ago| (Arc::new(1), long_ago));
        assert_eq!(fetched.find("it", number(1), read(Err("away".into()))).await, Some(1), "it stays in use");
        assert_eq!(reads.into_inner(), 3);
    }
}
