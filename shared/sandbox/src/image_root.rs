//! An image as the root of a sandbox.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use shim::{Overlay, User};

/// The files of an image, as the root of a sandbox. They have empty folders for what is mounted there.
#[derive(Clone)]
pub struct ImageRoot {
    /// Distinguishes images: a sandbox is kept for commands of the same one.
    pub id: String,
    /// The folder with the files, or on which `lower` is mounted.
    pub at: PathBuf,
    /// Folders that are mounted as overlay, the topmost first; empty if `at` has the files.
    pub lower: Vec<PathBuf>,
    /// Maximum bytes that a command may write into the folders of the image: they are kept in memory and vanish when the
    /// command has ended. `None` makes all of it read-only. Requires `lower`.
    pub writable_bytes: Option<u64>,
    /// The user that commands see themselves as, and whose files in the image are theirs; `None`: the user that they run as.
    pub user: Option<User>,
    /// Keeps the files while a sandbox uses them.
    pub keep: Arc<dyn Any + Send + Sync>,
}

impl ImageRoot {
    /// The same as a mount for commands that run as `user`, with `folders` whatever the image has there. `None`: its files are in
    /// `at`, and nothing is mounted.
    pub(crate) fn overlay(&self, user: Option<User>, folders: Vec<PathBuf>) -> Option<Overlay> {
        (!self.lower.is_empty()).then(|| Overlay {
            lower: self.lower.clone(),
            at: self.at.clone(),
            writable_bytes: self.writable_bytes,
            folders,
            owner: user.filter(|_| self.writable_bytes.is_some()),
            exchanged: self.user.zip(user).map(|(inner, outer)| [inner, outer]),
        })
    }
}

impl fmt::Debug for ImageRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageRoot").field("id", &self.id).finish_non_exhaustive()
    }
}
