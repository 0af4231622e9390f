//! What readers of tar archives of others have in common: decompression, and headers of limited size.

mod decompress;
mod headers;

pub use decompress::{DecompressError, decompress};
pub use headers::{EntryHeaders, HeaderError};
