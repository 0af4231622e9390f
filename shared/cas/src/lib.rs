//! The content-addressable store and the action cache, on the local disk, optionally with an object store behind it.
//! This crate has no gRPC services.

mod action_cache;
mod backing;
mod blocking;
mod buffers;
mod config;
mod disk;
mod empty_blob;
mod error;
mod evict;
mod fetch;
mod file;
mod find;
mod identity;
mod known;
mod layout;
mod local;
mod memo;
mod paths;
mod pieces;
mod put_progress;
mod read;
mod records;
mod refusal;
mod split;
mod stats;
mod store;
mod trees;
mod write;
mod writer;

pub use blocking::{dedicate_thread, is_thread_dedicated};
pub use config::CasConfig;
pub use error::CasError;
pub use evict::{CasRoom, Evictor, EvictorConfig, Pass};
pub use file::StoredFiles;
pub use identity::folder_id;
pub use layout::ID_NAME as STORE_ID;
pub use local::{Listed, UsageSink};
pub use pieces::BlobStream;
pub use put_progress::PutProgress;
pub use refusal::Refusal;
pub use split::{ChunkingFunction, FAST_CDC_AVERAGE_BYTES, FAST_CDC_SEED, Split};
pub use stats::CasStats;
pub use store::Cas;
pub use trees::{TreeCheck, TreeFault};
pub use writer::CasWriter;
