//! Checks 12–15, 20 and 21: digests.

use std::collections::BTreeMap;

use prost::Message;
use reapi::execution::{
    BatchReadBlobsRequest, BatchUpdateBlobsRequest, Command, Digest, Directory, FindMissingBlobsRequest,
    GetActionResultRequest, Tree, command::OutputDirectoryFormat, digest_function,
};
use tonic::{Code, Status};

use crate::{
    check::{Check, check},
    client::{Client, PIECE, pieces},
    context::Cx,
    digest_functions::{execution_functions, known},
    job::{Inputs, Job},
    names::{fresh, fresh_text},
    stop::{Judged, Stop, describe, has_code, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(12, A, Must, Store, "a digest with the wrong size names nothing", wrong_size).each_function(),
    check!(13, A, Must, Store, "malformed digests are refused", malformed).each_function(),
    check!(14, A, Should, Store, "an omitted digest function is inferred", omitted_function),
    check!(15, A, Must, Store, "one digest function in a request, an action and its results", one_function),
    check!(20, A, Must, Store, "the empty blob is always present", empty_blob).each_function(),
    check!(21, A, Must, Execution, "messages that the server digests are canonical", canonical),
];

const NOT_SERVED: &[Code] = &[Code::NotFound, Code::InvalidArgument];

async fn wrong_size(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(1000));
    let good = client.put(&content).await?;
    for size_bytes in [999, 1001, 1, 5_000_000] {
        let wrong = Digest { size_bytes, ..good.clone() };
        match client.missing(vec![wrong.clone()]).await {
            Ok(missing) => {
                need!(missing == [wrong.clone()], "a digest with size {size_bytes} for 1000 is present");
            }
            Err(status) => need!(
                status.code() == Code::InvalidArgument,
                "FindMissingBlobs of a wrong size is answered with {}",
                describe(&status)
            ),
        }
        refused(client.read(&wrong).await, NOT_SERVED, "a read with a wrong size")?;
        if cx.batch_max().is_none_or(|limit| limit > 5_000_000) || size_bytes < 5000 {
            match client.batch_read(vec![wrong], Vec::new()).await {
                Ok(answer) => {
                    let status = answer.responses.first().and_then(|one| one.status.as_ref());
                    has_code(status, NOT_SERVED, "a batch read with a wrong size")?;
                }
                Err(status) => {
                    refused::<()>(Err(status), NOT_SERVED, "a batch read with a wrong size")?;
                }
            }
        }
    }
    pass()
}

/// Returns malformed digests with their descriptions.
pub(crate) fn malformed_digests(good: &Digest) -> Vec<(&'static str, Digest)> {
    let with_hash = |hash: String| Digest { hash, ..good.clone() };
    let upper = format!("ABCDEF{}", good.hash.get(6..).unwrap_or_default());
    vec![
        ("an upper-case hash", with_hash(upper)),
        ("a hash of odd length", with_hash(good.hash.get(1..).unwrap_or_default().to_owned())),
        ("a hash that is too long", with_hash(format!("{}00", good.hash))),
        ("a hash that is too short", with_hash(good.hash.get(..62).unwrap_or_default().to_owned())),
        ("a hash that is not hex", with_hash(format!("zz{}", good.hash.get(2..).unwrap_or_default()))),
        ("an empty hash", with_hash(String::new())),
        ("a path for a hash", with_hash(format!("../{}", good.hash.get(3..).unwrap_or_default()))),
        ("a negative size", Digest { size_bytes: -1, ..good.clone() }),
    ]
}

async fn malformed(cx: &Cx) -> Judged {
    let client = &cx.client;
    let good = client.put(&fresh(300)).await?;
    for (what, bad) in malformed_digests(&good) {
        let both = vec![good.clone(), bad.clone()];
        refused(
            client.missing(both).await,
            &[Code::InvalidArgument],
            &format!("FindMissingBlobs of {what}"),
        )?;
        let what_read = format!("BatchReadBlobs of {what}");
        match client.batch_read(vec![bad.clone()], Vec::new()).await {
            Ok(answer) => {
                let status = answer.responses.first().and_then(|one| one.status.as_ref());
                has_code(status, &[Code::InvalidArgument], &what_read)?;
            }
            Err(status) => {
                refused::<()>(Err(status), &[Code::InvalidArgument], &what_read)?;
            }
        }
        let answer = client.action_result(&bad).await;
        refused(answer, &[Code::InvalidArgument], &format!("GetActionResult of {what}"))?;
        let answer = client.tree(&bad, 0, "").await;
        refused(answer, &[Code::InvalidArgument], &format!("GetTree of {what}"))?;
    }
    pass()
}

async fn find(client: &Client, digest: Digest, digest_function: i32) -> Result<Vec<Digest>, Status> {
    let request = FindMissingBlobsRequest {
        instance_name: client.instance.clone(),
        blob_digests: vec![digest],
        digest_function,
    };
    Ok(client.cas().find_missing_blobs(request).await?.into_inner().missing_blob_digests)
}

async fn omitted_function(cx: &Cx) -> Judged {
    let announced = cx.cache().map(|cache| cache.digest_functions.clone()).unwrap_or_default();
    let client = &cx.client;
    if announced.contains(&digest_function::Value::Sha256.into()) {
        omitted_sha256(client).await?;
    }
    let unannounced = [
        (digest_function::Value::Md5, 32),
        (digest_function::Value::Sha1, 40),
        (digest_function::Value::Sha512, 128),
    ];
    for (function, length) in unannounced {
        let value = i32::from(function);
        if announced.contains(&value) {
            continue;
        }
        let digest = Digest { hash: "a".repeat(length), size_bytes: 5 };
        let name = function.as_str_name();
        let answer = find(client, digest.clone(), value).await;
        refused(
            answer,
            &[Code::InvalidArgument],
            &format!("a request with {name}, which is not announced,"),
        )?;
        let answer = find(client, digest, 0).await;
        refused(answer, &[Code::InvalidArgument], &format!("a hash that can only be {name}"))?;
    }
    let answer = find(client, client.absent(), 999).await;
    refused(answer, &[Code::InvalidArgument], "a digest function of number 999")?;
    pass()
}

async fn omitted_sha256(client: &Client) -> Result<(), Stop> {
    let client = client.of_function(model::DigestFunction::Sha256);
    let content = fresh(400);
    let (digest, instance_name) = (client.digest(&content), client.instance.clone());
    let request = BatchUpdateBlobsRequest {
        instance_name: instance_name.clone(),
        requests: vec![client.update(&content)],
        digest_function: 0,
    };
    let answer = client.cas().batch_update_blobs(request).await?.into_inner();
    let status = answer.responses.first().and_then(|one| one.status.as_ref());
    has_code(status, &[Code::Ok], "an upload without a digest function")?;
    need!(find(&client, digest.clone(), 0).await?.is_empty(), "without a digest function, a blob is missing");
    let request = BatchReadBlobsRequest {
        instance_name: instance_name.clone(),
        digests: vec![digest.clone()],
        acceptable_compressors: Vec::new(),
        digest_function: 0,
    };
    let answer = client.cas().batch_read_blobs(request).await?.into_inner();
    need!(
        answer.responses.first().is_some_and(|one| one.data == content),
        "without a digest function a blob cannot be read"
    );
    let request = GetActionResultRequest {
        instance_name,
        action_digest: Some(digest),
        ..GetActionResultRequest::default()
    };
    let answer = client.action_cache().get_action_result(request).await;
    refused(answer, &[Code::NotFound], "GetActionResult without a digest function")?;
    Ok(())
}

async fn one_function(cx: &Cx) -> Judged {
    let client = &cx.client;
    let good = client.put(&fresh(64)).await?;
    let other = Digest { hash: "b".repeat(40), size_bytes: 64 };
    let answer = client.missing(vec![good.clone(), other.clone()]).await;
    refused(answer, &[Code::InvalidArgument], "FindMissingBlobs of two hash lengths")?;
    match client.batch_read(vec![good.clone(), other.clone()], Vec::new()).await {
        Ok(answer) => {
            let status = answer.responses.get(1).and_then(|one| one.status.as_ref());
            has_code(status, &[Code::InvalidArgument], "the second hash length of a batch read")?;
        }
        Err(status) => {
            refused::<()>(Err(status), &[Code::InvalidArgument], "BatchReadBlobs of two hash lengths")?;
        }
    }
    let Some(execution) = cx.executing().filter(|execution| execution.exec_enabled) else { return pass() };
    for function in known(&execution_functions(execution)) {
        let cx = Cx { client: client.of_function(function), ..cx.clone() };
        let inputs = Inputs::default().file("in", fresh(50));
        let script = "cp in out; mkdir d; cp in d/in; head -c 100 /dev/zero";
        let run = cx.ok(&Job::sh(script).inputs(inputs).outputs(["out", "d"])).await?;
        let result = run.result()?;
        let files = result.output_files.iter().filter_map(|file| file.digest.clone());
        let trees = result.output_directories.iter().filter_map(|directory| directory.tree_digest.clone());
        let digests: Vec<Digest> = files.chain(trees).collect();
        need!(digests.len() == 2, "an action with {function} lacks an output");
        for digest in digests {
            let content = cx.client.read(&digest).await?;
            need!(
                cx.client.digest(&content) == digest,
                "an output of an action with {function} has another digest"
            );
        }
    }
    pass()
}

async fn empty_blob(cx: &Cx) -> Judged {
    let client = &cx.client;
    let empty = client.digest(b"");
    need!(client.has(&empty).await?, "FindMissingBlobs reports the empty blob");
    need!(client.read(&empty).await?.is_empty(), "a read of the empty blob returns bytes");
    let one = client.batch_read_one(&empty).await?;
    has_code(one.status.as_ref(), &[Code::Ok], "a batch read of the empty blob")?;
    client.write(&client.write_name(&empty), pieces(b"", PIECE)).await?;
    let answer = client.batch_update(vec![client.update(b"")]).await?;
    let status = answer.responses.first().and_then(|one| one.status.as_ref());
    has_code(status, &[Code::Ok], "a batch upload of the empty blob")?;
    need!(client.tree_directories(&empty).await?.len() <= 1, "the tree of the empty blob has directories");
    if !cx.executing().is_some_and(|execution| execution.exec_enabled) {
        return pass();
    }
    let inputs = Inputs::default().file("empty", "").directory("nothing");
    let job = Job::sh("test -f empty && test ! -s empty && test -d nothing && : > out").inputs(inputs);
    let job = job.outputs(["out"]);
    let mut prepared = cx.prepare(&job);
    prepared.blobs.retain(|blob| !blob.is_empty());
    client.put_all(&prepared.all()).await?;
    let run = cx.execute(&prepared, &job).await?.finish().await?;
    let outputs = &run.exited(0)?.output_files;
    need!(
        outputs.first().and_then(|file| file.digest.as_ref()) == Some(&empty),
        "an empty output does not have the digest of the empty blob"
    );
    pass()
}

/// Returns whether the bytes are the canonical encoding of this message type.
pub(crate) fn is_canonical<M: Message + Default>(content: &[u8]) -> bool {
    M::decode(content).is_ok_and(|message| message.encode_to_vec() == content)
}

async fn canonical(cx: &Cx) -> Judged {
    let client = &cx.client;
    let text = fresh_text();
    let script =
        format!("mkdir -p d/b/c d/a; echo {text} > d/b/c/f; echo x > d/a/f; echo y > d/z; ln -s z d/l");
    let mut job = Job::sh(&script).outputs(["d"]);
    job.command =
        Command { output_directory_format: OutputDirectoryFormat::TreeAndDirectory.into(), ..job.command };
    let run = cx.ok(&job).await?;
    let Some(output) = run.result()?.output_directories.first() else {
        return Err(Stop::Fail("the output directory is missing".into()));
    };
    let tree_digest = output.tree_digest.clone().unwrap_or_default();
    let content = client.read(&tree_digest).await?;
    need!(client.digest(&content) == tree_digest, "the Tree does not have its digest");
    need!(is_canonical::<Tree>(&content), "the Tree is not in canonical form");
    let tree: Tree = client.read_message(&tree_digest).await?;
    let all: BTreeMap<String, &Directory> = (tree.root.iter().chain(&tree.children))
        .map(|directory| (client.digest(&directory.encode_to_vec()).hash, directory))
        .collect();
    for directory in all.values() {
        for node in &directory.directories {
            let hash = node.digest.clone().unwrap_or_default().hash;
            need!(
                all.contains_key(&hash),
                "a child of {:?} does not have the digest that names it",
                node.name
            );
        }
    }
    if let Some(root) = &output.root_directory_digest {
        let content = client.read(root).await?;
        need!(client.digest(&content) == *root, "the root Directory does not have its digest");
        need!(is_canonical::<Directory>(&content), "the root Directory is not in canonical form");
    }
    pass()
}
