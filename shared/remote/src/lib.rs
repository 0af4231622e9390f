//! A client of the Remote Execution API: uploads and downloads blobs and executes actions. Used by the command line,
//! the benchmarks, and stores whose backing is another farm.

mod connect;
mod download;
mod error;
mod execute;
mod image_fetch;
mod login;
mod meter;
mod resume;
mod transfer;
mod tree;

pub use connect::{Connection, Remote, Resume};
pub use download::Placed;
pub use error::RemoteError;
pub use execute::{Executed, action_of};
pub use image_fetch::image_fetch;
pub use login::{Credentials, Login, log_in};
pub use meter::{Meter, Reading};
pub use transfer::{Source, batches, is_small};
