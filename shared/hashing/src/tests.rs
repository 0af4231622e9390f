use std::io;

use bytes::Bytes;
use futures::stream;
use model::{BlobDigest, DigestFunction};

use super::*;

/// Longer than the buffers.
fn content() -> Vec<u8> {
    (0..3_000_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

#[tokio::test]
async fn files_have_the_digest_of_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, content()).unwrap();
    for function in DigestFunction::ALL {
        let digest = function.digest(&content());
        assert_eq!(hash_file(&path, function).unwrap(), digest);
        assert_eq!(hash_file_async(&path, function).await.unwrap(), digest);
    }
    let missing = folder.path().join("missing");
    assert!(hash_file(&missing, DigestFunction::Sha256).is_err());
    assert!(hash_file_async(&missing, DigestFunction::Sha256).await.is_err());
}

#[test]
fn a_copy_is_complete_or_names_the_side_that_failed() {
    let mut copy = Vec::<u8>::new();
    let copied = copy_reader(&content()[..], &mut copy, DigestFunction::Sha256);
    assert_eq!(copied.unwrap(), DigestFunction::Sha256.digest(&content()));
    assert!(copy == content());

    let mut small = [0_u8; 10];
    let copied = copy_reader(&content()[..], &mut small[..], DigestFunction::Sha256);
    assert!(matches!(copied, Err(CopyError::Write(_))));
    let folder = tempfile::tempdir().unwrap();
    let unreadable = std::fs::File::open(folder.path()).unwrap();
    let copied = copy_reader(unreadable, &mut copy, DigestFunction::Sha256);
    assert!(matches!(copied, Err(CopyError::Read(_))));
}

#[tokio::test]
async fn pieces_are_written_until_one_fails() {
    let pieces = || [Bytes::from_static(b"one"), Bytes::from_static(b"two")].map(Ok::<_, io::Error>);
    let mut copy = Vec::<u8>::new();
    let hasher = DigestFunction::Sha256.hasher();
    let digest: BlobDigest = copy_stream(stream::iter(pieces()), &mut copy, hasher).await.unwrap();
    assert_eq!((digest, &copy[..]), (DigestFunction::Sha256.digest(b"onetwo"), &b"onetwo"[..]));

    let fault = Err(io::Error::from(io::ErrorKind::TimedOut));
    let pieces = stream::iter(pieces().into_iter().chain([fault]));
    let copied = copy_stream(pieces, &mut Vec::<u8>::new(), None::<model::BlobHasher>).await;
    assert!(matches!(copied, Err(CopyError::Read(_))));
}
