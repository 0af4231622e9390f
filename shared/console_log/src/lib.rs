//! Frames of long console output: how output is cut into frames, what a frame looks like, and how it is read; no I/O.

mod format;
mod packer;

pub use format::{BLOB_MAX, FrameError, pack, unpack};
pub use packer::{FRAME_MAX, Packer, Raw, Run};
