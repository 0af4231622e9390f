//! Tests that the changes of one action to its input root reach neither the next action nor the store.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use crate::common::*;

/// After each of these, the next tree must be as new.
const ATTACKS: [&str; 26] = [
    "true",
    "echo x > extra",
    "mkdir -p a/deep/er && echo x > a/deep/er/hidden",
    "rm a/one",
    "rm -rf a",
    "rm -rf * .[!.]*",
    "rm a/one && echo other > a/one",
    "rm a/one && echo -n one > a/one && chmod 444 a/one",
    "mv a/one a/uno",
    "mv a/one x && mv a/two a/one && mv x a/two",
    "mv a b && mkdir a",
    "mv a x && mv c a && mv x c",
    "chmod 777 a",
    "chmod 000 a",
    "chmod 1777 a; chmod g+s c",
    "mkdir ro && echo x > ro/hidden && chmod 500 ro && chmod 000 ro",
    "mkdir -p a/ro/ro && echo x > a/ro/ro/hidden && chmod 000 a/ro/ro && chmod 000 a/ro",
    "ln -s /etc extra; ln -s /etc a/extra",
    "rm link && ln -s /etc link",
    "rm -rf a && ln -s c a",
    "rm -rf c/d && cp -r a c/d",
    "mkfifo pipe a/pipe",
    "touch -d '1999-01-01' a . c/d",
    "touch -r a stamp; touch c/d/extra extra; touch -r stamp . c/d; rm stamp",
    "i=0; while [ $i -lt 100 ]; do touch c/d/f$i; i=$((i+1)); done",
    "i=0; while [ $i -lt 300 ]; do mkdir d$i; echo x > d$i/x; i=$((i+1)); done",
];

async fn sample(rig: &Rig) -> model::BlobDigest {
    rig.input(&[
        ("a/one", file("one")),
        ("a/two", file("two")),
        ("a/tool", Node::Executable(b"#!/bin/sh\necho tool\n".to_vec())),
        ("a/empty", file("")),
        ("c/d/three", file("three")),
        ("c/d/link", Node::Link("../../a/one".into())),
        ("c/nothing", Node::Dir(None)),
        ("link", Node::Link("a".into())),
        ("top", file("top")),
    ])
    .await
}

async fn survives(rig: &Rig) {
    let digest = sample(rig).await;
    let first = rig.prepare(&digest).await;
    let fresh = listing(first.path());
    rig.roots.release(first).await;
    rig.roots.settled().await;
    for attack in ATTACKS {
        for _ in 0..2 {
            let root = rig.prepare(&digest).await;
            assert_eq!(listing(root.path()), fresh, "before {attack:?}");
            run(&root, attack);
            rig.roots.release(root).await;
            rig.roots.settled().await;
        }
        // Several slots at once: both kept ones and new ones.
        let (one, two) = (rig.prepare(&digest).await, rig.prepare(&digest).await);
        for root in [one, two] {
            assert_eq!(listing(root.path()), fresh, "after {attack:?}");
            let old = SystemTime::now() - Duration::from_secs(3600);
            assert!(
                fs::metadata(root.path().join("a")).unwrap().modified().unwrap() > old,
                "after {attack:?}"
            );
            rig.roots.release(root).await;
        }
        rig.roots.settled().await;
    }
    for content in ["one", "two", "three", "top"] {
        assert_eq!(rig.cas.get(&SHA.digest(content.as_bytes())).await.unwrap().unwrap(), content);
    }
    assert_eq!(rig.in_slots(), Vec::<PathBuf>::new());
    assert!(fs::read_dir(rig.dir.path().join("roots/trash")).unwrap().next().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_action_sees_nothing_of_the_one_before() {
    survives(&Rig::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_input_root_is_used_again_and_is_empty() {
    let rig = Rig::new();
    let empty = SHA.empty();
    let mut inodes = Vec::new();
    for script in
        ["true", "true", "touch extra; touch -d '1999-01-01' .", "mkdir -p a/b", "chmod 700 .", "true"]
    {
        let root = rig.prepare(&empty).await;
        assert_eq!(listing(root.path()).len(), 1, "before {script:?}");
        let meta = fs::metadata(root.path()).unwrap();
        assert_eq!(meta.mode() & 0o777, 0o755, "before {script:?}");
        inodes.push(meta.ino());
        run(&root, script);
        rig.roots.release(root).await;
        rig.roots.settled().await;
    }
    assert!(inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_where_files_are_copied() {
    let rig = Rig::with(|config| config.link = false);
    assert!(!rig.roots.links());
    survives(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_what_is_hidden_in_attributes_of_directories() {
    let rig = Rig::new();
    let digest = sample(&rig).await;
    let root = rig.prepare(&digest).await;
    let dir = root.path().join("a");
    let kept = fs::metadata(&dir).unwrap().ino();
    match rustix::fs::setxattr(&dir, "user.hidden", b"x", rustix::fs::XattrFlags::empty()) {
        Err(rustix::io::Errno::NOTSUP) => return,
        set => set.unwrap(),
    }
    rig.roots.release(root).await;
    rig.roots.settled().await;
    let root = rig.prepare(&digest).await;
    let dir = root.path().join("a");
    assert_ne!(fs::metadata(&dir).unwrap().ino(), kept);
    assert_eq!(rustix::fs::listxattr(&dir, &mut [0_u8; 256]).unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_cannot_change_a_linked_input() {
    // Only files of another user are linked.
    if owner().is_none() {
        return;
    }
    let rig = Rig::new();
    let digest = sample(&rig).await;
    let root = rig.prepare(&digest).await;
    assert!(rig.roots.links());
    assert!(fs::metadata(root.path().join("a/one")).unwrap().nlink() > 1);
    for attack in [
        "echo x > a/one",
        "echo x >> a/one",
        "chmod 666 a/one",
        "chmod +x a/one",
        "chown 65534 a/one",
        "touch -d 1999-01-01 a/one",
        "truncate -s 0 a/one",
        "echo x > a/tool",
        "echo x > a/empty",
    ] {
        assert!(!run(&root, attack).status.success(), "{attack}");
    }
    assert_eq!(run_well(&root, "cat a/one && ./a/tool && cat c/d/link"), "onetool\none");
    assert_eq!(rig.cas.get(&SHA.digest(b"one")).await.unwrap().unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_input_may_be_changed_and_the_store_is_not() {
    let rig = Rig::with(|config| (config.owner, config.link) = (None, false));
    let digest = sample(&rig).await;
    let root = rig.prepare(&digest).await;
    let path = root.path().join("a/one");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    fs::write(&path, "uno").unwrap();
    rig.roots.release(root).await;
    rig.roots.settled().await;
    assert_eq!(fs::read(rig.prepare(&digest).await.path().join("a/one")).unwrap(), b"one");
    assert_eq!(rig.cas.get(&SHA.digest(b"one")).await.unwrap().unwrap(), "one");
}

#[tokio::test(flavor = "multi_thread")]
async fn s8_very_deep_leftovers_are_removed() {
    let rig = Rig::new();
    let digest = sample(&rig).await;
    let root = rig.prepare(&digest).await;
    run_well(&root, "i=0; while [ $i -lt 400 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done");
    rig.roots.release(root).await;
    rig.roots.settled().await;
    assert!(fs::read_dir(rig.dir.path().join("roots/trash")).unwrap().next().is_none());
}
