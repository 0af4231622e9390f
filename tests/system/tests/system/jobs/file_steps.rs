//! The internal steps `archive`, `rename`, `truncate` and `exists`.

use std::{fs, os::unix::fs::symlink, process::Command};

use model::{Digest, DigestFunction, Outcome, TaskStatus};
use serde_json::json;

use super::{builder, job, request, request_in, run, sh, start, store};

#[tokio::test]
async fn files_are_packed_moved_cut_and_checked_without_an_executor() {
    let farm = start(builder()).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::write(folder.path().join("notes"), "near").unwrap();
    let mut make = sh(
        "make",
        "mkdir -p out/sub; echo 0123456789 > out/long; ln -s ../long out/sub/link; echo x > run; chmod +x run",
    );
    make["outputs"] = json!(["out", "run"]);
    let tasks = json!([
        make,
        {"id": "made", "exists": {"path": "out/sub", "kind": "folder"}},
        {"id": "linked", "exists": {"path": "out/sub/link", "kind": "file"}},
        {"id": "pack", "archive": {"from": "out", "to": "kept/out.tar.gz"}},
        {"id": "again", "extract": {"from": "kept/out.tar.gz", "to": "again"}},
        {"id": "far", "truncate": {"from": "again/out/sub/link", "to": "kept/far", "bytes": 4}},
        {"id": "near", "truncate": {"from": "notes", "to": "kept/near", "bytes": 2}},
        {"id": "move", "rename": {"from": "out/long", "to": "kept/long"}, "dependencies": ["pack"]},
        {"id": "move-run", "rename": {"from": "run", "to": "kept/run"}},
        {"id": "left", "command": ["/bin/sh", "-c", "ls out > kept-list; test -x kept/run && cat kept/long >> kept-list"],
            "inputs": ["out", "kept/run", "kept/long"], "outputs": ["kept-list"]},
    ]);
    let mut request = request_in(job(&tasks), folder.path());
    request.outputs = vec!["kept/*".into(), "kept-list".into(), "out/*".into()];
    let ended = run(&farm, request).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.reports);
    assert_eq!(ended.ids(|report| report.executor.is_some()), ["make", "left"]);
    let outputs = ended.outputs(&farm).await;
    let paths: Vec<&String> = outputs.keys().collect();
    assert_eq!(paths, ["kept-list", "kept/far", "kept/long", "kept/near", "kept/out.tar.gz", "kept/run"]);
    assert_eq!(outputs["kept-list"], b"sub\n0123456789\n", "the moved file is gone from where it was");
    assert_eq!((outputs["kept/far"].as_slice(), outputs["kept/near"].as_slice()), (&b"0123"[..], &b"ne"[..]));
    let archive = farm.folder().join("out.tar.gz");
    fs::write(&archive, &outputs["kept/out.tar.gz"]).unwrap();
    let listed = Command::new("tar").arg("-tzf").arg(&archive).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "out/\nout/long\nout/sub/\nout/sub/link\n");
}

#[tokio::test]
async fn what_cannot_be_packed_moved_or_cut_is_a_failure_that_says_why() {
    let farm = start(builder().env("FOREBAY_ACTION_OUTPUT_BYTES_MAX", "65536")).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::create_dir_all(folder.path().join("links")).unwrap();
    fs::write(folder.path().join("big"), vec![b'x'; 70_000]).unwrap();
    fs::write(folder.path().join("file"), "x").unwrap();
    fs::write(folder.path().join("links/in"), "x").unwrap();
    symlink("../../../../etc/passwd", folder.path().join("links/out")).unwrap();
    symlink("/etc", folder.path().join("etc")).unwrap();
    symlink("nothing", folder.path().join("dangling")).unwrap();
    symlink("links", folder.path().join("alias")).unwrap();
    let tasks = json!([
        {"id": "leads-out", "archive": {"from": "links", "to": "a.tar"}},
        {"id": "large", "archive": {"from": "big", "to": "b.tar"}},
        {"id": "long", "truncate": {"from": "big", "to": "c", "bytes": 66_000}},
        {"id": "short", "truncate": {"from": "big", "to": "d", "bytes": 65_000}},
        {"id": "outside", "truncate": {"from": "etc/passwd", "to": "e", "bytes": 1}},
        {"id": "of-folder", "truncate": {"from": "links", "to": "f", "bytes": 1}},
        {"id": "behind", "rename": {"from": "alias/in", "to": "g"}},
        {"id": "missing", "rename": {"from": "nowhere", "to": "h"}},
        {"id": "absent", "exists": {"path": "nowhere"}},
        {"id": "no-folder", "exists": {"path": "file", "kind": "folder"}},
        {"id": "broken", "exists": {"path": "links/out"}},
        {"id": "dangling", "exists": {"path": "dangling"}},
        {"id": "skipped", "make_folder": "i", "dependencies": ["absent"]},
    ]);
    let ended = run(&farm, request_in(job(&tasks), folder.path())).await;
    let reason = |id: &str| ended.reason(id).to_owned();
    assert_eq!(ended.ids(|report| report.status == TaskStatus::Succeeded), ["short"], "{:#?}", ended.reports);
    assert_eq!(ended.ids(|report| report.status == TaskStatus::Skipped), ["skipped"]);
    assert!(
        reason("leads-out").contains("symlink links/out leads out of the archive"),
        "{}",
        reason("leads-out")
    );
    assert_eq!(reason("large"), "the archive of big exceeds the limit of 65536 bytes");
    assert_eq!(reason("long"), "the copy of big has 66000 bytes, more than the limit of 65536");
    assert_eq!(reason("outside"), "etc/passwd does not exist");
    assert_eq!(reason("of-folder"), "links is not a file: it is a folder or a broken link");
    assert_eq!(reason("behind"), "alias/in leads through symlink alias: use the path without symlinks");
    assert_eq!(
        (reason("missing"), reason("absent")),
        ("nowhere does not exist".into(), "nowhere does not exist".into())
    );
    assert_eq!(reason("no-folder"), "file is a file: expected a folder");
    assert_eq!(reason("broken"), "links/out does not exist");
    assert_eq!(reason("dangling"), "dangling does not exist: its symlink leads to \"nothing\"");
}

#[tokio::test]
async fn a_rename_replaces_only_on_request() {
    let farm = start(builder()).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    for name in ["old", "kept", "new", "other"] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    fs::create_dir(folder.path().join("full")).unwrap();
    fs::write(folder.path().join("full/inside"), "inside").unwrap();
    let tasks = json!([
        {"id": "refused", "rename": {"from": "new", "to": "kept"}},
        {"id": "onto-folder", "rename": {"from": "new", "to": "full"}},
        {"id": "replaced", "rename": {"from": "other", "to": "old", "replace": true}},
    ]);
    let mut request = request_in(job(&tasks), folder.path());
    request.outputs = vec!["old".into(), "kept".into(), "other".into(), "full/*".into()];
    let ended = run(&farm, request).await;
    assert_eq!(ended.ids(|report| report.status == TaskStatus::Failed), ["refused", "onto-folder"]);
    assert_eq!(ended.reason("refused"), "kept exists already: to replace it, set `replace: true`");
    let outputs = ended.outputs(&farm).await;
    let paths: Vec<&String> = outputs.keys().collect();
    assert_eq!(paths, ["full/inside", "kept", "old"]);
    assert_eq!((outputs["old"].as_slice(), outputs["kept"].as_slice()), (&b"other"[..], &b"kept"[..]));
}

#[tokio::test]
async fn the_farms_own_report_cannot_be_made_by_a_task() {
    let farm = start(builder()).await;
    let folder = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::create_dir(folder.path().join(".forebay")).unwrap();
    fs::write(folder.path().join(".forebay/tasks.jsonl"), "of the context").unwrap();
    // The archive has the folder, too.
    let forged = tempfile::tempdir_in(farm.folder()).unwrap();
    fs::create_dir(forged.path().join(".forebay")).unwrap();
    fs::write(forged.path().join(".forebay/tasks.jsonl"), "forged").unwrap();
    fs::write(forged.path().join("real"), "real\n").unwrap();
    let mut tar = std::process::Command::new("tar");
    tar.arg("-C").arg(forged.path()).arg("-cf").arg(folder.path().join("a.tar")).args([".forebay", "real"]);
    assert!(tar.status().unwrap().success());
    let tasks = json!([
        {"id": "unpack", "extract": {"from": "a.tar", "to": "."}},
        {"id": "seen", "command": ["/bin/sh", "-c", "ls -A > seen"], "inputs": ["**", "real"], "outputs": ["seen"]},
    ]);
    let mut request = request_in(job(&tasks), folder.path());
    request.outputs = vec!["**".into()];
    let ended = run(&farm, request).await;
    assert_eq!(ended.outcome(), Outcome::Succeeded, "{:#?}", ended.reports);
    let outputs = ended.outputs(&farm).await;
    assert_eq!(outputs["real"], b"real\n");
    let kept: Vec<&String> = outputs.keys().filter(|path| path.starts_with(".forebay")).collect();
    assert!(kept.is_empty(), "{kept:?}");
    assert!(!String::from_utf8_lossy(&outputs["seen"]).contains("forebay"), "{outputs:?}");
    assert_eq!(ended.reports.len(), 2, "the report is the farm's");
}

#[tokio::test]
async fn a_file_of_the_store_is_fetched_by_its_digest() {
    let farm = start(builder().env("FOREBAY_ACTION_OUTPUT_BYTES_MAX", "65536")).await;
    let put = async |bytes: Vec<u8>| {
        let blob = store(&farm).put_bytes(DigestFunction::Sha256, bytes.into()).await.unwrap();
        (Digest::from_sha256(blob.hash), blob.size)
    };
    let ((small, size), (large, _)) = (put(b"uploaded".to_vec()).await, put(vec![b'x'; 70_000]).await);
    let unknown = Digest::of(b"never uploaded");
    let tasks = json!([
        {"id": "found", "fetch": {"digest": small, "to": "kept/found"}},
        {"id": "sized", "fetch": {"digest": small, "size_bytes": size, "to": "kept/sized"}},
        {"id": "wrong-size", "fetch": {"digest": small, "size_bytes": size + 1, "to": "a"}},
        {"id": "unknown", "fetch": {"digest": unknown, "to": "b"}},
        {"id": "large", "fetch": {"digest": large, "to": "c"}},
        {"id": "use", "command": ["/bin/sh", "-c", "cat kept/found kept/sized > kept/both"],
            "inputs": ["kept/found", "kept/sized"], "outputs": ["kept/both"]},
    ]);
    let mut request = request(job(&tasks));
    request.outputs = vec!["kept/both".into()];
    let ended = run(&farm, request).await;
    assert_eq!(
        ended.ids(|report| report.status == TaskStatus::Succeeded),
        ["found", "sized", "use"],
        "{:#?}",
        ended.reports
    );
    for id in ["wrong-size", "unknown"] {
        assert_eq!(ended.status(id), TaskStatus::Failed, "it is not tried again: {}", ended.reason(id));
        assert!(ended.reason(id).contains("has no file sha256:"), "{}", ended.reason(id));
    }
    assert!(
        ended.reason("large").ends_with("has 70000 bytes, more than the limit of 65536"),
        "{}",
        ended.reason("large")
    );
    assert_eq!(ended.outputs(&farm).await["kept/both"], b"uploadeduploaded");
}
