//! Tests that the local tier may be lost if an object store is behind it.

use crate::support::{SHA, directory, file, noise, open, read_all, write_in_pieces};
use cas::{Cas, CasConfig, CasError, Evictor, EvictorConfig, TreeCheck};
use model::BlobDigest;
use prost::Message as _;
use reapi::execution::{ActionResult, OutputFile};
use tempfile::TempDir;

struct Farm {
    bucket: TempDir,
    machines: Vec<(Cas, TempDir)>,
}

impl Farm {
    fn new() -> Self {
        Self { bucket: tempfile::tempdir().unwrap(), machines: Vec::new() }
    }

    fn url(&self) -> String {
        format!("file://{}/some/prefix", self.bucket.path().display())
    }

    /// A machine with an empty disk.
    fn machine(&mut self) -> Cas {
        let folder = tempfile::tempdir().unwrap();
        let url = self.url();
        let cas = open(&folder, |config| config.backing = Some(url));
        self.machines.push((cas.clone(), folder));
        cas
    }
}

#[tokio::test]
async fn what_one_machine_stores_another_has() {
    let mut farm = Farm::new();
    let writer = farm.machine();
    let mut digests = Vec::new();
    for size in [10, 100_000, 20_000_000] {
        digests.push(write_in_pieces(&writer, &noise(size, size as u64), 1 << 20).await);
        digests.push(writer.put_bytes(SHA, noise(size / 2, 7)).await.unwrap());
    }
    let source = farm.bucket.path().join("source");
    std::fs::write(&source, noise(1_000_000, 8)).unwrap();
    digests.push(writer.put_file(SHA, &source, true).await.unwrap());
    let absent = SHA.digest(b"absent");
    let asked = [&digests[..], &[absent]].concat();
    assert_eq!(farm.machine().missing(&asked).await.unwrap(), [absent]);

    let reader = farm.machine();
    for digest in &digests {
        let content = read_all(&reader, digest, 3, None).await.unwrap();
        assert_eq!(content.len() as u64, digest.size - 3);
        assert_eq!(SHA.digest(&reader.get(digest).await.unwrap().unwrap()), *digest);
    }
    assert_eq!(reader.stats().backing_reads, digests.len() as u64);
    assert!(reader.read(&absent, 0, None).await.unwrap().is_none());
    assert_eq!(reader.get(&absent).await.unwrap(), None);

    let runner = farm.machine();
    let wanted: Vec<(BlobDigest, bool)> =
        asked.iter().map(|digest| (*digest, digest.size % 3 == 0)).collect();
    let paths = runner.local_paths(&wanted).await.unwrap();
    for (digest, path) in asked.iter().zip(paths) {
        assert_eq!(
            path.map(|path| SHA.digest(&std::fs::read(path).unwrap())),
            (digest != &absent).then_some(*digest)
        );
    }
}

#[tokio::test]
async fn results_trees_and_splits_cross_too() {
    let mut farm = Farm::new();
    let writer = farm.machine();
    let leaf = writer.put_bytes(SHA, noise(6_000_000, 1)).await.unwrap();
    let root = directory(vec![file("leaf", &leaf)], vec![]).encode_to_vec();
    let root = writer.put_bytes(SHA, root.into()).await.unwrap();
    let output = OutputFile { digest: Some(reapi::digest::to_proto(&leaf)), ..OutputFile::default() };
    let result = ActionResult { output_files: vec![output], ..ActionResult::default() };
    let action = SHA.digest(b"action");
    writer.put_action("main", &action, &result).await.unwrap();
    let split = writer.split(&leaf).await.unwrap();
    let reader = farm.machine();
    assert_eq!(*reader.get_action("main", &action).await.unwrap().unwrap(), result);
    assert_eq!(reader.check_tree(&root).await.unwrap(), TreeCheck::Complete);
    assert_eq!(reader.split(&leaf).await.unwrap(), split);
    assert!(reader.remove_action("main", &action).await.unwrap());
    assert!(farm.machine().get_action("main", &action).await.unwrap().is_none());
}

#[tokio::test]
async fn a_full_disk_is_gone_past() {
    let mut farm = Farm::new();
    let (writer, reader) = (farm.machine(), farm.machine());
    for cas in [&writer, &reader] {
        cas.set_full(true);
    }
    let content = noise(3_000_000, 1);
    let small = writer.put_bytes(SHA, content.slice(..100)).await.unwrap();
    let digest = writer.put_bytes(SHA, content.clone()).await.unwrap();
    for cas in [&writer, &reader] {
        assert_eq!(read_all(cas, &digest, 1000, Some(2_500_000)).await.unwrap(), content[1000..2_501_000]);
        assert_eq!(cas.get(&digest).await.unwrap().unwrap(), content);
        assert_eq!(cas.get(&small).await.unwrap().unwrap(), content[..100]);
        assert!(cas.contains(&digest).await.unwrap());
        assert!(matches!(cas.local_path(&digest, false).await, Err(CasError::Full)));
    }
}

#[tokio::test]
async fn an_object_cut_short_is_missing_and_a_false_one_is_refused() {
    let mut farm = Farm::new();
    let content = noise(100_000, 1);
    let digest = farm.machine().put_bytes(SHA, content.clone()).await.unwrap();
    let hex = digest.hex();
    let object = format!("some/prefix/cas/sha256/{}/{hex}-{}", &hex[..2], digest.size);
    let object = farm.bucket.path().join(object);
    std::fs::write(&object, &content[..5000]).unwrap();
    assert!(!farm.machine().contains(&digest).await.unwrap());
    std::fs::write(&object, noise(100_000, 2)).unwrap();
    let reader = farm.machine();
    assert!(matches!(reader.get(&digest).await, Err(CasError::Mismatch { .. })));
    assert!(matches!(reader.local_path(&digest, false).await, Err(CasError::Mismatch { .. })));
}

#[tokio::test]
async fn the_local_tier_may_forget_what_the_object_store_has() {
    let folder = tempfile::tempdir().unwrap();
    let cas = open(&folder, |config| {
        config.backing = Some("memory:///".into());
        config.keep = std::time::Duration::ZERO;
    });
    let evictor = Evictor::open(&cas, EvictorConfig { bytes_max: 1 << 20, free_bytes_min: 0 }).unwrap();
    let mut digests = Vec::new();
    for seed in 0..6 {
        digests.push(cas.put_bytes(SHA, noise(150_000, seed)).await.unwrap());
    }
    cas.put_bytes(SHA, noise(150_000, 6)).await.unwrap();
    assert!(evictor.pass().await.unwrap().deleted > 0);
    for (seed, digest) in digests.iter().enumerate() {
        assert!(cas.contains(digest).await.unwrap());
        assert_eq!(cas.get(digest).await.unwrap().unwrap(), noise(150_000, seed as u64));
    }
}

#[tokio::test]
async fn a_url_that_names_no_store_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for url in ["nonsense", "ftp://x/y", "file://relative/is/a/host"] {
        let config = CasConfig { backing: Some(url.into()), ..CasConfig::new(folder.path()) };
        assert!(matches!(Cas::open(config), Err(CasError::Unsupported { .. })), "{url}");
    }
}
