//! Input roots and outputs of actions: a folder is set up from the store before an action runs, and the outputs of
//! the action are stored afterwards.
//!
//! - [`InputRoots::prepare`]: files are hard links to the store's own, read-only and not owned by the action; whole
//!   directories of earlier actions are reused with one rename.
//! - [`InputRoots::collect`]: outputs, standard output and standard error as fields of an action result.
//! - [`InputRoots::release`]: the folder is checked and kept for later actions, or else removed; this happens outside
//!   the critical path of actions.
//! - [`local`]: the same for the machine of a client: folders to blobs, results to folders.

mod at;
mod audit;
mod blocking;
mod collect;
mod config;
mod error;
pub mod local;
mod make;
mod plan;
mod pool;
mod prepare;
mod prepared_dir;
mod roots;
mod spec;
mod sweep;
mod tree_checker;

pub use collect::{Collected, Console};
pub use config::{InputRootsConfig, Owner};
pub use error::{CollectError, InputError};
pub use pool::PoolUse;
pub use roots::{InputRoot, InputRoots};
pub use spec::{NODE_PROPERTIES, OutputSpec};
