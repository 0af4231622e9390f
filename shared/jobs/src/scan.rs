//! Scans a build's workspace before its first task.

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use disk::Confined;
use model::RESERVED_FOLDER;

use crate::{
    extent::DEPTH_MAX,
    tree::{Content, Folder, Node, TreeError},
};

/// Left out: the first belongs to the tool that fetched the files and differs each time, the second is the farm's.
const LEFT_OUT: [&str; 2] = [".git", RESERVED_FOLDER];
/// Threads that read and hash files.
const THREADS: usize = 4;

/// Lists the files in `root`, a resolved path, without reading their content. Entries that are not files, folders or symlinks, or whose
/// names are not UTF-8, are left out: no task could name them. Blocks; ends early when the flag is set.
pub(crate) fn scan(root: &Path, cancelled: &AtomicBool) -> io::Result<Arc<Folder>> {
    read((&Confined::open(root)?, root), 0, cancelled).map(Arc::new)
}

fn read((confined, path): (&Confined, &Path), depth: usize, cancelled: &AtomicBool) -> io::Result<Folder> {
    if cancelled.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::Interrupted.into());
    }
    if depth >= DEPTH_MAX {
        return Err(io::Error::other(format!("folders are nested deeper than {DEPTH_MAX}")));
    }
    let mut folder = Arc::default();
    for entry in confined.entries()? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if depth == 0 && LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        let kind = entry.file_type()?;
        let path = path.join(&name);
        let below = Path::new(&name);
        let node = if kind.is_dir() {
            Node::Folder(Arc::new(read((&confined.folder(below)?, &path), depth + 1, cancelled)?))
        } else if kind.is_symlink() {
            let Ok(target) = confined.link_target(below)?.into_os_string().into_string() else { continue };
            Node::Link(target.into())
        } else if kind.is_file() {
            let executable = confined.metadata(below)?.permissions().mode() & 0o111 != 0;
            Node::File { content: Arc::new(Content::local(path)), executable }
        } else {
            continue;
        };
        Folder::put(&mut folder, &name, node);
    }
    Ok(Arc::unwrap_or_clone(folder))
}

/// Hashes the contents of files with several threads. Blocks; ends early when the flag is set. A file that cannot be
/// read is reported by the task that needs it.
pub(crate) fn hash_all(contents: &[Arc<Content>], cancelled: &AtomicBool) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(content) = contents.get(next.fetch_add(1, Ordering::Relaxed)) {
            if cancelled.load(Ordering::Relaxed) {
                return;
            }
            let _: Result<_, TreeError> = content.digest();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(contents.len()) {
            scope.spawn(work);
        }
    });
}
