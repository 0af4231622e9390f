//! Collects the parts of a tree that must be sent.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::Ordering},
};

use invariant::impossible;
use model::BlobDigest;
use remote::Source;

use crate::tree::{Content, Folder, Node, TreeError};

/// The parts of a tree that the farm's store may lack.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// Folders, children before their parents.
    pub(crate) folders: Vec<Arc<Folder>>,
    pub(crate) contents: Vec<Arc<Content>>,
    /// Folders that were already visited: equal folders are visited once.
    seen: HashSet<usize>,
}

impl Unsent {
    /// Collects from the tree `root`; with `all`, also parts that were sent before.
    pub(crate) fn of(root: &Arc<Folder>, all: bool) -> Self {
        let mut unsent = Self::default();
        unsent.add(root, all);
        unsent
    }

    fn add(&mut self, folder: &Arc<Folder>, all: bool) {
        if (!all && folder.sent.load(Ordering::Relaxed)) || !self.seen.insert(Arc::as_ptr(folder).addr()) {
            return;
        }
        for node in folder.entries().values() {
            match node {
                Node::File { content, .. } => {
                    let wanted = all || !content.sent.load(Ordering::Relaxed);
                    if wanted && content.path.is_some() {
                        self.contents.push(Arc::clone(content));
                    }
                }
                Node::Folder(below) => self.add(below, all),
                Node::Link(_) => {}
            }
        }
        self.folders.push(Arc::clone(folder));
    }

    /// Adds all collected parts to `blobs`.
    pub(crate) fn add_to(&self, blobs: &mut HashMap<BlobDigest, Source>) -> Result<(), TreeError> {
        for content in &self.contents {
            let Some(path) = content.path() else {
                impossible!("content to send has no local file");
                continue;
            };
            blobs.insert(content.digest()?, Source::File(path.clone()));
        }
        for folder in &self.folders {
            let (digest, message) = folder.message()?;
            blobs.insert(*digest, Source::Bytes(message.clone()));
        }
        Ok(())
    }

    /// Records that the farm's store has all of them.
    pub(crate) fn mark_sent(&self) {
        for content in &self.contents {
            content.mark_sent();
        }
        for folder in &self.folders {
            folder.sent.store(true, Ordering::Relaxed);
        }
    }
}
