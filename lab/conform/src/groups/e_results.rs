//! Checks 75–77 and 83: guarantees of a cache hit.

use prost::Message as _;
use reapi::execution::{
    ActionResult, Digest, Directory, DirectoryNode, FileNode, OutputDirectory, OutputFile, Tree,
};
use tonic::Code;

use super::e_action_cache::{action, good_result};
use crate::{
    check::{Check, check},
    context::Cx,
    job::Job,
    names::{fresh, fresh_text},
    stop::{Judged, Stop, describe, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(75, E, Should, Cache, "a result with missing blobs is not a hit", complete).each_function(),
    check!(76, E, Should, Cache, "outputs are inlined only when asked, and never when large", inlining)
        .each_function(),
    check!(77, E, Must, Cache, "files are inlined by exact path", inline_paths).each_function(),
    check!(83, E, Practical, Cache, "a result is never an empty message, and names its worker", not_empty),
];

/// Encodes a Tree whose only file has this digest; with `nested` it also names an absent directory.
fn tree(cx: &Cx, file: Digest, nested: bool) -> Vec<u8> {
    let node = FileNode { name: "file".into(), digest: Some(file), ..FileNode::default() };
    let leaf = Directory { files: vec![node], ..Directory::default() };
    let tree = if nested {
        let digest = Some(cx.client.digest(&leaf.encode_to_vec()));
        let child = DirectoryNode { name: "child".into(), digest };
        let root = Directory { directories: vec![child], ..Directory::default() };
        Tree { root: Some(root), children: vec![leaf] }
    } else {
        Tree { root: Some(leaf), children: Vec::new() }
    };
    tree.encode_to_vec()
}

fn with_tree(good: &ActionResult, tree_digest: Digest) -> ActionResult {
    let directory = OutputDirectory {
        path: "directory".into(),
        tree_digest: Some(tree_digest),
        ..OutputDirectory::default()
    };
    ActionResult { output_directories: vec![directory], ..good.clone() }
}

async fn complete(cx: &Cx) -> Judged {
    let client = &cx.client;
    let good = good_result(cx).await?;
    let file = OutputFile { path: "lost".into(), digest: Some(client.absent()), ..OutputFile::default() };
    let lost_files = [good.output_files.clone(), vec![file]].concat();
    let lost_file_tree = client.put(&tree(cx, client.absent(), false)).await?;
    let deep_file_tree = client.put(&tree(cx, client.absent(), true)).await?;
    let incomplete = [
        ("an output file", ActionResult { output_files: lost_files, ..good.clone() }),
        ("the standard output", ActionResult { stdout_digest: Some(client.absent()), ..good.clone() }),
        ("the standard error", ActionResult { stderr_digest: Some(client.absent()), ..good.clone() }),
        ("a Tree", with_tree(&good, client.absent())),
        ("a file of a Tree", with_tree(&good, lost_file_tree)),
        ("a file below a Tree", with_tree(&good, deep_file_tree)),
    ];
    for (what, result) in incomplete {
        let action = action(cx).await?;
        // The server may also refuse to store it.
        let _ = client.update_action_result(&action, result).await;
        let answer = client.action_result(&action).await;
        refused(answer, &[Code::NotFound], &format!("a hit that lacks {what}"))?;
    }
    let present = client.put(&fresh(60)).await?;
    let whole = with_tree(&good, client.put(&tree(cx, present, true)).await?);
    let action = action(cx).await?;
    client.update_action_result(&action, whole).await?;
    for _ in 0..3 {
        if let Err(status) = client.action_result(&action).await {
            return Err(Stop::Fail(format!("a complete result is answered with {}", describe(&status))));
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    pass()
}

async fn inlining(cx: &Cx) -> Judged {
    let client = &cx.client;
    let (action_digest, result) = (action(cx).await?, good_result(cx).await?);
    client.update_action_result(&action_digest, result).await?;
    let got = client.action_result(&action_digest).await?;
    need!(
        got.stdout_raw.is_empty() && got.output_files.iter().all(|file| file.contents.is_empty()),
        "outputs were inlined unasked"
    );
    let large = client.put(&fresh(5 << 20)).await?;
    let result = ActionResult {
        output_files: vec![OutputFile {
            path: "big".into(),
            digest: Some(large.clone()),
            ..OutputFile::default()
        }],
        stdout_digest: Some(large.clone()),
        stderr_digest: Some(large.clone()),
        ..ActionResult::default()
    };
    let action_digest = action(cx).await?;
    client.update_action_result(&action_digest, result).await?;
    let got = client.action_result_inline(&action_digest, true, vec!["big".into()]).await?;
    need!(got.encoded_len() < 4 << 20, "a result requested inline has {} bytes", got.encoded_len());
    need!(
        got.stdout_digest.as_ref() == Some(&large)
            && got.output_files.first().and_then(|file| file.digest.as_ref()) == Some(&large),
        "a result with large outputs lost their digests"
    );
    pass()
}

async fn inline_paths(cx: &Cx) -> Judged {
    let client = &cx.client;
    let (action, result) = (action(cx).await?, good_result(cx).await?);
    let content = match result.output_files.first().and_then(|file| file.digest.as_ref()) {
        Some(digest) => client.read(digest).await?,
        None => Vec::new(),
    };
    client.update_action_result(&action, result).await?;
    for path in ["out", "file", "./out/file", "/out/file", "out/file/", "out//file", "OUT/FILE"] {
        let got = client.action_result_inline(&action, false, vec![path.into()]).await?;
        need!(
            got.output_files.iter().all(|file| file.contents.is_empty()),
            "asked for {path:?}, the server inlined out/file"
        );
    }
    let got = client.action_result_inline(&action, false, vec!["out/file".into()]).await?;
    need!(
        got.output_files.iter().all(|file| file.contents.is_empty() || file.contents == content),
        "an inlined file has other content"
    );
    pass()
}

async fn not_empty(cx: &Cx) -> Judged {
    let client = &cx.client;
    let action = action(cx).await?;
    client.update_action_result(&action, ActionResult::default()).await?;
    let got = client.action_result(&action).await?;
    need!(got.encoded_len() > 0, "a result without outputs comes back as an empty message");
    if !cx.executing().is_some_and(|execution| execution.exec_enabled) {
        return pass();
    }
    let run = cx.ok(&Job::sh(&format!(": {}", fresh_text()))).await?;
    let named = |result: &ActionResult| {
        result.execution_metadata.as_ref().is_some_and(|metadata| !metadata.worker.is_empty())
    };
    need!(named(run.result()?), "an executed result names no worker");
    need!(named(&client.action_result(&run.action).await?), "a cached result names no worker");
    pass()
}
