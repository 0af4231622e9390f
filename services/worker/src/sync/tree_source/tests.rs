use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cas::CasConfig;
use disk::Reserve;
use model::DigestFunction;
use reapi::{
    canonical::{encode, sort_directory},
    digest::to_proto,
    execution::{Directory, DirectoryNode, FileNode, SymlinkNode},
};
use tempfile::TempDir;

use super::*;
use crate::sync::{Choice, Done, FolderSource, Sync, TransferMode};
use disk::Confined;

/// A store, a workspace and the list of brought entries.
struct Place {
    folder: TempDir,
    cas: Cas,
}

#[derive(Clone, Copy)]
enum Item<'a> {
    Text(&'a str),
    Program(&'a str),
    Link(&'a str),
}

use Item::{Link, Program, Text};

type Blobs = Vec<(BlobDigest, Bytes)>;

/// Encodes a folder with the items at these paths; adds its blobs to `blobs`.
fn encode_folder(items: &[(&str, Item<'_>)], blobs: &mut Blobs) -> BlobDigest {
    let mut directory = Directory::default();
    let mut below: BTreeMap<&str, Vec<(&str, Item<'_>)>> = BTreeMap::new();
    for (path, item) in items {
        if let Some((name, rest)) = path.split_once('/') {
            below.entry(name).or_default().push((rest, *item));
            continue;
        }
        let name = (*path).to_owned();
        match item {
            Text(text) | Program(text) => {
                let content = Bytes::copy_from_slice(text.as_bytes());
                let digest = DigestFunction::Sha256.digest(&content);
                directory.files.push(FileNode {
                    name,
                    digest: Some(to_proto(&digest)),
                    is_executable: matches!(item, Program(_)),
                    node_properties: None,
                });
                blobs.push((digest, content));
            }
            Link(target) => {
                let target = (*target).to_owned();
                directory.symlinks.push(SymlinkNode { name, target, node_properties: None });
            }
        }
    }
    for (name, items) in below {
        let digest = Some(to_proto(&encode_folder(&items, blobs)));
        directory.directories.push(DirectoryNode { name: name.to_owned(), digest });
    }
    sort_directory(&mut directory);
    let (digest, content) = encode(&directory, DigestFunction::Sha256);
    blobs.push((digest, content));
    digest
}

impl Place {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let cas = Cas::open(CasConfig::new(folder.path().join("cas"))).unwrap();
        fs::create_dir(folder.path().join("target")).unwrap();
        Self { folder, cas }
    }

    fn target(&self, path: &str) -> PathBuf {
        self.folder.path().join("target").join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.target(path)).unwrap()
    }

    async fn put(&self, blobs: Blobs) {
        for stored in self.cas.put_many(blobs).await {
            stored.unwrap();
        }
    }

    async fn folder(&self, items: &[(&str, Item<'_>)]) -> BlobDigest {
        let mut blobs = Vec::new();
        let root = encode_folder(items, &mut blobs);
        self.put(blobs).await;
        root
    }

    async fn fetch(&self, root: BlobDigest, fresh: bool, bytes_max: u64) -> Result<TreeSource, TreeError> {
        let before = (!fresh).then(|| self.folder.path().join("manifest"));
        let (cas, target, progress) = (self.cas.clone(), self.target(""), Arc::default());
        TreeFetch { cas, root, target, before, bytes_max, progress }.run().await
    }

    async fn sync(&self, source: impl Source + Send + 'static, fresh: bool) -> io::Result<Done> {
        let manifest = Some(self.folder.path().join("manifest"));
        let (target, reserve) = (self.target(""), Reserve::new(0));
        let sync = Sync { target, manifest, fresh, reserve, progress: Arc::default() };
        tokio::task::spawn_blocking(move || sync.run(&source, &AtomicBool::new(false))).await.unwrap()
    }

    /// Fills the workspace for the first build.
    async fn first(&self, items: &[(&str, Item<'_>)]) {
        let root = self.folder(items).await;
        let source = self.fetch(root, true, u64::MAX).await.unwrap();
        self.sync(source, true).await.unwrap();
    }

    /// Fills the reused workspace; returns the numbers of changed and removed entries.
    async fn again(&self, items: &[(&str, Item<'_>)]) -> (u64, u64) {
        let root = self.folder(items).await;
        let source = self.fetch(root, false, u64::MAX).await.unwrap();
        let Done { changed, removed } = self.sync(source, false).await.unwrap();
        (changed, removed)
    }
}

fn put(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn age(path: &Path) -> SystemTime {
    let at = SystemTime::now() - Duration::from_secs(5000);
    File::open(path).unwrap().set_modified(at).unwrap();
    time(path)
}

fn time(path: &Path) -> SystemTime {
    fs::symlink_metadata(path).unwrap().modified().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn a_fresh_workspace_gets_copies_of_its_own() {
    let place = Place::new();
    let items = [
        ("a", Text("a")),
        ("d/e/tool", Program("tool")),
        ("empty", Text("")),
        ("d/link", Link("/nowhere/x")),
    ];
    place.first(&items).await;
    assert_eq!(
        (place.read("a"), place.read("d/e/tool"), place.read("empty")),
        ("a".into(), "tool".into(), String::new())
    );
    assert_eq!(fs::read_link(place.target("d/link")).unwrap(), Path::new("/nowhere/x"));
    assert_eq!(["a", "d/e/tool", "d"].map(|path| mode(&place.target(path))), [0o644, 0o755, 0o755]);
    // What the build writes does not reach the store.
    fs::write(place.target("a"), "b").unwrap();
    let digest = DigestFunction::Sha256.digest(b"a");
    assert_eq!(place.cas.get(&digest).await.unwrap().unwrap(), "a");
    assert_eq!(place.again(&items).await, (1, 0));
    assert_eq!(place.read("a"), "a");
}

#[tokio::test]
async fn the_empty_folder_is_a_folder() {
    let place = Place::new();
    let source = place.fetch(DigestFunction::Sha256.empty(), true, 0).await.unwrap();
    assert_eq!(place.sync(source, true).await.unwrap(), Done::default());
}

#[tokio::test]
async fn what_did_not_change_keeps_its_time_and_what_the_build_made_stays() {
    let place = Place::new();
    let items = [("a", Text("a")), ("d/b", Text("b")), ("link", Link("a"))];
    place.first(&items).await;
    put(place.target("d/b.o"), "made of b");
    put(place.target("out/all"), "made");
    age(&place.target("a"));
    let times = ["a", "d/b"].map(|path| time(&place.target(path)));
    assert_eq!(place.again(&items).await, (0, 0));
    let root = place.folder(&items).await;
    let source = place.fetch(root, false, u64::MAX).await.unwrap();
    assert!(source.fetched.is_empty(), "the store's files of an unchanged workspace are not needed");
    assert_eq!(place.sync(source, false).await.unwrap(), Done::default());
    assert_eq!(["a", "d/b"].map(|path| time(&place.target(path))), times);
    assert_eq!((place.read("d/b.o").as_str(), place.read("out/all").as_str()), ("made of b", "made"));
}

#[tokio::test]
async fn what_changed_is_replaced_and_what_is_gone_goes() {
    let place = Place::new();
    place.first(&[("a", Text("old")), ("b", Text("b")), ("d/c", Text("c")), ("e/f", Text("f"))]).await;
    put(place.target("e/f.o"), "made of f");
    let old = age(&place.target("a"));
    assert_eq!(place.again(&[("a", Text("new")), ("b", Text("b")), ("d", Link("b"))]).await, (2, 2));
    assert_eq!((place.read("a"), place.read("b"), place.read("d")), ("new".into(), "b".into(), "b".into()));
    assert!(time(&place.target("a")) > old);
    assert!(!place.target("e/f").exists());
    assert_eq!(place.read("e/f.o"), "made of f");
}

#[tokio::test]
async fn what_the_build_did_is_undone_and_nothing_is_written_behind_its_links() {
    let place = Place::new();
    let items = [("d/in", Text("in")), ("gone/in", Text("in")), ("linked", Text("linked")), ("x", Text("x"))];
    place.first(&items).await;
    let outside = |name: &str| place.folder.path().join("outside").join(name);
    put(outside("in"), "not ours");
    for folder in ["d", "gone"] {
        fs::remove_dir_all(place.target(folder)).unwrap();
        symlink(outside(""), place.target(folder)).unwrap();
    }
    fs::remove_file(place.target("linked")).unwrap();
    symlink(outside("in"), place.target("linked")).unwrap();
    fs::remove_file(place.target("x")).unwrap();
    put(place.target("x/y"), "y");
    assert_eq!(place.again(&[items[0], items[2], items[3]]).await, (3, 1));
    assert_eq!(
        (place.read("d/in"), place.read("linked"), place.read("x")),
        ("in".into(), "linked".into(), "x".into())
    );
    assert_eq!(fs::read_to_string(outside("in")).unwrap(), "not ours");
    assert!(fs::symlink_metadata(place.target("gone")).is_err());
}

#[tokio::test]
async fn the_executable_bit_may_change() {
    let place = Place::new();
    place.first(&[("on", Text("x")), ("off", Program("x"))]).await;
    let times = ["on", "off"].map(|path| age(&place.target(path)));
    assert_eq!(place.again(&[("on", Program("x")), ("off", Text("x"))]).await, (0, 0));
    assert_eq!(["on", "off"].map(|path| mode(&place.target(path))), [0o755, 0o644]);
    assert_eq!(["on", "off"].map(|path| time(&place.target(path))), times, "the content did not change");
    fs::set_permissions(place.target("on"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(place.again(&[("on", Program("x")), ("off", Text("x"))]).await, (0, 0));
    assert_eq!(mode(&place.target("on")), 0o755);
}

#[tokio::test]
async fn after_another_kind_of_source_the_content_decides() {
    let place = Place::new();
    let source = place.folder.path().join("source");
    put(source.join("same"), "same");
    put(source.join("other"), "aaaa");
    let mode = TransferMode::Copy(Confined::open(&source.canonicalize().unwrap()).unwrap());
    let source = FolderSource { folder: source, choice: Choice::default(), mode };
    place.sync(source, true).await.unwrap();
    let old = age(&place.target("same"));
    assert_eq!(place.again(&[("same", Text("same")), ("other", Text("bbbb"))]).await, (1, 0));
    assert_eq!((time(&place.target("same")), place.read("other")), (old, "bbbb".into()));
}

#[tokio::test]
async fn a_blob_that_is_evicted_before_its_copy_is_fetched_again() {
    let place = Place::new();
    let root = place.folder(&[("a", Text("content"))]).await;
    let mut source = place.fetch(root, true, u64::MAX).await.unwrap();
    for path in source.fetched.values_mut() {
        *path = place.folder.path().join("evicted");
    }
    place.sync(source, true).await.unwrap();
    assert_eq!(place.read("a"), "content");
}

#[tokio::test]
async fn a_folder_that_is_incomplete_or_too_large_or_no_folder_is_an_error() {
    let place = Place::new();
    let items = [("d/a", Text("one")), ("d/b", Text("two"))];
    let mut blobs = Vec::new();
    let root = encode_folder(&items, &mut blobs);
    let message = |error: TreeError| error.to_string();
    let error = message(place.fetch(root, true, u64::MAX).await.unwrap_err());
    assert!(error.contains(&root.to_string()) && error.contains("path .)"), "{error}");
    let lost = DigestFunction::Sha256.digest(b"two");
    place.put(blobs.iter().filter(|(digest, _)| *digest != lost).cloned().collect()).await;
    let error = message(place.fetch(root, true, u64::MAX).await.unwrap_err());
    assert!(error.contains(&lost.to_string()) && error.contains("path d/b)"), "{error}");
    assert!(error.contains("upload the folder again"), "{error}");
    place.put(blobs).await;
    assert!(place.fetch(root, true, 6).await.is_ok());
    let error = message(place.fetch(root, true, 5).await.unwrap_err());
    assert!(error.contains("unpacked_bytes_max"), "{error}");
    let no_folder = place.cas.put_bytes(DigestFunction::Sha256, "no folder".into()).await.unwrap();
    assert!(matches!(place.fetch(no_folder, true, u64::MAX).await, Err(TreeError::Invalid(_))));
    let outside = Directory {
        symlinks: vec![SymlinkNode { name: "../x".into(), target: "y".into(), node_properties: None }],
        ..Directory::default()
    };
    let (root, content) = encode(&outside, DigestFunction::Sha256);
    place.put(vec![(root, content)]).await;
    assert!(matches!(place.fetch(root, true, u64::MAX).await, Err(TreeError::Invalid(_))));
}

#[tokio::test]
async fn a_folder_that_is_nested_too_deeply_is_an_error() {
    let place = Place::new();
    let mut blobs = Vec::new();
    let mut root = encode_folder(&[("a", Text("a"))], &mut blobs);
    let mut in_reach = root;
    for depth in 1..=1_000 {
        let node = DirectoryNode { name: "x".to_owned(), digest: Some(to_proto(&root)) };
        let directory = Directory { directories: vec![node], ..Directory::default() };
        let (digest, content) = encode(&directory, DigestFunction::Sha256);
        blobs.push((digest, content));
        root = digest;
        if depth == 999 {
            in_reach = root;
        }
    }
    place.put(blobs).await;
    assert!(place.fetch(in_reach, true, u64::MAX).await.is_ok());
    assert!(matches!(place.fetch(root, true, u64::MAX).await, Err(TreeError::Invalid(_))));
}
