//! Prepares the folder of an action, and takes it back afterwards.

use std::{
    collections::HashSet,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use invariant::impossible;
use model::BlobDigest;
use rustix::fs::CWD;

use crate::{
    InputError, InputRoot, InputRoots, OutputSpec, at,
    blocking::blocking,
    make::{NewDir, Outline, Span, TreeBuilder, finish, portions, wanted},
    plan::Plan,
    prepared_dir::{PreparedDir, Stamp},
    roots::{Folder, Inner},
    tree_checker::ReleasedTree,
};

/// Name of an input root in its slot.
const ROOT: &str = "root";

/// Number of portions of files put in place concurrently; more would only wait for each other in the kernel.
const PORTIONS_AT_ONCE: usize = 2;

/// Slightly more than one tick of a coarse clock.
const TICK: Duration = Duration::from_millis(11);

impl InputRoots {
    /// Sets up the input root of an action in the folder `slot`, which holds one input root and is used by one caller
    /// at a time: an input root that is still there is removed.
    ///
    /// The working directory must be in the input root. The parent directories of outputs are created, the outputs
    /// themselves are not. Dropping this future before it completes leaves nothing behind.
    pub async fn prepare(
        &self,
        slot: &Path,
        root: &BlobDigest,
        outputs: &OutputSpec,
    ) -> Result<InputRoot, InputError> {
        let plan = self.inner.plans.load(root).await?;
        loop {
            let (inner, plan, spec) = (Arc::clone(&self.inner), Arc::clone(&plan), outputs.clone());
            let new = slot.join(self.next().to_string());
            let begun = blocking(move || match inner.take_tree(&plan, &spec)? {
                Some((folder, made)) => Ok(FirstStep::Kept(folder, made)),
                None => inner.begin(new, &plan, &spec),
            });
            let (folder, mut made, is_kept) = match begun.await? {
                FirstStep::Kept(folder, made) => (folder, made, true),
                FirstStep::Done(folder, made) => (folder, made, false),
                FirstStep::Outlined(folder, outline, portions) => {
                    let made = self.fill(&folder, outline, portions, outputs).await?;
                    (folder, made, false)
                }
            };
            match self.rename_to_fixed_path(slot, &folder) {
                Ok(folder) => {
                    // With more directories than planned it would not be as planned.
                    let stat = (!outputs.needs_directories()).then(|| at::stat(CWD, &*folder.path));
                    made.stamp = stat.and_then(Result::ok).map(|stat| Stamp::own(&stat));
                    return Ok(InputRoot { folder, made, is_watched: false });
                }
                // It was removed by hand, or its mode prevents moving it. The next attempt tries another.
                Err(error) if is_kept => tracing::debug!(%error, "cannot use a kept input root"),
                Err(error) => return Err(error),
            }
        }
    }

    /// Loads all blobs of an input root into the store's local tier, so that `prepare` does not have to fetch any.
    pub async fn fetch(&self, root: &BlobDigest) -> Result<(), InputError> {
        let plan = self.inner.plans.load(root).await?;
        let (mut seen, mut dirs, mut wanted) = (HashSet::new(), vec![plan], Vec::new());
        while let Some(dir) = dirs.pop() {
            if seen.insert(dir.digest) {
                wanted.extend(dir.files.iter().map(|file| (file.digest, file.executable)));
                dirs.extend(dir.dirs.iter().map(|(_, below)| Arc::clone(below)));
            }
        }
        self.inner.config.cas.local_paths(&wanted).await?;
        Ok(())
    }

    /// Gives a finished input root the fixed name that is used in its slot: a command must always see the same
    /// path, or outputs that contain the path differ. Until here the name was unique, so that an abandoned input
    /// root does not interfere.
    fn rename_to_fixed_path(&self, slot: &Path, folder: &Folder) -> Result<Arc<Folder>, InputError> {
        let path = slot.join(ROOT);
        let failed = |what| InputError::io(what, &path);
        if folder.move_to(&path).is_err() {
            self.inner.sweeper.discard(&path, None).map_err(failed("clearing"))?;
            folder.move_to(&path).map_err(failed("naming"))?;
        }
        Ok(Arc::new(Folder::new(path, &self.inner.sweeper)))
    }

    async fn fill(
        &self,
        folder: &Arc<Folder>,
        outline: Outline,
        portions: Vec<Vec<Span>>,
        outputs: &OutputSpec,
    ) -> Result<PreparedDir, InputError> {
        let new = Arc::clone(&outline.new);
        let portions =
            futures::stream::iter(portions.into_iter().map(|spans| self.portion(folder, &new, spans)));
        let filled: Vec<Filled> = portions.buffer_unordered(PORTIONS_AT_ONCE).try_collect().await?;
        let copied = filled.iter().any(|filled| filled.copied);
        let (mut stamps, mut missing) = (Vec::new(), Vec::new());
        for filled in filled {
            stamps.extend(filled.stamps);
            missing.extend(filled.missing);
        }
        if !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup();
            return Err(InputError::Missing(missing));
        }
        let (inner, folder, spec) = (Arc::clone(&self.inner), Arc::clone(folder), outputs.clone());
        blocking(move || inner.complete(&folder.path, outline, stamps, copied, &spec)).await
    }

    /// Looks up some files in the store and puts them in place.
    async fn portion(
        &self,
        folder: &Arc<Folder>,
        new: &Arc<[NewDir]>,
        spans: Vec<Span>,
    ) -> Result<Filled, InputError> {
        let cas = &self.inner.config.cas;
        let wanted = wanted(new, &spans);
        let mut again = true;
        loop {
            let mut sources = Vec::with_capacity(wanted.len());
            let mut missing = Vec::new();
            for (path, (digest, _)) in cas.local_paths(&wanted).await?.into_iter().zip(&wanted) {
                match path {
                    Some(path) => sources.push(path),
                    None => missing.push(*digest),
                }
            }
            if !missing.is_empty() {
                return Ok(Filled { missing, ..Filled::default() });
            }
            let (inner, folder, new, these) =
                (Arc::clone(&self.inner), Arc::clone(folder), Arc::clone(new), spans.clone());
            let placed = blocking(move || {
                let placed = inner.builder().place(&folder.path, &new, &these, &sources);
                placed.map_err(InputError::io("putting files in place in", &folder.path))
            });
            let placed = placed.await?;
            if placed.gone.is_empty() {
                return Ok(Filled { stamps: placed.stamps, missing: Vec::new(), copied: placed.copied });
            }
            // The store believed that it had these blobs. The files that existed are already in place.
            placed.gone.iter().for_each(|digest| cas.forget(digest));
            if !std::mem::take(&mut again) {
                return Ok(Filled { missing: placed.gone, ..Filled::default() });
            }
        }
    }

    /// Returns an input root after all processes of its action have ended. When this function returns, the folder is
    /// gone from its slot; a small tree is checked by then, the rest is done later.
    pub async fn release(&self, root: InputRoot) {
        let permit = match Arc::clone(&self.inner.backlog).acquire_owned().await {
            Ok(permit) => Some(Arc::new(permit)),
            Err(error) => {
                impossible!("the semaphore of released input roots is closed: {error}");
                None
            }
        };
        let InputRoot { folder, made, is_watched } = root;
        let (tree, inner) = (self.next(), Arc::clone(&self.inner));
        let moved = blocking(move || {
            let discard = || {
                let discarded = inner.sweeper.discard(&folder.path, permit.clone());
                discarded.map_err(InputError::io("throwing away", &folder.path))
            };
            if is_watched {
                return discard();
            }
            let unchanged = !inner.coarse_clock
                && made.stamp.is_some()
                && at::stat(CWD, &*folder.path).is_ok_and(|stat| made.stamp == Some(Stamp::own(&stat)));
            if folder.move_to(&inner.pool.folder(tree)).is_ok() {
                inner.checker.check(ReleasedTree { tree, made, unchanged, permit });
                return Ok(());
            }
            // The path is on another file system, or the action removed our permission to move it.
            discard()
        });
        if let Err(error) = moved.await {
            tracing::warn!(%error, "cannot release an input root");
        }
    }
}

/// The state of a tree after the first step, and its folder.
enum FirstStep {
    /// A whole tree of an earlier action, still in the folder where it was kept.
    Kept(Arc<Folder>, PreparedDir),
    Done(Arc<Folder>, PreparedDir),
    Outlined(Arc<Folder>, Outline, Vec<Vec<Span>>),
}

#[derive(Default)]
struct Filled {
    stamps: Vec<(Span, Vec<Stamp>)>,
    missing: Vec<BlobDigest>,
    copied: bool,
}

impl Inner {
    fn builder(&self) -> TreeBuilder<'_> {
        TreeBuilder { pool: &self.pool, recycler: &self.recycler, owner: self.config.owner, link: self.link }
    }

    /// Takes a whole tree of an earlier action, with the directories that the command needs.
    fn take_tree(
        &self,
        plan: &Plan,
        outputs: &OutputSpec,
    ) -> Result<Option<(Arc<Folder>, PreparedDir)>, InputError> {
        let Some((path, made)) = self.pool.take_tree(&plan.digest) else { return Ok(None) };
        let folder = Folder::new(path, &self.sweeper);
        self.make_directories(&folder.path, outputs)?;
        Ok(Some((Arc::new(folder), made)))
    }

    /// Sets up the directories of a tree in the new folder `path`.
    fn begin(&self, path: PathBuf, plan: &Arc<Plan>, outputs: &OutputSpec) -> Result<FirstStep, InputError> {
        let folder = Arc::new(Folder::new(path, &self.sweeper));
        let path = &*folder.path;
        let failed = |what| InputError::io(what, path);
        let outline = match self.builder().outline(path, plan) {
            // An earlier process left something with that name.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists
                        | io::ErrorKind::DirectoryNotEmpty
                        | io::ErrorKind::NotADirectory
                ) =>
            {
                self.sweeper.discard(path, None).map_err(failed("clearing"))?;
                self.builder().outline(path, plan)
            }
            outline => outline,
        };
        let outline = outline.map_err(failed("setting up directories in"))?;
        self.sweeper.restock();
        let portions = portions(&outline.new);
        if portions.is_empty() {
            let made = self.complete(path, outline, Vec::new(), false, outputs)?;
            return Ok(FirstStep::Done(folder, made));
        }
        Ok(FirstStep::Outlined(folder, outline, portions))
    }

    /// Checks the working directory of a command and creates the parent directories of its outputs.
    fn make_directories(&self, folder: &Path, outputs: &OutputSpec) -> Result<(), InputError> {
        if !outputs.needs_directories() {
            return Ok(());
        }
        let opened = at::open_path(folder).map_err(InputError::io("opening", folder))?;
        check_working_directory(&opened, outputs)?;
        self.make_parents(&opened, outputs)
    }

    fn complete(
        &self,
        folder: &Path,
        outline: Outline,
        stamps: Vec<(Span, Vec<Stamp>)>,
        copied: bool,
        outputs: &OutputSpec,
    ) -> Result<PreparedDir, InputError> {
        self.make_directories(folder, outputs)?;
        let made = finish(folder, outline, stamps).map_err(InputError::io("finishing", folder))?;
        if copied && self.coarse_clock {
            // Ensures that changes by the action get a different timestamp.
            std::thread::sleep(TICK);
        }
        Ok(made)
    }

    fn make_parents(&self, root: &OwnedFd, outputs: &OutputSpec) -> Result<(), InputError> {
        let mut last = "";
        for output in &outputs.outputs {
            let Some((parent, _)) = output.place.rsplit_once('/') else { continue };
            if parent != last {
                let made =
                    at::make_beneath(root.as_fd(), parent, |at, name| self.recycler.make_dir(at, name));
                made.map_err(|error| {
                    InputError::Invalid(format!(
                        "cannot create the directory of output {:?}: {error}",
                        output.path
                    ))
                })?;
                last = parent;
            }
        }
        Ok(())
    }
}

fn check_working_directory(root: &OwnedFd, outputs: &OutputSpec) -> Result<(), InputError> {
    let path = &*outputs.working_directory;
    match at::open_beneath(root, path) {
        Ok(_) => Ok(()),
        Err(error) => Err(InputError::Invalid(format!(
            "working directory {path:?} is not a directory of the input root ({error})"
        ))),
    }
}
