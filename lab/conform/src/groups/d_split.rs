//! Checks 62–66, 71–73: splitting blobs.

use std::time::Duration;

use fastcdc::v2020::{FastCDC, Normalization};
use reapi::execution::{Digest, SplitBlobRequest, SplitBlobResponse, chunking_function::Value as Chunking};
use tonic::{Code, Status};

use crate::{
    check::{Check, check},
    client::Client,
    context::{Cx, noted, vacuous},
    names::fresh,
    stop::{Judged, Stop, describe, fail, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(62, D, Must, Store, "the chunks of a blob are present and make up the blob", chunks)
        .each_function(),
    check!(63, D, Must, Store, "splitting an absent blob is NOT_FOUND", absent).each_function(),
    check!(64, D, Must, Store, "splitting without space left fails only with RESOURCE_EXHAUSTED", no_space)
        .each_function(),
    check!(65, D, Should, Store, "a blob and its chunks are kept after the split", lives).each_function(),
    check!(66, D, Must, Store, "UNKNOWN chunks somehow, and the answer says how", unknown).each_function(),
    check!(71, D, Must, Store, "FastCDC 2020 cuts as advertised", fast_cdc).each_function(),
    check!(72, D, Must, Store, "RepMaxCDC cuts as advertised", rep_max_cdc).each_function(),
    check!(73, D, Should, Store, "small blobs are not chunked", small).each_function(),
];

/// Returns whether the server announces splitting.
pub(crate) fn splits(cx: &Cx) -> bool {
    cx.cache().is_some_and(|cache| cache.split_blob_support)
}

pub(crate) const NO_SPLIT: &str = "split_blob_support is not announced";

pub(crate) async fn split(
    client: &Client,
    digest: &Digest,
    chunking: Chunking,
) -> Result<SplitBlobResponse, Status> {
    let request = SplitBlobRequest {
        instance_name: client.instance.clone(),
        blob_digest: Some(digest.clone()),
        digest_function: client.function_value(),
        chunking_function: chunking.into(),
    };
    Ok(client.cas().split_blob(request).await?.into_inner())
}

/// Returns a blob that is large enough to be split with the server's parameters.
pub(crate) fn large(cx: &Cx) -> Vec<u8> {
    let average = cx
        .cache()
        .and_then(|cache| cache.fast_cdc_2020_params)
        .and_then(|params| usize::try_from(params.avg_chunk_size_bytes).ok())
        .unwrap_or(512 << 10);
    fresh((average * 12).clamp(64 << 10, 24 << 20))
}

async fn chunks(cx: &Cx) -> Judged {
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    let (client, content) = (&cx.client, large(cx));
    let digest = client.put(&content).await?;
    let answer = split(client, &digest, Chunking::Unknown).await?;
    need!(client.missing(answer.chunk_digests.clone()).await?.is_empty(), "a chunk is missing");
    let mut whole = Vec::new();
    for chunk in &answer.chunk_digests {
        let part = client.read(chunk).await?;
        need!(client.digest(&part) == *chunk, "a chunk does not have its digest");
        whole.extend(part);
    }
    need!(whole == content, "the {} chunks do not make up the blob", answer.chunk_digests.len());
    pass()
}

async fn absent(cx: &Cx) -> Judged {
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    let client = &cx.client;
    let answer = split(client, &client.absent(), Chunking::Unknown).await;
    refused(answer, &[Code::NotFound], "splitting an absent blob")?;
    pass()
}

async fn no_space(cx: &Cx) -> Judged {
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    let (client, content) = (&cx.client, large(cx));
    let digest = client.put(&content).await?;
    if let Err(status) = split(client, &digest, Chunking::Unknown).await {
        need!(
            status.code() == Code::ResourceExhausted,
            "splitting a stored blob is answered with {}",
            describe(&status)
        );
    }
    let Some(full) = cx.full().await? else {
        return noted("no full store was given, so a full store was not checked");
    };
    let answer = split(&full, &full.digest(b""), Chunking::Unknown).await;
    if let Err(status) = answer {
        need!(
            matches!(status.code(), Code::ResourceExhausted | Code::NotFound),
            "splitting in the full store is answered with {}",
            describe(&status)
        );
    }
    pass()
}

async fn lives(cx: &Cx) -> Judged {
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    let (client, content) = (&cx.client, large(cx));
    let digest = client.put(&content).await?;
    let mut all = split(client, &digest, Chunking::Unknown).await?.chunk_digests;
    all.push(digest);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let missing = client.missing(all.clone()).await?;
        need!(missing.is_empty(), "{} of a blob and its chunks are gone after the split", missing.len());
    }
    Ok("over five seconds".into())
}

async fn unknown(cx: &Cx) -> Judged {
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    let (client, content) = (&cx.client, large(cx));
    let digest = client.put(&content).await?;
    for asked in [Chunking::Unknown, Chunking::FastCdc2020] {
        let answer = split(client, &digest, asked).await?;
        need!(
            answer.chunking_function() != Chunking::Unknown,
            "the answer to a split with {} does not name the chunking function",
            asked.as_str_name()
        );
    }
    pass()
}

async fn fast_cdc(cx: &Cx) -> Judged {
    let Some(params) = cx.cache().and_then(|cache| cache.fast_cdc_2020_params) else {
        return vacuous("FastCDC 2020 is not announced");
    };
    let average = usize::try_from(params.avg_chunk_size_bytes).unwrap_or_default();
    need!((1 << 10..=8 << 20).contains(&average), "an average of {average} bytes is not allowed");
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    if average > fastcdc::v2020::AVERAGE_MAX {
        return noted("the average chunk size is above the limit of this tool");
    }
    let (client, content) = (&cx.client, large(cx));
    let digest = client.put(&content).await?;
    let answer = split(client, &digest, Chunking::FastCdc2020).await?;
    need!(
        answer.chunking_function() == Chunking::FastCdc2020,
        "the server announces FastCDC 2020, but used {} when asked for it",
        answer.chunking_function().as_str_name()
    );
    let cut = FastCDC::with_level_and_seed(
        &content,
        average / 4,
        average,
        average * 4,
        Normalization::Level2,
        params.seed.into(),
    );
    let expected: Vec<Digest> = cut
        .map(|chunk| {
            let part = content.get(chunk.offset..chunk.offset + chunk.length).unwrap_or_default();
            client.digest(part)
        })
        .collect();
    let same = answer.chunk_digests.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    need!(
        answer.chunk_digests == expected,
        "the server cut {} chunks, expected {}; the first {same} agree",
        answer.chunk_digests.len(),
        expected.len()
    );
    pass()
}

async fn rep_max_cdc(cx: &Cx) -> Judged {
    let Some(params) = cx.cache().and_then(|cache| cache.rep_max_cdc_params) else {
        return vacuous("RepMaxCDC is not announced");
    };
    let least = params.min_chunk_size_bytes;
    need!(least >= 64, "a minimum chunk of {least} bytes is not allowed");
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    let client = &cx.client;
    let content =
        fresh(usize::try_from(least.saturating_mul(20)).unwrap_or_default().clamp(64 << 10, 24 << 20));
    let digest = client.put(&content).await?;
    let answer = split(client, &digest, Chunking::RepMaxCdc).await?;
    if answer.chunking_function() == Chunking::RepMaxCdc {
        for chunk in &answer.chunk_digests {
            let size = u64::try_from(chunk.size_bytes).unwrap_or_default();
            need!((least..2 * least).contains(&size), "a chunk has {size} bytes");
        }
    }
    pass()
}

async fn small(cx: &Cx) -> Judged {
    if !splits(cx) {
        return vacuous(NO_SPLIT);
    }
    let average = cx.cache().and_then(|cache| cache.fast_cdc_2020_params);
    let Some(average) = average.and_then(|params| usize::try_from(params.avg_chunk_size_bytes).ok()) else {
        return vacuous("FastCDC 2020 is not announced");
    };
    let client = &cx.client;
    let digest = client.put(&fresh(average * 4 - 1)).await?;
    whole(client, &digest).await?;
    pass()
}

/// Checks that a blob is its own only chunk, or has no split.
async fn whole(client: &Client, digest: &Digest) -> Result<(), Stop> {
    match split(client, digest, Chunking::FastCdc2020).await {
        Ok(answer) => need!(
            answer.chunk_digests == [digest.clone()],
            "a blob below four times the average is cut into {} chunks",
            answer.chunk_digests.len()
        ),
        Err(status) if status.code() == Code::NotFound => {}
        Err(status) => fail!("splitting a small blob is answered with {}", describe(&status)),
    }
    Ok(())
}
