//! The reason why a pass of dispatch failed.

use bus::BusError;
use index::IndexError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Bus(#[from] BusError),
}
