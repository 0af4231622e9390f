//! The plan of an input root: its directories, read from the store, checked and remembered by digest.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cas::Cas;
use model::{BlobDigest, DigestFunction};
use prost::Message as _;
use quick_cache::{Weighter, sync::Cache};
use reapi::{
    digest::from_proto,
    directory::{AbsoluteTargets, check_with},
    execution::{Directory, NodeProperties},
};
use rustix::fs::Timespec;

use crate::InputError;

/// Maximum depth of nested directories.
pub(crate) const DEPTH_MAX: u32 = 256;

/// Maximum number of directories read from the store at once.
const READ_TOGETHER: usize = 256;

/// Maximum number of blobs in one query for missing blobs.
const ASK_TOGETHER: usize = 10_000;

/// Times and mode that the client gave a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Props {
    pub(crate) mtime: Option<Timespec>,
    pub(crate) mode: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct PlanFile {
    pub(crate) name: Box<str>,
    pub(crate) digest: BlobDigest,
    pub(crate) executable: bool,
    pub(crate) props: Option<Box<Props>>,
}

#[derive(Debug)]
pub(crate) struct PlanLink {
    pub(crate) name: Box<str>,
    pub(crate) target: Box<str>,
    pub(crate) mtime: Option<Timespec>,
}

/// A directory and all below it; directories with the same digest share one plan. All lists are sorted by name.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) digest: BlobDigest,
    pub(crate) files: Box<[PlanFile]>,
    pub(crate) links: Box<[PlanLink]>,
    pub(crate) dirs: Box<[(Box<str>, Arc<Plan>)]>,
    pub(crate) props: Option<Props>,
    /// Number of entries in the expanded tree, this directory included.
    pub(crate) entries: u64,
    /// Bytes of all files.
    pub(crate) bytes: u64,
    depth: u32,
}

/// Weighs a plan by its own entries.
#[derive(Clone)]
struct Entries;

impl Weighter<BlobDigest, Arc<Plan>> for Entries {
    fn weight(&self, _: &BlobDigest, plan: &Arc<Plan>) -> u64 {
        (1 + plan.files.len() + plan.links.len() + plan.dirs.len()) as u64
    }
}

pub(crate) struct Plans {
    cas: Cas,
    known: Cache<BlobDigest, Arc<Plan>, Entries>,
    entries_max: u64,
    absolute: AbsoluteTargets,
}

impl Plans {
    /// `remembered`: number of directory entries that are kept in memory.
    pub(crate) fn new(cas: Cas, remembered: u64, entries_max: u64, absolute: AbsoluteTargets) -> Self {
        let estimate = usize::try_from(remembered / 8).unwrap_or(1000);
        Self { cas, known: Cache::with_weighter(estimate, remembered, Entries), entries_max, absolute }
    }

    /// Loads the plan of the tree with this root.
    pub(crate) async fn load(&self, root: &BlobDigest) -> Result<Arc<Plan>, InputError> {
        if let Some(plan) = self.known.get(root) {
            return Ok(plan);
        }
        let mut found = HashMap::new();
        let mut ready = HashMap::new();
        let mut missing = Vec::new();
        let mut asked = HashSet::from([*root]);
        let mut next = vec![*root];
        while !next.is_empty() {
            let batch = next.split_off(next.len().saturating_sub(READ_TOGETHER));
            for (digest, content) in batch.iter().zip(self.cas.get_many(&batch).await?) {
                let Some(content) = content else {
                    missing.push(*digest);
                    continue;
                };
                let directory = self.read(digest, content)?;
                for child in &directory.directories {
                    let child = child_digest(child.digest.as_ref(), root.function)?;
                    if asked.insert(child) {
                        match self.known.get(&child) {
                            Some(plan) => drop(ready.insert(child, plan)),
                            None => next.push(child),
                        }
                    }
                }
                found.insert(*digest, directory);
            }
        }
        if !missing.is_empty() {
            return Err(self.all_missing(missing, &found, root.function).await);
        }
        let plan = self.assemble(root, &mut found, &mut ready)?;
        self.bounded(&plan)?;
        Ok(plan)
    }

    fn read(&self, digest: &BlobDigest, content: bytes::Bytes) -> Result<Directory, InputError> {
        let directory = Directory::decode(content)
            .map_err(|error| InputError::Invalid(format!("blob {digest} is not a directory: {error}")))?;
        check_with(&directory, self.absolute)
            .map_err(|fault| InputError::Invalid(format!("invalid input directory {digest}: {fault}")))?;
        Ok(directory)
    }

    /// Assembles children before parents. A directory cannot contain itself: it would have to contain its own hash.
    fn assemble(
        &self,
        root: &BlobDigest,
        found: &mut HashMap<BlobDigest, Directory>,
        ready: &mut HashMap<BlobDigest, Arc<Plan>>,
    ) -> Result<Arc<Plan>, InputError> {
        let mut stack = vec![*root];
        let mut expanded = HashSet::new();
        while let Some(digest) = stack.last().copied() {
            if ready.contains_key(&digest) {
                stack.pop();
                continue;
            }
            if expanded.insert(digest) {
                let directory = found.get(&digest).ok_or_else(|| InputError::Missing(vec![digest]))?;
                for child in &directory.directories {
                    stack.push(child_digest(child.digest.as_ref(), root.function)?);
                }
                continue;
            }
            stack.pop();
            if let Some(directory) = found.remove(&digest) {
                let plan = Arc::new(plan(digest, directory, ready)?);
                if plan.depth > DEPTH_MAX {
                    return Err(InputError::Invalid(format!(
                        "the input root is nested deeper than {DEPTH_MAX} directories"
                    )));
                }
                self.known.insert(digest, Arc::clone(&plan));
                ready.insert(digest, plan);
            }
        }
        ready.remove(root).ok_or_else(|| InputError::Missing(vec![*root]))
    }

    fn bounded(&self, plan: &Plan) -> Result<(), InputError> {
        if plan.entries > self.entries_max {
            return Err(InputError::Invalid(format!(
                "the expanded input root has {} files and directories (limit {})",
                plan.entries, self.entries_max
            )));
        }
        Ok(())
    }

    /// Finds everything that is missing, as far as it can be known: both directories and files.
    async fn all_missing(
        &self,
        mut missing: Vec<BlobDigest>,
        found: &HashMap<BlobDigest, Directory>,
        function: DigestFunction,
    ) -> InputError {
        let files = found.values().flat_map(|directory| &directory.files);
        let wanted: HashSet<BlobDigest> =
            files.filter_map(|file| from_proto(file.digest.as_ref()?, function).ok()).collect();
        let wanted: Vec<BlobDigest> = wanted.into_iter().collect();
        for some in wanted.chunks(ASK_TOGETHER) {
            match self.cas.missing(some).await {
                Ok(more) => missing.extend(more),
                Err(error) => return error.into(),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        InputError::Missing(missing)
    }
}

fn child_digest(
    digest: Option<&reapi::execution::Digest>,
    function: DigestFunction,
) -> Result<BlobDigest, InputError> {
    let digest =
        digest.ok_or_else(|| InputError::Invalid("an entry of the input root has no digest".into()))?;
    from_proto(digest, function).map_err(|error| InputError::Invalid(error.to_string()))
}

fn plan(
    digest: BlobDigest,
    directory: Directory,
    ready: &HashMap<BlobDigest, Arc<Plan>>,
) -> Result<Plan, InputError> {
    let file = |node: reapi::execution::FileNode| {
        Ok(PlanFile {
            digest: child_digest(node.digest.as_ref(), digest.function)?,
            executable: node.is_executable,
            props: node.node_properties.as_ref().and_then(props).map(Box::new),
            name: node.name.into(),
        })
    };
    let files = directory.files.into_iter().map(file).collect::<Result<Box<[_]>, InputError>>()?;
    let link = |node: reapi::execution::SymlinkNode| PlanLink {
        mtime: node.node_properties.as_ref().and_then(props).and_then(|props| props.mtime),
        name: node.name.into(),
        target: node.target.into(),
    };
    let mut dirs = Vec::with_capacity(directory.directories.len());
    for node in directory.directories {
        let child = child_digest(node.digest.as_ref(), digest.function)?;
        let plan = ready.get(&child).ok_or_else(|| InputError::Missing(vec![child]))?;
        dirs.push((node.name.into_boxed_str(), Arc::clone(plan)));
    }
    let below =
        |of: fn(&Plan) -> u64| dirs.iter().fold(0, |sum: u64, (_, plan)| sum.saturating_add(of(plan)));
    let own = (1 + files.len() + directory.symlinks.len()) as u64;
    let own_bytes = files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.digest.size));
    Ok(Plan {
        digest,
        entries: below(|plan| plan.entries).saturating_add(own),
        bytes: below(|plan| plan.bytes).saturating_add(own_bytes),
        depth: 1 + dirs.iter().map(|(_, plan)| plan.depth).max().unwrap_or(0),
        links: directory.symlinks.into_iter().map(link).collect(),
        props: directory.node_properties.as_ref().and_then(props),
        files,
        dirs: dirs.into(),
    })
}

/// Returns the supported properties; the others do not apply to files here.
fn props(given: &NodeProperties) -> Option<Props> {
    let mtime = given
        .mtime
        .as_ref()
        .map(|time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.clamp(0, 999_999_999).into() });
    // Set-user-id, set-group-id and sticky bits are never applied.
    let mode = given.unix_mode.as_ref().map(|mode| mode.value & 0o777);
    (mtime.is_some() || mode.is_some()).then_some(Props { mtime, mode })
}
