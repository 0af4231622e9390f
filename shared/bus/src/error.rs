//! What can go wrong on the bus, in the callers' words.

use std::error::Error as StdError;

/// A call to the bus that failed.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The URL is none.
    #[error("nats URL {url:?} is not valid")]
    Url {
        /// The URL.
        url: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No server answers.
    #[error("nats-server at {url} is not reachable")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A write or read did not come to an end in time; whether it took effect is not known.
    #[error("{what} did not finish in time")]
    Timeout {
        /// What was tried.
        what: String,
    },
    /// The server said no.
    #[error("{what} failed")]
    Failed {
        /// What was tried.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A stored message is not what it should be.
    #[error("message {sequence} on {subject} cannot be read")]
    Corrupt {
        /// Its position.
        sequence: u64,
        /// Its subject.
        subject: String,
        /// Why.
        #[source]
        source: crate::DecodeError,
    },
    /// The server refuses a message of this size.
    #[error("{what} is larger than the server takes")]
    TooLarge {
        /// What was tried.
        what: String,
    },
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
