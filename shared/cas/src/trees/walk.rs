//! Completeness of trees of `Directory` messages, checked once for each distinct directory.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use invariant::{Present as _, impossible};
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    directory::{AbsoluteTargets, check_with},
    execution::Directory,
};

use super::{
    TreeCheck, TreeFault, Trees,
    directory_memo::{Node, Rule},
    wire::DIRECTORY_BYTES_MAX,
};
use crate::{Cas, CasError, empty_blob::is_empty, known::Moment};

/// Maximum number of missing blobs listed in one answer.
const MISSING_MAX: usize = 10_000;
/// Maximum depth of a tree in directories.
const DEPTH_MAX: u32 = 1_000;
/// Maximum number of entries in the distinct directories of a tree.
const ENTRIES_MAX: u64 = 2_000_000;
/// Maximum number of directories, and of their bytes, read at once.
const READ_DIRECTORIES: usize = 256;
const READ_BYTES: u64 = 4 << 20;
/// Maximum number of blobs looked up at once.
const LOOK_UPS: usize = 16 << 10;

impl Cas {
    /// Checks that a tree of `Directory` messages can be an input root: that each is in canonical form and
    /// references nothing outside of itself, and that the whole tree is present. If so, all of it is kept for
    /// another [`CasConfig::keep`](crate::CasConfig::keep). Each distinct directory is checked once, and not
    /// again until its life must be extended.
    pub async fn check_tree(&self, root: &BlobDigest) -> Result<TreeCheck, CasError> {
        self.check_tree_with(root, AbsoluteTargets::Refused).await
    }

    /// Like [`Cas::check_tree`], with a choice about absolute symlinks.
    pub async fn check_tree_with(
        &self,
        root: &BlobDigest,
        targets: AbsoluteTargets,
    ) -> Result<TreeCheck, CasError> {
        self.trees().check(self, root, targets.into()).await
    }

    /// Returns the blobs of a tree: its directories and files, each once. Of a missing directory, only the digest.
    pub async fn blobs_of_tree(&self, root: &BlobDigest) -> Result<Vec<BlobDigest>, CasError> {
        self.trees().blobs(self, root).await
    }
}

impl Trees {
    /// Whether a tree is complete and follows `rule`.
    pub(crate) async fn check(
        &self,
        cas: &Cas,
        root: &BlobDigest,
        rule: Rule,
    ) -> Result<TreeCheck, CasError> {
        let mut walk = Walk::new(self, cas, rule);
        let mut level = vec![*root];
        let mut depth = 0;
        while !level.is_empty() {
            depth += 1;
            if depth > DEPTH_MAX {
                return Ok(TreeCheck::Faulty(TreeFault::TooDeep { max: DEPTH_MAX }));
            }
            level = match walk.level(&level).await? {
                Ok(next) => next,
                Err(fault) => return Ok(TreeCheck::Faulty(fault)),
            };
        }
        walk.look_up().await?;
        Ok(walk.verdict(root))
    }

    /// The blobs of a tree, each once.
    async fn blobs(&self, cas: &Cas, root: &BlobDigest) -> Result<Vec<BlobDigest>, CasError> {
        let refused = |why: String| CasError::Malformed { digest: *root, wanted: "tree", why };
        let mut found = HashSet::from([*root]);
        let mut level = vec![*root];
        let mut depth = 0;
        while !level.is_empty() {
            depth += 1;
            if depth > DEPTH_MAX {
                return Err(refused(TreeFault::TooDeep { max: DEPTH_MAX }.to_string()));
            }
            let mut next = Vec::new();
            let mut rest = level.as_slice();
            while !rest.is_empty() {
                let (part, later) = rest.split_at(part_length(rest));
                rest = later;
                for node in self.nodes(cas, part).await? {
                    found.extend(node.files.iter());
                    next.extend(node.directories.iter().filter(|digest| found.insert(**digest)));
                }
                if found.len() as u64 > ENTRIES_MAX {
                    return Err(refused(TreeFault::TooLarge { max: ENTRIES_MAX }.to_string()));
                }
            }
            level = next;
        }
        Ok(found.into_iter().collect())
    }

    /// The directories that are there.
    async fn nodes(&self, cas: &Cas, digests: &[BlobDigest]) -> Result<Vec<Arc<Node>>, CasError> {
        let mut nodes = Vec::with_capacity(digests.len());
        let mut to_read = Vec::new();
        for digest in digests {
            match self.directories.get(digest) {
                Some(node) => nodes.push(node),
                None => to_read.push(*digest),
            }
        }
        to_read.retain(|digest| digest.size <= DIRECTORY_BYTES_MAX);
        let contents = cas.get_many(&to_read).await?;
        let parsed = cas.run_blocking(move |_| {
            let found =
                to_read.iter().zip(&contents).filter_map(|(d, content)| Some((*d, content.as_ref()?)));
            let node =
                |(digest, content): (BlobDigest, &Bytes)| {
                    let node = parse(&digest, content).map(Arc::new).map_err(|fault| {
                        CasError::Malformed { digest, wanted: "Directory", why: fault.to_string() }
                    })?;
                    Ok((digest, node))
                };
            found.map(node).collect::<Result<Vec<_>, CasError>>()
        });
        for (digest, node) in parsed.await? {
            self.directories.insert(digest, Arc::clone(&node));
            nodes.push(node);
        }
        Ok(nodes)
    }
}

struct Walk<'a> {
    trees: &'a Trees,
    cas: &'a Cas,
    rule: Rule,
    started: Moment,
    /// Every directory met, its subdirectories, and its height if known.
    visited: HashMap<BlobDigest, (Arc<[BlobDigest]>, Option<u64>)>,
    entries: u64,
    to_look_up: Vec<BlobDigest>,
    missing: Vec<BlobDigest>,
    named: HashSet<BlobDigest>,
}

type Level = Result<Vec<BlobDigest>, TreeFault>;

impl<'a> Walk<'a> {
    fn new(trees: &'a Trees, cas: &'a Cas, rule: Rule) -> Self {
        Self {
            trees,
            cas,
            rule,
            started: cas.local().now(),
            visited: HashMap::new(),
            entries: 0,
            to_look_up: Vec::new(),
            missing: Vec::new(),
            named: HashSet::new(),
        }
    }

    /// Processes all directories of one level. Returns those of the next level that were not met yet.
    async fn level(&mut self, level: &[BlobDigest]) -> Result<Level, CasError> {
        let mut next = Vec::new();
        let mut to_read = Vec::new();
        for digest in level {
            if self.visited.contains_key(digest) {
                continue;
            }
            self.visited.insert(*digest, (Arc::new([]), Some(1)));
            if is_empty(digest) {
                continue;
            }
            match self.trees.directories.get(digest) {
                Some(node) => {
                    if let Err(fault) = self.visit(digest, &node, false, &mut next) {
                        return Ok(Err(fault));
                    }
                }
                None if digest.size > DIRECTORY_BYTES_MAX => {
                    return Ok(Err(TreeFault::TooLarge { max: ENTRIES_MAX }));
                }
                None => to_read.push(*digest),
            }
            self.look_up_if_many().await?;
        }
        let mut rest = to_read.as_slice();
        while !rest.is_empty() {
            let (part, later) = rest.split_at(part_length(rest));
            rest = later;
            if let Err(fault) = self.read(part, &mut next).await? {
                return Ok(Err(fault));
            }
        }
        Ok(Ok(next))
    }

    /// Reads directories that are not cached.
    async fn read(
        &mut self,
        digests: &[BlobDigest],
        next: &mut Vec<BlobDigest>,
    ) -> Result<Result<(), TreeFault>, CasError> {
        let contents = self.cas.get_many(digests).await?;
        let found: Vec<(BlobDigest, Bytes)> =
            digests.iter().zip(&contents).filter_map(|(d, content)| Some((*d, content.clone()?))).collect();
        for (digest, _) in digests.iter().zip(&contents).filter(|(_, content)| content.is_none()) {
            self.add_missing(*digest);
        }
        drop(contents);
        let parsed = self
            .cas
            .run_blocking(move |_| Ok(found.iter().map(|(d, c)| (*d, parse(d, c))).collect::<Vec<_>>()));
        for (digest, node) in parsed.await? {
            let met = node.and_then(|node| {
                let node = Arc::new(node);
                self.trees.directories.insert(digest, Arc::clone(&node));
                self.visit(&digest, &node, true, next)
            });
            if let Err(fault) = met {
                return Ok(Err(fault));
            }
            self.look_up_if_many().await?;
        }
        Ok(Ok(()))
    }

    /// Processes one directory. `just_read`: it is known to be present.
    fn visit(
        &mut self,
        digest: &BlobDigest,
        node: &Node,
        just_read: bool,
        next: &mut Vec<BlobDigest>,
    ) -> Result<(), TreeFault> {
        if let Some(why) = node.fault(self.rule) {
            return Err(TreeFault::Malformed { digest: *digest, why: why.clone() });
        }
        let local = self.cas.local();
        if node.whole_at(self.rule).is_some_and(|at| local.is_fresh(at, self.started)) {
            self.visited.insert(*digest, (Arc::new([]), Some(node.height.load(Ordering::Relaxed))));
            return Ok(());
        }
        self.entries += (node.files.len() + node.directories.len()) as u64;
        if self.entries > ENTRIES_MAX {
            return Err(TreeFault::TooLarge { max: ENTRIES_MAX });
        }
        if !just_read {
            self.to_look_up.push(*digest);
        }
        self.to_look_up.extend(&node.files);
        next.extend(node.directories.iter().filter(|digest| !self.visited.contains_key(digest)));
        self.visited.insert(*digest, (Arc::clone(&node.directories), None));
        Ok(())
    }

    async fn look_up_if_many(&mut self) -> Result<(), CasError> {
        if self.to_look_up.len() >= LOOK_UPS { self.look_up().await } else { Ok(()) }
    }

    async fn look_up(&mut self) -> Result<(), CasError> {
        let wanted = std::mem::take(&mut self.to_look_up);
        for digest in self.cas.missing(&wanted).await? {
            self.add_missing(digest);
        }
        Ok(())
    }

    fn add_missing(&mut self, digest: BlobDigest) {
        if self.named.len() <= MISSING_MAX && self.named.insert(digest) {
            self.missing.push(digest);
        }
    }

    fn verdict(mut self, root: &BlobDigest) -> TreeCheck {
        if !self.missing.is_empty() {
            let more = self.missing.len() > MISSING_MAX;
            self.missing.truncate(MISSING_MAX);
            return TreeCheck::Missing { digests: self.missing, more };
        }
        if self.measure(root) > u64::from(DEPTH_MAX) {
            return TreeCheck::Faulty(TreeFault::TooDeep { max: DEPTH_MAX });
        }
        for (digest, (_, height)) in &self.visited {
            if let (Some(node), Some(height)) = (self.trees.directories.get(digest), height)
                && node.whole_at(self.rule).is_none_or(|at| at < self.started)
            {
                node.set_whole(self.rule, self.started, *height);
            }
        }
        TreeCheck::Complete
    }

    /// Computes the depth of the tree. The walk meets each directory at its highest place only,
    /// so it cannot measure this.
    fn measure(&mut self, root: &BlobDigest) -> u64 {
        let mut path = vec![(*root, 0)];
        while let Some((digest, child)) = path.last_mut() {
            let Some((below, None)) = self.visited.get(digest) else {
                path.pop();
                continue;
            };
            if let Some(next) = below.get(*child) {
                *child += 1;
                path.push((*next, 0));
                continue;
            }
            let height = |digest: &BlobDigest| self.visited.get(digest).and_then(|(_, height)| *height);
            let deepest = below.iter().filter_map(height).max().unwrap_or(0);
            if let Some((_, height)) = self.visited.get_mut(digest) {
                *height = Some(deepest + 1);
            } else {
                impossible!("directory {digest} of a tree is no longer known");
            }
            path.pop();
        }
        self.visited.get(root).and_then(|(_, height)| *height).present("the height of a complete tree")
    }
}

/// Number of `digests` that are read at once.
fn part_length(digests: &[BlobDigest]) -> usize {
    let mut bytes = 0;
    let fit = digests.iter().take(READ_DIRECTORIES).take_while(|digest| {
        bytes += digest.size;
        bytes <= READ_BYTES
    });
    fit.count().max(1)
}

fn parse(digest: &BlobDigest, content: &Bytes) -> Result<Node, TreeFault> {
    let malformed = |why: String| TreeFault::Malformed { digest: *digest, why };
    let directory =
        Directory::decode(content.clone()).map_err(|error| malformed(format!("not a Directory: {error}")))?;
    let digests = |wanted: Vec<&Option<reapi::execution::Digest>>| {
        let read = |digest_of: &Option<reapi::execution::Digest>| {
            let proto = digest_of.as_ref().ok_or_else(|| malformed("an entry has no digest".to_owned()))?;
            reapi::digest::from_proto(proto, digest.function).map_err(|error| malformed(error.to_string()))
        };
        wanted.into_iter().map(read).collect::<Result<Vec<_>, TreeFault>>()
    };
    let fault = |targets| check_with(&directory, targets).err().map(|fault| fault.to_string());
    Ok(Node {
        directories: digests(directory.directories.iter().map(|node| &node.digest).collect())?.into(),
        files: digests(directory.files.iter().map(|node| &node.digest).collect())?.into(),
        faults: [fault(AbsoluteTargets::Refused), fault(AbsoluteTargets::Allowed)],
        whole: Default::default(),
        height: AtomicU64::new(0),
    })
}
