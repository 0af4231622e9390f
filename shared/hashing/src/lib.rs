//! Hashes content while it is read or copied.

mod content_hasher;
mod copy_error;
mod file;
mod stream;

pub use content_hasher::ContentHasher;
pub use copy_error::CopyError;
pub use file::{copy_reader, hash_file, hash_reader};
pub use stream::{copy_stream, hash_file_async};

#[cfg(test)]
mod tests;
