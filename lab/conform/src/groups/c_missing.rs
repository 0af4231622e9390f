//! Checks 46–49: missing blobs.

use std::{collections::BTreeSet, time::Duration};

use reapi::execution::Digest;

use crate::{
    check::{Check, Phase, check},
    context::{Cx, within},
    names::fresh,
    stop::{Judged, need, pass, skip},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(46, C, Must, Store, "FindMissingBlobs names exactly the absent blobs", exact).each_function(),
    check!(47, C, Should, Store, "blobs that were found present are kept", lives).at(Phase::Last),
    check!(48, C, Must, Store, "blobs that are found present can be read", readable).each_function(),
    check!(49, C, Practical, Store, "50,000 digests are answered within 20 s", many).each_function(),
];

fn set(digests: &[Digest]) -> BTreeSet<(String, i64)> {
    digests.iter().map(|digest| (digest.hash.clone(), digest.size_bytes)).collect()
}

async fn exact(cx: &Cx) -> Judged {
    let client = &cx.client;
    let present: Vec<Vec<u8>> = (0..40).map(|number| fresh(100 + number)).collect();
    client.put_all(&present).await?;
    let present: Vec<Digest> = present.iter().map(|content| client.digest(content)).collect();
    let absent: Vec<Digest> = (0..40).map(|_| client.absent()).collect();
    let mut asked: Vec<Digest> =
        present.iter().zip(&absent).flat_map(|(a, b)| [a.clone(), b.clone()]).collect();
    let twice = asked.clone();
    asked.extend(twice);
    let missing = client.missing(asked).await?;
    need!(
        set(&missing) == set(&absent),
        "{} of 40 absent blobs are named, or present ones",
        set(&missing).len()
    );
    need!(client.missing(Vec::new()).await?.is_empty(), "a call without digests returns some");
    pass()
}

async fn lives(cx: &Cx) -> Judged {
    if cx.early.blobs.is_empty() {
        skip!("no blob could be uploaded at the start");
    }
    let client = &cx.client;
    let missing = client.missing(cx.early.blobs.clone()).await?;
    need!(missing.is_empty(), "{} blobs that were found present at the start are gone", missing.len());
    for digest in &cx.early.blobs {
        let content = client.read(digest).await?;
        need!(client.digest(&content) == *digest, "a blob that was found present at the start has changed");
    }
    Ok(format!("over the {} s of this run", cx.begun.elapsed().as_secs()))
}

async fn readable(cx: &Cx) -> Judged {
    let client = &cx.client;
    // Any smaller blob may have been uploaded by another statement or client.
    for size in [16, 2000, 70_000, 1_200_000] {
        let content = fresh(size);
        let digest = client.digest(&content);
        need!(!client.has(&digest).await?, "a blob is present before it was uploaded");
        client.put(&content).await?;
        need!(client.has(&digest).await?, "a blob is missing after its upload");
        need!(client.read(&digest).await? == content, "a present blob comes back changed");
    }
    pass()
}

async fn many(cx: &Cx) -> Judged {
    let client = &cx.client;
    for count in [10_000, 50_000] {
        let mut digests: Vec<Digest> = (0..count).map(|_| client.absent()).collect();
        let content = fresh(50);
        digests.push(client.put(&content).await?);
        let what = format!("FindMissingBlobs of {count} digests");
        let missing = within(Duration::from_secs(20), &what, client.missing(digests)).await??;
        need!(missing.len() == count, "{} of {count} absent blobs are named", missing.len());
    }
    pass()
}
