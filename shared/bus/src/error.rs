//! Errors of the bus, in terms of what the caller tried to do.

use std::error::Error as StdError;

use credentials::{SeedFault, TlsFault, UserFault};

use crate::Denied;

/// A failed call to the bus.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    #[error("invalid NATS URL {url:?}")]
    Url {
        url: String,
        #[source]
        source: std::io::Error,
    },
    #[error("nats-server at {url} is not reachable")]
    Unreachable {
        url: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    #[error("the credentials for nats-server cannot be used")]
    Credentials(#[source] Box<dyn StdError + Send + Sync>),
    /// A write or read did not finish in time; whether it took effect is not known.
    #[error("{what} did not finish in time")]
    Timeout {
        /// Description of the attempted operation, as a gerund phrase.
        what: String,
    },
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(
        "nats-server no longer admits {user}: its key was revoked or replaced, its file is gone, or its JWT has expired; ask an operator"
    )]
    Refused {
        /// Name of the user.
        user: String,
    },
    /// The server returned an error.
    #[error("{what} failed")]
    Failed {
        /// Description of the attempted operation, as a gerund phrase.
        what: String,
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A stored message cannot be decoded.
    #[error("message {sequence} on {subject} cannot be read")]
    Corrupt {
        sequence: u64,
        subject: String,
        #[source]
        source: crate::DecodeError,
    },
    /// No service with the key of the farm accepted what a record describes.
    #[error(
        "message {sequence} on {subject} is not what an enqueuer or a gateway of this farm accepted: its first record has no seal \
         by the key of this process (seal_key_file), or describes other work"
    )]
    Unsealed { sequence: u64, subject: String },
    /// The message exceeds the server's size limit.
    #[error("{what} is larger than the server accepts")]
    TooLarge {
        /// Description of the message that was too large.
        what: String,
    },
}

impl From<UserFault> for BusError {
    fn from(fault: UserFault) -> Self {
        Self::Credentials(Box::new(fault))
    }
}

impl From<SeedFault> for BusError {
    fn from(fault: SeedFault) -> Self {
        Self::Credentials(Box::new(fault))
    }
}

impl From<TlsFault> for BusError {
    fn from(fault: TlsFault) -> Self {
        Self::Credentials(Box::new(fault))
    }
}

impl BusError {
    pub(crate) fn failed<E>(what: impl Into<String>) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let what = what.into();
        move |source| Self::Failed { what, source: source.into() }
    }
}
