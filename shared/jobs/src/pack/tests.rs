use std::fs;

use model::JobPath;
use proptest::prelude::*;

use super::*;
use crate::{extract::extract, tree::Folder};

/// Files of a folder: the path of each, and its content or the target of a symlink.
#[derive(Debug, Clone)]
enum Made {
    File(Vec<u8>, bool),
    Link(String),
}

struct Place {
    folder: tempfile::TempDir,
    remote: Remote,
    patience: Patience,
}

impl Place {
    fn new() -> Self {
        let remote = Remote::lazily("http://127.0.0.1:1", "", FUNCTION).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), remote, patience: Patience::new() }
    }

    fn tree(&self, files: &[(&str, Made)]) -> Node {
        let mut root = Arc::default();
        for (at, (path, made)) in files.iter().enumerate() {
            let node = match made {
                Made::File(bytes, executable) => {
                    let path = self.folder.path().join(format!("source-{at}"));
                    fs::write(&path, bytes).unwrap();
                    Node::File { content: Arc::new(Content::local(path)), executable: *executable }
                }
                Made::Link(target) => Node::Link(target.as_str().into()),
            };
            Folder::insert_at(&mut root, path, node);
        }
        Node::Folder(root)
    }

    async fn pack(&self, node: &Node, to: &str, bytes_max: u64) -> Result<Node, String> {
        let folder = self.folder.path().join(format!("packed-{to}"));
        let farm = (&self.remote, &self.patience);
        pack(node.clone(), ("deep/top", to), folder, bytes_max, farm).await.map_err(TaskError::into_reason)
    }

    async fn unpack(&self, archive: &Node) -> Arc<Folder> {
        let folder = self.folder.path().join("unpacked");
        let farm = (&self.remote, &self.patience);
        let unpacked = extract(archive, "archive", folder, u64::MAX, farm).await;
        unpacked.map_err(TaskError::into_reason).unwrap()
    }
}

fn bytes(archive: &Node) -> Vec<u8> {
    let Node::File { content, .. } = archive else { panic!("{archive:?}") };
    fs::read(content.path().unwrap()).unwrap()
}

fn text(text: &str) -> Made {
    Made::File(text.into(), false)
}

#[tokio::test]
async fn only_the_name_decides_whether_an_archive_is_compressed() {
    let place = Place::new();
    let node = place.tree(&[("a", text("1"))]);
    for (to, compressed) in [("a.tar", false), ("a.tar.gz", true), ("a.tgz", true), ("gz", false)] {
        let packed = bytes(&place.pack(&node, to, 1 << 20).await.unwrap());
        assert_eq!(packed.starts_with(&[0x1f, 0x8b]), compressed, "{to}");
    }
}

#[tokio::test]
async fn the_limit_is_the_exact_size_of_the_archive() {
    let place = Place::new();
    let long = "n".repeat(150);
    let node = place.tree(&[
        ("empty", text("")),
        ("block", Made::File(vec![1; 512], false)),
        ("more", Made::File(vec![2; 513], true)),
        (&long, text("long")),
        ("far", Made::Link(format!("{long}/../more"))),
    ]);
    let size = bytes(&place.pack(&node, "a.tar", u64::MAX).await.unwrap()).len() as u64;
    assert!(place.pack(&node, "b.tar", size).await.is_ok(), "{size}");
    let error = place.pack(&node, "c.tar", size - 1).await.unwrap_err();
    assert_eq!(error, format!("the archive of deep/top exceeds the limit of {} bytes", size - 1));
}

#[tokio::test]
async fn a_symlink_that_leads_out_is_refused() {
    let place = Place::new();
    for target in ["/etc/passwd", "../../x", "down/../../../x", ""] {
        let node = place.tree(&[("sub", Made::Link(target.to_owned()))]);
        let error = place.pack(&node, "a.tar", 1 << 20).await.unwrap_err();
        assert!(error.contains("symlink top/sub leads out of the archive"), "{target:?}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// What is packed is unpacked, and the same files give the same bytes.
    #[test]
    fn what_is_packed_is_unpacked(
        files in prop::collection::btree_map("[a-c]{1,2}(/[a-z]{1,60}){0,3}/f", (prop::collection::vec(any::<u8>(), 0..2000), any::<bool>()), 0..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let place = Place::new();
            let made: Vec<(&str, Made)> = files
                .iter()
                .map(|(path, (bytes, executable))| (path.as_str(), Made::File(bytes.clone(), *executable)))
                .chain([("link", Made::Link("a/../b".to_owned()))])
                .collect();
            let (node, again) = (place.tree(&made), place.tree(&made));
            let archive = place.pack(&node, "a.tgz", u64::MAX).await.unwrap();
            assert_eq!(bytes(&archive), bytes(&place.pack(&again, "b.tgz", u64::MAX).await.unwrap()));
            let mut wanted = Arc::default();
            Folder::insert_at(&mut wanted, "top", node);
            let found = place.unpack(&archive).await;
            assert_eq!(found.message().unwrap().0, wanted.message().unwrap().0);
            assert!(JobPath::parse("top").is_ok_and(|top| found.at(top.as_str()).is_some()));
        });
    }
}
