//! The context of a check.

use std::{sync::Arc, time::Duration};

use reapi::execution::{
    CacheCapabilities, Digest, ExecutionCapabilities, ServerCapabilities, compressor,
    symlink_absolute_path_strategy,
};

use crate::{
    client::Client,
    options::Options,
    stop::{Judged, Stop},
};

/// State left on the server at the start of the run, to be checked at the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Early {
    /// Blobs that were present at the start.
    pub(crate) blobs: Vec<Digest>,
    /// An operation that completed at the start.
    pub(crate) operation: Option<String>,
}

/// The context of a check.
#[derive(Clone)]
pub(crate) struct Cx {
    pub(crate) options: Arc<Options>,
    pub(crate) capabilities: Arc<ServerCapabilities>,
    pub(crate) early: Arc<Early>,
    pub(crate) client: Client,
    /// Start of the run.
    pub(crate) begun: tokio::time::Instant,
}

impl Cx {
    /// Returns the announced cache capabilities.
    pub(crate) fn cache(&self) -> Option<&CacheCapabilities> {
        self.capabilities.cache_capabilities.as_ref()
    }

    /// Returns the announced execution capabilities.
    pub(crate) fn executing(&self) -> Option<&ExecutionCapabilities> {
        self.capabilities.execution_capabilities.as_ref()
    }

    /// Returns whether the server offers zstd for byte streams.
    pub(crate) fn zstd(&self) -> bool {
        self.cache()
            .is_some_and(|cache| cache.supported_compressors.contains(&compressor::Value::Zstd.into()))
    }

    /// Returns how the server treats absolute symlinks.
    pub(crate) fn symlink_strategy(&self) -> symlink_absolute_path_strategy::Value {
        self.cache().map(CacheCapabilities::symlink_absolute_path_strategy).unwrap_or_default()
    }

    /// Maximum number of bytes in a batch, if there is a limit.
    pub(crate) fn batch_max(&self) -> Option<usize> {
        let limit = usize::try_from(self.cache()?.max_batch_total_size_bytes).ok()?;
        (limit > 0).then_some(limit)
    }

    /// Maximum number of bytes in a blob, if there is a limit.
    pub(crate) fn blob_max(&self) -> Option<i64> {
        self.cache().map(|cache| cache.max_cas_blob_size_bytes).filter(|limit| *limit > 0)
    }

    /// Returns a client of the full store, if one was configured.
    pub(crate) async fn full(&self) -> Result<Option<Client>, Stop> {
        let Some(endpoint) = &self.options.full_endpoint else { return Ok(None) };
        let transport = crate::client::connect(endpoint)
            .await
            .map_err(|error| Stop::Fail(format!("cannot reach the full store {endpoint}: {error}")))?;
        Ok(Some(Client::new(transport, &self.client.instance, self.client.function)))
    }
}

/// Waits for an answer until the time limit.
pub(crate) async fn within<T>(
    limit: Duration,
    what: &str,
    answer: impl Future<Output = T>,
) -> Result<T, Stop> {
    tokio::time::timeout(limit, answer)
        .await
        .map_err(|_| Stop::Fail(format!("{what} was not answered within {} s", limit.as_secs())))
}

/// Passes because the server does not offer the subject of the statement.
#[expect(clippy::unnecessary_wraps, reason = "it is the value of a check")]
pub(crate) fn vacuous(what: &str) -> Judged {
    Ok(format!("{what}, so the statement does not apply"))
}

/// Passes with a remark about parts that were not checked.
#[expect(clippy::unnecessary_wraps, reason = "it is the value of a check")]
pub(crate) fn noted(remark: &str) -> Judged {
    Ok(remark.to_owned())
}
