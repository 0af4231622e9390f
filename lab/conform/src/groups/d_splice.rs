//! Checks 67–70: splicing chunks.

use reapi::execution::{Digest, SpliceBlobRequest, SpliceBlobResponse, chunking_function::Value as Chunking};
use tonic::{Code, Status};

use super::d_split;
use crate::{
    check::{Check, check},
    client::{Client, PIECE, pieces},
    context::{Cx, noted, vacuous},
    names::fresh,
    stop::{Judged, Stop, describe, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(67, D, Must, Store, "a spliced blob is verified", verified).each_function(),
    check!(68, D, Must, Store, "splicing with an absent chunk is NOT_FOUND", absent_chunk).each_function(),
    check!(69, D, May, Store, "splicing a present blob in another way does no harm", present).each_function(),
    check!(70, D, Must, Store, "a blob and its chunks have one digest function", one_function)
        .each_function(),
];

const NO_SPLICE: &str = "splice_blob_support is not announced";

fn splices(cx: &Cx) -> bool {
    cx.cache().is_some_and(|cache| cache.splice_blob_support)
}

async fn splice(client: &Client, blob: &Digest, chunks: Vec<Digest>) -> Result<SpliceBlobResponse, Status> {
    let request = SpliceBlobRequest {
        instance_name: client.instance.clone(),
        blob_digest: Some(blob.clone()),
        chunk_digests: chunks,
        digest_function: client.function_value(),
        chunking_function: 0,
    };
    Ok(client.cas().splice_blob(request).await?.into_inner())
}

/// Uploads three chunks, and returns them with their concatenation.
async fn three(client: &Client) -> Result<(Vec<Digest>, Vec<u8>), Stop> {
    let parts = [fresh(5000), fresh(7001), fresh(300)];
    client.put_all(&parts).await?;
    Ok((parts.iter().map(|part| client.digest(part)).collect(), parts.concat()))
}

async fn verified(cx: &Cx) -> Judged {
    if !splices(cx) {
        return vacuous(NO_SPLICE);
    }
    let client = &cx.client;
    let (chunks, content) = three(client).await?;
    let wrong = client.digest(&fresh(content.len()));
    let answer = splice(client, &wrong, chunks.clone()).await;
    refused(answer, &[Code::InvalidArgument], "splicing chunks that do not make up the blob")?;
    need!(!client.has(&wrong).await?, "a blob with the wrong chunks is present");
    let longer = Digest { size_bytes: 20_000, ..client.digest(&content) };
    let answer = splice(client, &longer, chunks.clone()).await;
    refused(answer, &[Code::InvalidArgument], "splicing chunks of another total size")?;
    let digest = client.digest(&content);
    let answer = splice(client, &digest, chunks).await?;
    need!(answer.blob_digest == Some(digest.clone()), "the answer names another blob");
    need!(client.read(&digest).await? == content, "a spliced blob comes back changed");
    pass()
}

async fn absent_chunk(cx: &Cx) -> Judged {
    if !splices(cx) {
        return vacuous(NO_SPLICE);
    }
    let client = &cx.client;
    let (mut chunks, content) = three(client).await?;
    let lost = fresh(900);
    chunks.push(client.digest(&lost));
    let whole = [content, lost].concat();
    let digest = client.digest(&whole);
    refused(splice(client, &digest, chunks).await, &[Code::NotFound], "splicing with an absent chunk")?;
    need!(!client.has(&digest).await?, "a blob with an absent chunk is present");
    let Some(full) = cx.full().await? else {
        return noted("no full store was given, so a full store was not checked");
    };
    let answer = splice(&full, &full.absent(), vec![full.absent()]).await;
    refused(answer, &[Code::NotFound, Code::ResourceExhausted], "splicing in the full store")?;
    pass()
}

async fn present(cx: &Cx) -> Judged {
    if !splices(cx) {
        return vacuous(NO_SPLICE);
    }
    let client = &cx.client;
    let (chunks, content) = three(client).await?;
    let digest = client.digest(&content);
    client.write(&client.write_name(&digest), pieces(&content, PIECE)).await?;
    splice_again(client, &digest, chunks).await?;
    let (one, other) = content.split_at(4000);
    let chunks = vec![client.put(one).await?, client.put(other).await?];
    splice_again(client, &digest, chunks).await?;
    if d_split::splits(cx) {
        match d_split::split(client, &digest, Chunking::Unknown).await {
            Ok(answer) => {
                let mut whole = Vec::new();
                for chunk in &answer.chunk_digests {
                    whole.extend(client.read(chunk).await?);
                }
                need!(whole == content, "after splicing in two ways, the split is wrong");
            }
            Err(status) => need!(
                status.code() == Code::NotFound,
                "after splicing in two ways, a split is answered with {}",
                describe(&status)
            ),
        }
    }
    need!(client.read(&digest).await? == content, "a blob that was spliced again has changed");
    pass()
}

async fn splice_again(client: &Client, digest: &Digest, chunks: Vec<Digest>) -> Result<(), Stop> {
    match splice(client, digest, chunks).await {
        Ok(answer) => need!(answer.blob_digest.as_ref() == Some(digest), "the answer names another blob"),
        Err(status) => need!(
            status.code() == Code::AlreadyExists,
            "splicing a present blob is answered with {}",
            describe(&status)
        ),
    }
    Ok(())
}

async fn one_function(cx: &Cx) -> Judged {
    if !splices(cx) {
        return vacuous(NO_SPLICE);
    }
    let client = &cx.client;
    let (mut chunks, content) = three(client).await?;
    chunks.push(Digest { hash: "c".repeat(40), size_bytes: 10 });
    let whole = Digest { size_bytes: client.digest(&content).size_bytes + 10, ..client.absent() };
    let answer = splice(client, &whole, chunks).await;
    refused(answer, &[Code::InvalidArgument], "splicing with a chunk of another digest function")?;
    if d_split::splits(cx) {
        let content = d_split::large(cx);
        let digest = client.put(&content).await?;
        for chunk in d_split::split(client, &digest, Chunking::Unknown).await?.chunk_digests {
            let part = client.read(&chunk).await?;
            need!(client.digest(&part) == chunk, "a chunk has another digest function than its blob");
        }
    }
    pass()
}
