use super::*;

#[tokio::test]
async fn what_goes_in_comes_out() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Store::url_of(&folder.path().join("objects"))).unwrap();
    let source = folder.path().join("source");
    let content: Vec<u8> = (0..3_000_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    std::fs::write(&source, &content).unwrap();
    let (digest, length) = store.put_file(&source).await.unwrap();
    assert_eq!((digest.clone(), length), (Digest::of(&content), content.len() as u64));
    assert_eq!(store.put_file(&source).await.unwrap().0, digest);
    let back = folder.path().join("back");
    assert_eq!(store.fetch(&digest, &back).await.unwrap(), length);
    assert_eq!(std::fs::read(&back).unwrap(), content);
}

#[tokio::test]
async fn a_damaged_blob_is_refused_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let objects = folder.path().join("objects");
    let store = Store::open(&Store::url_of(&objects)).unwrap();
    let digest = store.put(Bytes::from_static(b"good")).await.unwrap();
    let hex = digest.hex();
    std::fs::write(objects.join("sha256").join(&hex[..2]).join(hex), b"evil").unwrap();
    let back = folder.path().join("back");
    assert!(matches!(store.fetch(&digest, &back).await, Err(StoreError::Damaged { .. })));
    assert!(!back.exists());
}

#[tokio::test]
async fn what_is_read_whole_is_as_large_as_expected_and_undamaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Store::url_of(folder.path())).unwrap();
    let digest = store.put(Bytes::from_static(b"good")).await.unwrap();
    assert_eq!(store.read(&digest, 4).await.unwrap(), "good");
    let error = store.read(&digest, 3).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { size: 4, most: 3, .. }), "{error}");
    let hex = digest.hex();
    std::fs::write(folder.path().join("sha256").join(&hex[..2]).join(hex), b"evil").unwrap();
    assert!(matches!(store.read(&digest, 4).await, Err(StoreError::Damaged { .. })));
}

#[tokio::test]
async fn a_missing_blob_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&Store::url_of(folder.path())).unwrap();
    let digest = Digest::of(b"nothing");
    let error = store.fetch(&digest, &folder.path().join("x")).await.unwrap_err();
    assert!(error.to_string().contains(digest.hex()));
}

#[test]
fn other_urls_are_refused() {
    assert!(Store::open("gopher://x").is_err());
    assert!(Store::open("file://relative").is_err());
}
