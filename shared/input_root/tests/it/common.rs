//! A store, input roots in it, and actions that run as another user.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{fs::MetadataExt as _, fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use cas::{Cas, CasConfig};
use input_root::{
    CollectError, Collected, Console, InputError, InputRoot, InputRoots, InputRootsConfig, OutputSpec, Owner,
};
use model::{BlobDigest, DigestFunction};
use reapi::{
    canonical::{encode, sort_directory},
    digest::to_proto,
    execution::{self, Directory, DirectoryNode, FileNode, NodeProperties, SymlinkNode},
};
use tempfile::TempDir;

/// The user that runs actions.
const NOBODY: Owner = Owner { uid: 65534, gid: 65534 };

pub(crate) const SHA: DigestFunction = DigestFunction::Sha256;

/// A node of an input root.
#[derive(Clone)]
pub(crate) enum Node {
    File(Vec<u8>),
    Executable(Vec<u8>),
    With(Vec<u8>, NodeProperties),
    Link(String),
    Dir(Option<NodeProperties>),
}

pub(crate) fn file(content: &str) -> Node {
    Node::File(content.as_bytes().to_vec())
}

pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) cas: Cas,
    pub(crate) roots: InputRoots,
    pub(crate) slots: AtomicU32,
}

impl Rig {
    /// Input roots whose files are linked.
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut InputRootsConfig)) -> Self {
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("slots")).unwrap();
        let cas = Cas::open(CasConfig::new(dir.path().join("cas"))).unwrap();
        let mut config = InputRootsConfig::new(cas.clone(), dir.path().join("roots"), owner());
        // Removing each of them takes a while.
        config.stock = 8;
        change(&mut config);
        let roots = InputRoots::open(config).unwrap();
        Self { dir, cas, roots, slots: AtomicU32::new(0) }
    }

    /// The folder of another slot: each holds one input root at a time.
    pub(crate) fn slot(&self) -> PathBuf {
        let number = self.slots.fetch_add(1, Ordering::Relaxed);
        let slot = self.dir.path().join(format!("slots/{number}"));
        fs::create_dir(&slot).unwrap();
        slot
    }

    /// The content of all slots' folders.
    pub(crate) fn in_slots(&self) -> Vec<PathBuf> {
        let paths = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths(self.dir.path().join("slots")).flat_map(paths).collect()
    }

    pub(crate) async fn put(&self, content: &[u8]) -> BlobDigest {
        self.cas.put_bytes(SHA, content.to_vec().into()).await.unwrap()
    }

    /// Stores an input root.
    pub(crate) async fn input(&self, nodes: &[(&str, Node)]) -> BlobDigest {
        let (root, blobs) = tree(nodes);
        for stored in self.cas.put_many(blobs).await {
            stored.unwrap();
        }
        root
    }

    pub(crate) async fn prepare(&self, root: &BlobDigest) -> InputRoot {
        self.prepare_for(root, &OutputSpec::default()).await.unwrap()
    }

    pub(crate) async fn prepare_for(
        &self,
        root: &BlobDigest,
        spec: &OutputSpec,
    ) -> Result<InputRoot, InputError> {
        self.roots.prepare(&self.slot(), root, spec).await
    }

    pub(crate) async fn collect(
        &self,
        root: &InputRoot,
        spec: &OutputSpec,
    ) -> Result<Collected, CollectError> {
        let console = Console {
            stdout: Some(self.dir.path().join("stdout")),
            stderr: Some(self.dir.path().join("stderr")),
            is_watched: root.is_watched(),
        };
        self.roots.collect(root, spec, &console, SHA).await
    }

    pub(crate) async fn content(&self, digest: &execution::Digest) -> Vec<u8> {
        let digest = reapi::digest::from_proto(digest, SHA).unwrap();
        self.cas.get(&digest).await.unwrap().unwrap().to_vec()
    }
}

/// The blobs of a tree.
pub(crate) fn tree(nodes: &[(&str, Node)]) -> (BlobDigest, Vec<(BlobDigest, bytes::Bytes)>) {
    #[derive(Default)]
    struct Dir {
        message: Directory,
        below: BTreeMap<String, Dir>,
    }
    fn close(dir: Dir, blobs: &mut Vec<(BlobDigest, bytes::Bytes)>) -> BlobDigest {
        let mut message = dir.message;
        for (name, below) in dir.below {
            let digest = close(below, blobs);
            message.directories.push(DirectoryNode { name, digest: Some(to_proto(&digest)) });
        }
        sort_directory(&mut message);
        let (digest, bytes) = encode(&message, SHA);
        blobs.push((digest, bytes));
        digest
    }
    let mut root = Dir::default();
    let mut blobs = Vec::new();
    for (path, node) in nodes {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut dir = &mut root;
        for part in parent.split('/').filter(|part| !part.is_empty()) {
            dir = dir.below.entry(part.to_owned()).or_default();
        }
        let mut add = |content: &[u8], is_executable, node_properties| {
            let digest = SHA.digest(content);
            blobs.push((digest, content.to_vec().into()));
            let (name, digest) = ((*name).to_owned(), Some(to_proto(&digest)));
            dir.message.files.push(FileNode { name, digest, is_executable, node_properties });
        };
        match node {
            Node::File(content) => add(content, false, None),
            Node::Executable(content) => add(content, true, None),
            Node::With(content, props) => add(content, false, Some(props.clone())),
            Node::Link(target) => {
                let (name, target) = ((*name).to_owned(), target.clone());
                dir.message.symlinks.push(SymlinkNode { name, target, node_properties: None });
            }
            Node::Dir(props) => {
                dir.below.entry((*name).to_owned()).or_default().message.node_properties = props.clone();
            }
        }
    }
    let digest = close(root, &mut blobs);
    (digest, blobs)
}

/// The user of actions: this one, if only root may give files to others.
pub(crate) fn owner() -> Option<Owner> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

/// Runs a shell script in an input root as the user of actions.
pub(crate) fn run(root: &InputRoot, script: &str) -> Output {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", script])
        .current_dir(root.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if let Some(owner) = owner() {
        command.uid(owner.uid).gid(owner.gid);
    }
    command.output().unwrap()
}

pub(crate) fn run_well(root: &InputRoot, script: &str) -> String {
    let output = run(root, script);
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that an action can see of a folder, apart from times.
pub(crate) fn listing(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut stack = vec![folder.to_owned()];
    while let Some(path) = stack.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let what = if meta.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if meta.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            "directory".to_owned()
        } else if meta.is_file() {
            format!("{:?}", fs::read(&path).unwrap())
        } else {
            "special".to_owned()
        };
        let place = path.strip_prefix(folder).unwrap().display().to_string();
        let rights = if meta.is_symlink() { 0 } else { meta.mode() & 0o7777 };
        found.insert(place, format!("{rights:o} {} {what}", meta.uid()));
    }
    found
}

pub(crate) fn outputs(paths: &[&str]) -> OutputSpec {
    let output_paths = paths.iter().map(|path| (*path).to_owned()).collect();
    OutputSpec::of(&execution::Command { output_paths, ..execution::Command::default() }).unwrap()
}
