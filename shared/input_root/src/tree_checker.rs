//! After an action: keeps the usable parts of its tree for later actions, and removes the rest.

use std::{
    ffi::CString,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
};

use rustix::fs::CWD;
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    audit::Audit,
    pool::Pool,
    prepared_dir::PreparedDir,
    sweep::{Recycler, Removal, Sweeper},
};

/// A tree whose action has ended.
pub(crate) struct ReleasedTree {
    pub(crate) tree: u64,
    pub(crate) made: PreparedDir,
    pub(crate) permit: Option<Arc<OwnedSemaphorePermit>>,
}

/// Checks trees after their actions, one at a time.
pub(crate) struct TreeChecker {
    queue: Sender<ReleasedTree>,
}

impl TreeChecker {
    /// Starts the thread, which ends when the checker is dropped.
    pub(crate) fn start(recycler: Arc<Recycler>, pool: Arc<Pool>, sweeper: Arc<Sweeper>) -> io::Result<Self> {
        let (queue, taken) = channel::<ReleasedTree>();
        std::thread::Builder::new().name("input-root-keep".into()).spawn(move || {
            while let Ok(released) = taken.recv() {
                let permit = released.permit.clone();
                let folder = pool.folder(released.tree);
                for path in check_and_keep(&recycler, &pool, released, &folder) {
                    sweeper.sweep(Removal { path, permit: permit.clone() });
                }
            }
        })?;
        Ok(Self { queue })
    }

    pub(crate) fn enqueue(&self, released: ReleasedTree) {
        // The thread ends only after this sender is dropped.
        let _ = self.queue.send(released);
    }
}

/// Checks a tree and keeps its usable parts. Returns the paths to remove, which already are out of the way.
fn check_and_keep(recycler: &Recycler, pool: &Pool, released: ReleasedTree, folder: &Path) -> Vec<PathBuf> {
    let ReleasedTree { tree, mut made, .. } = released;
    let mut audit = Audit { recycler, uid: rustix::process::geteuid().as_raw(), to_remove: Vec::new() };
    let checked = CString::new(folder.as_os_str().as_encoded_bytes())
        .map_err(io::Error::from)
        .and_then(|name| audit.check(CWD, &name, &mut made));
    let mut to_remove = audit.to_remove;
    let mut gone = Vec::new();
    match checked {
        Ok(()) if made.has_whole() => gone = pool.put(tree, made),
        Ok(()) => gone.push(folder.to_owned()),
        Err(error) => {
            tracing::debug!(path = %folder.display(), %error, "cannot keep an input root");
            gone.push(folder.to_owned());
        }
    }
    for folder in gone {
        match recycler.move_path_to_trash(&folder) {
            Ok(path) => to_remove.extend(path),
            Err(error) => {
                tracing::warn!(path = %folder.display(), %error, "cannot remove an input root");
            }
        }
    }
    to_remove
}
