//! What a build's workspace holds before its first task.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::{
    extent::DEPTH_MAX,
    tree::{Content, Folder, Node, TreeError},
};

/// What belongs to the tool that brought the files, and is not the same twice.
const LEFT_OUT: &str = ".git";
/// Threads that read and hash files.
const THREADS: usize = 4;

/// Reads which files there are in `root`, and not yet what is in them. What is neither file nor folder nor symlink, or
/// has no name in UTF-8, is left out: no task could name it. Blocks; ends early when the flag is set.
pub(crate) fn scan(root: &Path, cancelled: &AtomicBool) -> io::Result<Arc<Folder>> {
    read(root, 0, cancelled).map(Arc::new)
}

fn read(path: &Path, depth: usize, cancelled: &AtomicBool) -> io::Result<Folder> {
    if cancelled.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::Interrupted.into());
    }
    if depth >= DEPTH_MAX {
        return Err(io::Error::other(format!("more than {DEPTH_MAX} folders are in each other")));
    }
    let mut folder = Arc::default();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if depth == 0 && name == LEFT_OUT {
            continue;
        }
        let kind = entry.file_type()?;
        let path = entry.path();
        let node = if kind.is_dir() {
            Node::Folder(Arc::new(read(&path, depth + 1, cancelled)?))
        } else if kind.is_symlink() {
            let Ok(target) = fs::read_link(&path)?.into_os_string().into_string() else { continue };
            Node::Link(target.into())
        } else if kind.is_file() {
            let executable = entry.metadata()?.permissions().mode() & 0o111 != 0;
            Node::File { content: Arc::new(Content::local(path)), executable }
        } else {
            continue;
        };
        Folder::put(&mut folder, &name, node);
    }
    Ok(Arc::unwrap_or_clone(folder))
}

/// Hashes what is in files, several at a time. Blocks; ends early when the flag is set. What cannot be read is found out
/// by the task that needs it.
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
