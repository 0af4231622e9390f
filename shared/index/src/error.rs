//! Errors of calls to Redis.

/// A failed call to Redis.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    #[error("invalid URL of Redis {url:?}")]
    Url {
        url: String,
        #[source]
        source: redis::RedisError,
    },
    #[error("the credentials for Redis cannot be used")]
    Credentials(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("Redis at {url} is not reachable")]
    Unreachable {
        url: String,
        #[source]
        source: redis::RedisError,
    },
    #[error("call {what} of Redis failed")]
    Call {
        what: &'static str,
        #[source]
        source: redis::RedisError,
    },
    /// Redis returned an answer of an unexpected type or shape.
    #[error("unexpected answer of Redis to {what}")]
    Answer {
        /// Name of the call.
        what: &'static str,
    },
}
