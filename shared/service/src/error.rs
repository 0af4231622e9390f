//! Why a service did not start, or stopped.

use std::error::Error as StdError;

use bus::BusError;
use cas::CasError;
use index::IndexError;
use store::StoreError;

/// A service that could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The bus.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The topology.
    #[error(transparent)]
    Topology(#[from] jetstream::TopologyError),
    /// Redis.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The content-addressable store.
    #[error(transparent)]
    Cas(#[from] CasError),
    /// The store is not the farm's.
    #[error(transparent)]
    OtherStore(#[from] Box<crate::OtherStore>),
    /// The farm's store is not on this machine.
    #[error(
        "the farm keeps its files at {url}, and this machine does not have that folder: mount it there, or name another \
         path to it with --store"
    )]
    NoStore {
        /// Where.
        url: String,
    },
    /// The limit of open files is too low for the settings.
    #[error(transparent)]
    TooFewDescriptors(#[from] policy::connections::TooFewDescriptors),
    /// The limit of open files cannot be read.
    #[error("cannot read how many files this process may have open")]
    Descriptors(#[source] std::io::Error),
    /// An address that cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl From<crate::OtherStore> for StartError {
    fn from(other: crate::OtherStore) -> Self {
        Self::OtherStore(Box::new(other))
    }
}

impl StartError {
    /// Whether what it was started with must change: exit code 2.
    pub fn is_misuse(&self) -> bool {
        matches!(
            self,
            Self::OtherStore(_) | Self::NoStore { .. } | Self::Store(StoreError::Unsupported { .. })
        )
    }

    /// Whether a server is not there: exit code 4.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Bus(BusError::Unreachable { .. } | BusError::Timeout { .. })
                | Self::Index(IndexError::Unreachable { .. })
        )
    }
}

/// A service that stopped by a fault.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Something it cannot go on without.
    #[error("{what} failed")]
    Failed {
        /// What.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl ServiceError {
    /// A fault of `what`.
    pub fn failed(what: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Failed { what: what.into(), source: source.into() }
    }
}

impl From<BusError> for ServiceError {
    fn from(error: BusError) -> Self {
        Self::Start(error.into())
    }
}

impl From<jetstream::TopologyError> for ServiceError {
    fn from(error: jetstream::TopologyError) -> Self {
        Self::Start(error.into())
    }
}

impl From<IndexError> for ServiceError {
    fn from(error: IndexError) -> Self {
        Self::Start(error.into())
    }
}
