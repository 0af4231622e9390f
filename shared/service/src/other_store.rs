//! The error of a service whose store is not the one of its farm.

/// A store that does not belong to the farm.
#[derive(Debug, thiserror::Error)]
#[error("the store {url} does not belong to this farm ({farm}), which uses {known}: {remedy}")]
pub struct OtherStore {
    pub(crate) url: String,
    pub(crate) farm: String,
    pub(crate) known: String,
    pub(crate) remedy: String,
}
