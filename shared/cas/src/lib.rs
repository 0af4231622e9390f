//! The content-addressable store and the action cache, on the local disk, optionally with an object store behind it.
//! This crate has no gRPC services.

mod action;
mod action_memo;
mod backing;
mod blocking;
mod config;
mod directory_memo;
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
mod list;
mod local;
mod memo;
mod output_tree;
mod output_tree_memo;
mod pieces;
mod read;
mod refusal;
mod split;
mod store;
mod tree;
mod wire;
mod write;
mod writer;

pub use blocking::{dedicate_thread, is_thread_dedicated};
pub use config::CasConfig;
pub use error::CasError;
pub use evict::{CasRoom, Evictor, EvictorConfig, Pass};
pub use identity::folder_id;
pub use layout::ID_NAME as STORE_ID;
pub use list::Listed;
pub use pieces::BlobStream;
pub use refusal::Refusal;
pub use split::{ChunkingFunction, FAST_CDC_AVERAGE_BYTES, FAST_CDC_SEED, Split};
pub use store::{Cas, CasStats, UsageSink};
pub use tree::{TreeCheck, TreeFault};
pub use writer::CasWriter;
