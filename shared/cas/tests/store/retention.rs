//! Tests of how long an object store has blobs.

use std::{
    fs::{self, File},
    path::PathBuf,
    time::{Duration, SystemTime},
};

use cas::{Cas, CasError};
use model::{BlobDigest, Digest};
use tempfile::TempDir;

use crate::support::{SHA, noise, open};

/// An object store and machines that use it.
struct Bucket {
    folder: TempDir,
    retention: Duration,
}

impl Bucket {
    fn new(retention: Duration) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), retention }
    }

    /// A machine with an empty disk.
    fn machine(&self) -> (Cas, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let cas = open(&folder, |config| {
            config.backing = Some(format!("file://{}", self.folder.path().display()));
            config.retention = self.retention;
            config.keep_min = Duration::ZERO;
        });
        (cas, folder)
    }

    fn object(&self, digest: &BlobDigest) -> PathBuf {
        let hex = digest.hex();
        self.folder.path().join(format!("cas/sha256/{}/{hex}-{}", &hex[..2], digest.size))
    }

    /// Makes an object look as if it was written `age` ago.
    fn age(&self, digest: &BlobDigest, age: Duration) {
        File::open(self.object(digest)).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }

    /// Waits until an object was renewed.
    async fn renewed(&self, digest: &BlobDigest) {
        let renewed = async {
            while self.age_of(digest) > HOUR {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), renewed).await.unwrap();
    }

    fn age_of(&self, digest: &BlobDigest) -> Duration {
        self.object(digest).metadata().unwrap().modified().unwrap().elapsed().unwrap_or_default()
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn objects_that_are_used_or_named_are_renewed_and_the_rest_is_deleted() {
    let bucket = Bucket::new(HOUR * 100);
    let (writer, _folder) = bucket.machine();
    let mut digests = Vec::new();
    for seed in 0..4 {
        // The last one is written in parts.
        let size = if seed == 3 { 20_000_000 } else { 1000 };
        digests.push(writer.put_bytes(SHA, noise(size, seed)).await.unwrap());
        bucket.age(&digests[digests.len() - 1], HOUR * 60);
    }
    let [used, named, unused, large] = digests[..] else { panic!() };
    let (other, _other_folder) = bucket.machine();
    assert!(other.missing(&[used, large]).await.unwrap().is_empty());
    bucket.renewed(&used).await;
    bucket.renewed(&large).await;
    assert!(bucket.age_of(&named) > HOUR * 59);
    let absent = SHA.digest(b"absent");
    let until = SystemTime::now() + HOUR * 100;
    assert_eq!(
        other.keep_objects(vec![(named, until), (absent, until)], HOUR * 100).await.unwrap(),
        [absent]
    );
    assert!(bucket.age_of(&named) < HOUR);
    assert_eq!(other.sweep_objects(HOUR * 100).await.unwrap(), 0);
    bucket.age(&unused, HOUR * 111);
    bucket.age(&named, HOUR * 109);
    assert_eq!(other.sweep_objects(HOUR * 102).await.unwrap(), 0);
    assert_eq!(other.sweep_objects(HOUR * 100).await.unwrap(), 1);
    let (third, _third_folder) = bucket.machine();
    assert_eq!(third.missing(&digests).await.unwrap(), [unused]);
}

#[tokio::test]
async fn an_old_copy_does_not_prove_that_its_object_exists() {
    let bucket = Bucket::new(Duration::from_secs(2));
    let (cas, _folder) = bucket.machine();
    let digests = [
        cas.put_bytes(SHA, noise(1000, 1)).await.unwrap(),
        cas.put_bytes(SHA, noise(1000, 2)).await.unwrap(),
    ];
    fs::remove_file(bucket.object(&digests[1])).unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(cas.missing(&digests).await.unwrap(), [digests[1]]);
    assert_eq!(cas.get(&digests[0]).await.unwrap().unwrap(), noise(1000, 1));
    assert_eq!(cas.missing(&digests[..1]).await.unwrap(), [], "it is a new copy");
    // What is missing is stored again.
    cas.put_bytes(SHA, noise(1000, 2)).await.unwrap();
    assert!(bucket.object(&digests[1]).exists());
}

#[tokio::test]
async fn a_blob_is_found_by_its_hash() {
    let bucket = Bucket::new(HOUR);
    let (writer, _folder) = bucket.machine();
    let blob = writer.put_bytes(SHA, noise(1000, 1)).await.unwrap();
    let digest = Digest::from_sha256(blob.hash);
    // Some folders have several of them.
    let mut others = Vec::new();
    for seed in 2..600 {
        others.push(writer.put_bytes(SHA, noise(10, seed)).await.unwrap());
    }
    let (reader, _other_folder) = bucket.machine();
    for cas in [&writer, &reader] {
        assert_eq!(cas.resolve(&digest, None).await.unwrap(), blob);
        for other in &others {
            assert_eq!(cas.resolve(&Digest::from_sha256(other.hash), None).await.unwrap(), *other);
        }
        assert_eq!(cas.resolve(&digest, Some(7)).await.unwrap().size, 7);
        let absent = cas.resolve(&Digest::of(b"absent"), None).await;
        assert!(matches!(absent, Err(CasError::NotFound { sized: true, .. })), "{absent:?}");
    }
    assert_eq!(writer.resolve(&Digest::of(b""), None).await.unwrap(), SHA.empty());
    assert_eq!(reader.read_whole(&blob, 1000).await.unwrap(), noise(1000, 1));
    let refused = reader.read_whole(&blob, 999).await;
    assert!(matches!(refused, Err(CasError::TooLargeAtOnce { max: 999, .. })), "{refused:?}");
}
