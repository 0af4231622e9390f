//! Errors of starting and running a service.

use std::error::Error as StdError;

use bus::BusError;
use cas::CasError;
use index::IndexError;

/// A service that could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Topology(#[from] jetstream::TopologyError),
    #[error("{missing}: create what is missing with `forebay topology --apply`")]
    NoTopology {
        /// A stream or consumer that does not exist.
        missing: Box<jetstream::Difference>,
    },
    /// The key of another service, whose permissions do not suffice.
    #[error(
        "the seed of user {user} cannot be used by the service {service}: expected one of {service}.NAME"
    )]
    OtherSeed { user: credentials::BusUser, service: &'static str },
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Cas(#[from] CasError),
    #[error(transparent)]
    OtherStore(#[from] Box<crate::OtherStore>),
    /// The farm's store is a folder that does not exist on this machine.
    #[error("the farm keeps its blobs at {url}, a folder that does not exist on this machine: {remedy}")]
    NoStore {
        url: String,
        /// What the operator can do.
        remedy: String,
    },
    #[error(transparent)]
    TooFewDescriptors(#[from] policy::connections::TooFewDescriptors),
    #[error("cannot read this process's limit of open files")]
    Descriptors(#[source] std::io::Error),
    #[error("cannot use the settings of TLS")]
    Tls(#[from] listener::TlsError),
    #[error(transparent)]
    Access(#[from] callers::AccessFileError),
    #[error("the setting zones is invalid")]
    Zones(#[from] policy::zones::ParseZoneError),
    #[error(transparent)]
    Key(#[from] credentials::KeyFileError),
    #[error("cannot listen on {address}")]
    Listen {
        address: String,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: String,
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
    /// Whether the configuration or arguments must change: exit code 2.
    pub fn is_misuse(&self) -> bool {
        matches!(
            self,
            Self::OtherStore(_)
                | Self::NoStore { .. }
                | Self::Cas(CasError::Unsupported { .. })
                | Self::Tls(_)
                | Self::OtherSeed { .. }
                | Self::Bus(BusError::Credentials(_))
                | Self::Index(IndexError::Credentials(_))
                | Self::Access(_)
                | Self::Key(_)
                | Self::Zones(_)
        )
    }

    /// Whether a server is unreachable: exit code 4.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Bus(BusError::Unreachable { .. } | BusError::Timeout { .. })
                | Self::Cas(CasError::Unreachable { .. })
                | Self::Index(IndexError::Unreachable { .. })
                | Self::NoTopology { .. }
        )
    }
}

/// A service that stopped because of an error.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    Start(#[from] StartError),
    /// A component that the service cannot work without has failed.
    #[error("{what} failed")]
    Failed {
        what: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl ServiceError {
    /// An error of `what`.
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
