//! After an action: keeps the usable parts of its tree for later actions, and removes the rest.

use std::{
    ffi::CString,
    io,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
};

use invariant::impossible;
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
    /// Whether its top directory had its stamp until it was moved to the pool.
    pub(crate) unchanged: bool,
    pub(crate) permit: Option<Arc<OwnedSemaphorePermit>>,
}

/// Maximum number of files, directories and symlinks of a tree that is checked at once: passing it to the
/// thread would take longer.
const AT_ONCE_MAX: u64 = 16;

/// Maximum number of names in a directory of such a tree after its action.
const AT_ONCE_NAMES_MAX: usize = 32;

/// Checks trees after their actions: small ones at once, the others one at a time on a thread.
pub(crate) struct TreeChecker {
    queue: Sender<ReleasedTree>,
    keeper: Arc<Keeper>,
}

/// Where the parts of a checked tree go.
struct Keeper {
    recycler: Arc<Recycler>,
    pool: Arc<Pool>,
    sweeper: Arc<Sweeper>,
    trusts_stamps: bool,
}

impl TreeChecker {
    /// Starts the thread, which ends when the checker is dropped. `trusts_stamps`: each change of a
    /// directory changes its stamp.
    pub(crate) fn start(
        recycler: Arc<Recycler>,
        pool: Arc<Pool>,
        sweeper: Arc<Sweeper>,
        trusts_stamps: bool,
    ) -> io::Result<Self> {
        let (queue, taken) = channel::<ReleasedTree>();
        let keeper = Arc::new(Keeper { recycler, pool, sweeper, trusts_stamps });
        let this = Arc::clone(&keeper);
        std::thread::Builder::new().name("input-root-keep".into()).spawn(move || {
            while let Ok(released) = taken.recv() {
                if this.check(released, usize::MAX).is_some() {
                    impossible!("a directory has more names than memory can hold");
                }
            }
        })?;
        Ok(Self { queue, keeper })
    }

    /// Checks a tree that is in its folder of the pool: at once if it is small and its action
    /// added little, otherwise later.
    pub(crate) fn check(&self, released: ReleasedTree) {
        let small = released.made.plan.entries <= AT_ONCE_MAX;
        let rest = if small { self.keeper.check(released, AT_ONCE_NAMES_MAX) } else { Some(released) };
        if let Some(released) = rest {
            // The thread ends only after this sender is dropped.
            let _ = self.queue.send(released);
        }
    }
}

impl Keeper {
    /// Checks a tree, keeps its usable parts and removes the rest. Returns the tree if one of its directories
    /// has more than `names_max` names.
    fn check(&self, mut released: ReleasedTree, names_max: usize) -> Option<ReleasedTree> {
        let folder = self.pool.folder(released.tree);
        let mut audit = Audit::new(&self.recycler, names_max, self.trusts_stamps);
        let checked = CString::new(folder.as_os_str().as_encoded_bytes())
            .map_err(io::Error::from)
            .and_then(|name| audit.check(CWD, &name, &mut released.made, released.unchanged));
        let (is_complete, to_remove) = audit.end();
        self.sweep(to_remove, released.permit.as_ref());
        if !is_complete {
            return Some(released);
        }
        let ReleasedTree { tree, made, permit, .. } = released;
        let gone = match checked {
            Ok(()) if made.has_whole() => self.pool.put(tree, made),
            Ok(()) => vec![folder],
            Err(error) => {
                tracing::debug!(path = %folder.display(), %error, "cannot keep an input root");
                vec![folder]
            }
        };
        for folder in gone {
            match self.recycler.move_path_to_trash(&folder) {
                Ok(path) => self.sweep(path, permit.as_ref()),
                Err(error) => {
                    tracing::warn!(path = %folder.display(), %error, "cannot remove an input root");
                }
            }
        }
        None
    }

    /// Removes what is already out of the way.
    fn sweep(&self, paths: impl IntoIterator<Item = PathBuf>, permit: Option<&Arc<OwnedSemaphorePermit>>) {
        for path in paths {
            self.sweeper.sweep(Removal { path, permit: permit.cloned(), recycles: true });
        }
    }
}
