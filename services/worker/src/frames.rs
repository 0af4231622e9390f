//! Frames of console output on their way into the store, in order.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use cas::Cas;
use console_log::Raw;
use model::{BlobDigest, DigestFunction};
use tokio::{task::JoinHandle, time::Instant};
use tracing::warn;

/// Time limit for storing a frame.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause before another attempt to store a frame.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum number of frames that are being stored.
const AT_ONCE: usize = 4;

/// A frame, without its content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
}

type Storing = JoinHandle<Result<BlobDigest, String>>;

/// The frames that are being stored.
pub(crate) struct Frames {
    cas: Cas,
    storing: VecDeque<(Extent, Storing)>,
}

impl Frames {
    pub(crate) fn new(cas: Cas) -> Self {
        Self { cas, storing: VecDeque::new() }
    }

    /// Whether [`Self::next`] must be called before [`Self::start`].
    pub(crate) fn is_full(&self) -> bool {
        self.storing.len() >= AT_ONCE
    }

    /// Starts to compress and store a frame.
    pub(crate) fn start(&mut self, raw: Raw) {
        let extent = Extent { offset: raw.offset(), bytes: raw.data.len() as u64, lines: raw.lines() };
        let cas = self.cas.clone();
        self.storing.push_back((extent, tokio::spawn(store(cas, raw))));
    }

    /// The oldest frame, once it is stored, or why it is not.
    pub(crate) async fn next(&mut self) -> Option<(Extent, Result<BlobDigest, String>)> {
        let (extent, storing) = self.storing.front_mut()?;
        let stored = storing.await.unwrap_or_else(|error| Err(error.to_string()));
        let extent = *extent;
        self.storing.pop_front();
        Some((extent, stored))
    }
}

/// Stores a frame, waiting for a store that is full or does not answer.
async fn store(cas: Cas, raw: Raw) -> Result<BlobDigest, String> {
    let packed = tokio::task::spawn_blocking(move || console_log::pack(&raw)).await;
    let blob: Bytes = match packed {
        Ok(Ok(blob)) => blob,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(error) => return Err(error.to_string()),
    };
    let deadline = Instant::now() + PATIENCE;
    let mut last = "the store did not answer in time".to_owned();
    loop {
        let put = cas.put_bytes(DigestFunction::Sha256, blob.clone());
        let error = match tokio::time::timeout_at(deadline, put).await {
            Ok(Ok(digest)) => return Ok(digest),
            Ok(Err(error)) => error,
            Err(_) => return Err(last),
        };
        last = telemetry::error_chain(&error);
        if error.is_about_content() || Instant::now() >= deadline {
            return Err(last);
        }
        warn!(error = last, "cannot store a part of a log yet, retrying");
        tokio::time::sleep(RETRY).await;
    }
}
