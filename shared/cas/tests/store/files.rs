//! Tests that store files and read them as files.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    sync::Arc,
};

use crate::support::{SHA, noise, read_all, store};
use cas::{CasError, Given, PutProgress};
use model::BlobDigest;

#[tokio::test]
async fn a_copied_file_stays_and_a_taken_one_moves() {
    let store = store();
    for (take, size) in [(false, 10), (true, 20), (false, 2_000_000), (true, 3_000_000)] {
        let source = store.folder.path().join(format!("file-{size}"));
        let content = noise(size, size as u64);
        fs::write(&source, &content).unwrap();
        let inode = source.metadata().unwrap().ino();
        let digest = store.cas.put_file(SHA, &source, take).await.unwrap();
        assert_eq!(digest, SHA.digest(&content));
        assert_eq!(read_all(&store.reopened(), &digest, 0, None).await.unwrap(), content);
        let stored = store.path(&digest).metadata().unwrap();
        assert_eq!(stored.ino() == inode, take);
        assert_eq!(stored.permissions().mode() & 0o7777, 0o444);
        assert_eq!(source.exists(), !take);
    }
    assert!(store.files("tmp").is_empty());
}

#[tokio::test]
async fn the_progress_of_many_files_is_reported() {
    let store = store();
    let paths = (0..40_usize).map(|number| {
        let path = store.folder.path().join(number.to_string());
        fs::write(&path, noise(100, number as u64)).unwrap();
        path
    });
    let progress = Arc::<PutProgress>::default();
    let stored = store.cas.put_files_with_progress(SHA, paths.collect(), Given::Lent, &progress).await;
    assert_eq!(stored.all().unwrap().len(), 40);
    assert_eq!((progress.files(), progress.work_done()), (40, 40 + 40 * 100));
}

#[tokio::test]
async fn what_somebody_else_can_reach_is_copied_even_when_given_away() {
    let store = store();
    let (source, other) = (store.folder.path().join("source"), store.folder.path().join("other"));
    fs::write(&source, "content").unwrap();
    fs::hard_link(&source, &other).unwrap();
    let digest = store.cas.put_file(SHA, &source, true).await.unwrap();
    fs::write(&other, "changed").unwrap();
    assert_eq!(fs::read(store.path(&digest)).unwrap(), b"content");
}

#[tokio::test]
async fn a_file_of_another_owner_becomes_the_stores_own() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let store = store();
    let source = store.folder.path().join("source");
    fs::write(&source, "of another").unwrap();
    std::os::unix::fs::chown(&source, Some(65_534), Some(65_534)).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o6777)).unwrap();
    let digest = store.cas.put_file(SHA, &source, true).await.unwrap();
    let meta = store.path(&digest).metadata().unwrap();
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o7777), (0, 0o444));
    assert!(!source.exists());
}

#[tokio::test]
async fn only_regular_files_are_taken() {
    let store = store();
    let path = |name: &str| store.folder.path().join(name);
    fs::write(path("file"), "x").unwrap();
    symlink(path("file"), path("link")).unwrap();
    nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(path("folder")).unwrap();
    for take in [false, true] {
        for other in ["link", "pipe", "folder"] {
            let outcome = store.cas.put_file(SHA, &path(other), take).await;
            assert!(matches!(outcome, Err(CasError::NotAFile { .. })), "{other}");
        }
        let absent = store.cas.put_file(SHA, &path("absent"), take).await;
        assert!(matches!(absent, Err(error @ CasError::Source { .. }) if error.is_about_content()));
        assert_eq!(store.cas.put_file(SHA, &path("file"), take).await.unwrap(), SHA.digest(b"x"));
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_about_content() {
    if nix::unistd::geteuid().is_root() {
        return;
    }
    let store = store();
    let path = store.folder.path().join("secret");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let error = store.cas.put_file(SHA, &path, false).await.unwrap_err();
    assert!(matches!(error, CasError::Source { .. }) && error.is_about_content(), "{error}");
}

#[tokio::test]
async fn files_are_stored_up_to_the_first_that_cannot_be() {
    let store = store();
    store.keep("there").await;
    let path = |name: &str| store.folder.path().join(name);
    for (name, content) in [("first", "there"), ("new", "new"), ("last", "there")] {
        fs::write(path(name), content).unwrap();
    }
    store.cas.set_full(true);
    let stored = store.cas.put_files(SHA, ["first", "absent", "new", "last"].map(path).to_vec(), false).await;
    assert_eq!(stored.digests, [SHA.digest(b"there")]);
    assert!(matches!(stored.error, Some(CasError::Source { .. })));
    let stored = store.cas.put_files(SHA, ["first", "last", "new", "last"].map(path).to_vec(), false).await;
    assert_eq!(stored.digests, [SHA.digest(b"there"); 2]);
    assert!(matches!(stored.error, Some(CasError::Full)));
    assert!(matches!(stored.all(), Err(CasError::Full)));
}

#[tokio::test]
async fn of_many_files_the_first_that_cannot_be_stored_is_reported() {
    let store = store();
    let path = |n: usize| store.folder.path().join(format!("{n}"));
    for n in (0..300).filter(|n| ![70, 40, 200].contains(n)) {
        fs::write(path(n), format!("content {n}")).unwrap();
    }
    let stored = store.cas.put_files(SHA, (0..300).map(path).collect(), false).await;
    assert_eq!(stored.digests.len(), 40);
    assert!(
        matches!(stored.error, Some(CasError::Source { path: absent, .. }) if absent == path(40).to_str().unwrap())
    );
    assert!(!store.cas.contains(&SHA.digest(b"content 299")).await.unwrap());
}

#[tokio::test]
async fn many_files_go_in_with_their_digests_in_order() {
    let store = store();
    let paths: Vec<_> = (0..300).map(|n| store.folder.path().join(format!("{n}"))).collect();
    for (n, path) in paths.iter().enumerate() {
        fs::write(path, format!("content {}", n % 100)).unwrap();
    }
    let digests = store.cas.put_files(SHA, paths, true).await.all().unwrap();
    assert_eq!(digests.len(), 300);
    for (n, digest) in digests.iter().enumerate() {
        assert_eq!(*digest, SHA.digest(format!("content {}", n % 100).as_bytes()));
    }
    assert_eq!(store.files("cas").len(), 100);
    assert!(store.files("tmp").is_empty());
}

#[tokio::test]
async fn paths_lead_to_files_of_the_right_mode() {
    let store = store();
    let content = noise(10_000, 1);
    let digest = store.keep(content.clone()).await;
    let absent = SHA.digest(b"absent");
    for cas in [store.cas.clone(), store.reopened(), store.cas.clone()] {
        let wanted = [(digest, true), (absent, false), (digest, false), (SHA.empty(), true), (absent, true)];
        let paths = cas.local_paths(&wanted).await.unwrap();
        for (index, mode) in [(0, 0o555), (2, 0o444), (3, 0o555)] {
            let path = paths[index].as_ref().unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
            let wanted: &[u8] = if index == 3 { b"" } else { &content };
            assert_eq!(fs::read(path).unwrap(), wanted);
        }
        assert_eq!((&paths[1], &paths[4]), (&None, &None));
    }
    let again = store.cas.local_path(&digest, true).await.unwrap();
    assert_eq!(again, store.cas.local_paths(&[(digest, true)]).await.unwrap()[0]);
    assert!(store.files("tmp").is_empty());
}

#[tokio::test]
async fn a_lost_twin_is_made_again() {
    let store = store();
    let digest = store.keep("tool").await;
    let twin = store.cas.local_path(&digest, true).await.unwrap().unwrap();
    fs::remove_file(&twin).unwrap();
    store.cas.forget(&digest);
    assert_eq!(store.cas.local_path(&digest, true).await.unwrap(), Some(twin.clone()));
    assert_eq!(fs::read(twin).unwrap(), b"tool");
    let other: Vec<(BlobDigest, bool)> = vec![];
    assert!(store.cas.local_paths(&other).await.unwrap().is_empty());
}
