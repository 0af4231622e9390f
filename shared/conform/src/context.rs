//! What a check has at hand.

use std::{sync::Arc, time::Duration};

use reapi::execution::{
    CacheCapabilities, Digest, ExecutionCapabilities, ServerCapabilities, compressor,
    symlink_absolute_path_strategy,
};

use crate::{
    client::Client,
    run::Options,
    stop::{Judged, Stop},
};

/// What was left on the server at the start, to be looked at in the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Early {
    /// Blobs that were found present then.
    pub(crate) blobs: Vec<Digest>,
    /// An operation that completed then.
    pub(crate) operation: Option<String>,
}

/// What a check has at hand.
#[derive(Clone)]
pub(crate) struct Cx {
    pub(crate) options: Arc<Options>,
    pub(crate) capabilities: Arc<ServerCapabilities>,
    pub(crate) early: Arc<Early>,
    pub(crate) client: Client,
    /// When the run began.
    pub(crate) begun: tokio::time::Instant,
}

impl Cx {
    /// What the server says of its cache.
    pub(crate) fn cache(&self) -> Option<&CacheCapabilities> {
        self.capabilities.cache_capabilities.as_ref()
    }

    /// What the server says of execution.
    pub(crate) fn executing(&self) -> Option<&ExecutionCapabilities> {
        self.capabilities.execution_capabilities.as_ref()
    }

    /// Whether it offers zstd for byte streams.
    pub(crate) fn zstd(&self) -> bool {
        self.cache()
            .is_some_and(|cache| cache.supported_compressors.contains(&compressor::Value::Zstd.into()))
    }

    /// What it does with absolute symlinks.
    pub(crate) fn symlink_strategy(&self) -> symlink_absolute_path_strategy::Value {
        self.cache().map(CacheCapabilities::symlink_absolute_path_strategy).unwrap_or_default()
    }

    /// The most bytes of a batch, if there is a limit.
    pub(crate) fn batch_max(&self) -> Option<usize> {
        let limit = usize::try_from(self.cache()?.max_batch_total_size_bytes).ok()?;
        (limit > 0).then_some(limit)
    }

    /// The most bytes of a blob, if there is a limit.
    pub(crate) fn blob_max(&self) -> Option<i64> {
        self.cache().map(|cache| cache.max_cas_blob_size_bytes).filter(|limit| *limit > 0)
    }

    /// A client of the store that is said to be full, if one was named.
    pub(crate) async fn full(&self) -> Result<Option<Client>, Stop> {
        let Some(endpoint) = &self.options.full_endpoint else { return Ok(None) };
        let transport = crate::client::connect(endpoint)
            .await
            .map_err(|error| Stop::Fail(format!("cannot reach the full store {endpoint}: {error}")))?;
        Ok(Some(Client::new(transport, &self.client.instance, self.client.function)))
    }
}

/// Waits for an answer, but not for ever.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &str,
    answer: impl Future<Output = T>,
) -> Result<T, Stop> {
    tokio::time::timeout(limit, answer)
        .await
        .map_err(|_| Stop::Fail(format!("{what} had no answer within {} s", limit.as_secs())))
}

/// A statement about something that the server does not offer holds, whatever it says.
#[expect(clippy::unnecessary_wraps, reason = "it is the value of a check")]
pub(crate) fn vacuous(what: &str) -> Judged {
    Ok(format!("{what}, so there is nothing to hold"))
}

/// Passes with a remark about what was not looked at.
#[expect(clippy::unnecessary_wraps, reason = "it is the value of a check")]
pub(crate) fn noted(remark: &str) -> Judged {
    Ok(remark.to_owned())
}
