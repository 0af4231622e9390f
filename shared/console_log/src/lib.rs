//! Long console output: how it is cut into frames, what a frame looks like and how it is read, and the index of a log by
//! byte and line; no I/O.

mod format;
mod index;
mod packer;

pub use format::{BLOB_MAX, FrameError, pack, unpack};
pub use index::{LogIndex, Piece};
pub use packer::{FRAME_MAX, Packer, Raw, Run};
