//! Checks 7–11: compressors and sizes.

use reapi::execution::{
    Digest, SpliceBlobRequest, SplitBlobRequest, batch_update_blobs_request::Request, compressor::Value,
};
use tonic::Code;

use crate::{
    check::{Check, check},
    client::{PIECE, pieces, unzstd, zstd},
    context::{Cx, noted, vacuous},
    names::fresh,
    stop::{Judged, has_code, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(7, A, Must, Store, "IDENTITY is accepted everywhere", identity).each_function(),
    check!(8, A, Must, Store, "announced compressors work both ways for every blob", compressors)
        .each_function(),
    check!(9, A, Must, Store, "a batch above the limit is refused as a whole", batch_limit),
    check!(10, A, Should, Store, "an upload above the blob limit is refused", blob_limit).each_function(),
    check!(11, A, Must, Store, "splitting and splicing are implemented exactly if announced", chunking),
];

async fn identity(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(5000));
    let digest = client.digest(&content);
    let answer = client.batch_update(vec![client.update(&content)]).await?;
    has_code(answer.responses.first().and_then(|one| one.status.as_ref()), &[Code::Ok], "a plain upload")?;
    let answer = client.batch_read(vec![digest.clone()], vec![Value::Identity.into()]).await?;
    need!(
        answer.responses.first().is_some_and(|one| one.data == content && one.compressor == 0),
        "a batch read that accepts IDENTITY did not answer with the plain blob"
    );
    need!(client.read(&digest).await? == content, "a plain read differs from the written blob");
    let other = fresh(5000);
    let digest = client.digest(&other);
    client.write(&client.write_name(&digest), pieces(&other, PIECE)).await?;
    need!(client.read(&digest).await? == other, "a plain read differs from the written blob");
    pass()
}

async fn compressors(cx: &Cx) -> Judged {
    let announced = cx.cache().map(|cache| cache.supported_compressors.clone()).unwrap_or_default();
    if !cx.zstd() {
        return vacuous("the server announces no compressor that this tool supports");
    }
    let client = &cx.client;
    for size in [1, 3000, 700_000] {
        let content = [fresh(size / 2 + 1), vec![b'x'; size / 2]].concat();
        let digest = client.digest(&content);
        client.write(&client.zstd_write_name(&digest), pieces(&zstd(&content)?, PIECE)).await?;
        need!(client.read(&digest).await? == content, "a blob written as zstd is not readable");
        let back = unzstd(&client.read_at(&client.zstd_read_name(&digest), 0, 0).await?)?;
        need!(back == content, "a blob written and read as zstd came back changed");
        let plain = [content, fresh(1)].concat();
        let digest = client.put(&plain).await?;
        let back = unzstd(&client.read_at(&client.zstd_read_name(&digest), 0, 0).await?)?;
        need!(back == plain, "a blob written plain and read as zstd came back changed");
    }
    let others = announced.iter().filter(|one| **one != i32::from(Value::Zstd) && **one != 0).count();
    noted(if others > 0 { "only zstd was tried" } else { "" })
}

async fn batch_limit(cx: &Cx) -> Judged {
    let Some(limit) = cx.batch_max() else { return vacuous("the server announces no limit") };
    let client = &cx.client;
    let digests: Vec<Digest> = (0..2)
        .map(|_| Digest { size_bytes: i64::try_from(limit / 2 + 1).unwrap_or(i64::MAX), ..client.absent() })
        .collect();
    let answer = client.batch_read(digests, Vec::new()).await;
    refused(answer, &[Code::InvalidArgument], "a batch read above max_batch_total_size_bytes")?;
    if limit > 48 << 20 {
        return noted("the limit is too high to try an upload above it");
    }
    let (one, other) = (fresh(limit / 2 + 1), fresh(limit / 2 + 1));
    let requests = vec![client.update(&one), client.update(&other)];
    let answer = client.batch_update(requests).await;
    refused(answer, &[Code::InvalidArgument], "a batch upload above max_batch_total_size_bytes")?;
    let missing = client.missing(vec![client.digest(&one), client.digest(&other)]).await?;
    need!(missing.len() == 2, "a blob of a refused batch was stored");
    let under = fresh(limit / 2);
    let answer = client.batch_update(vec![client.update(&under)]).await?;
    has_code(answer.responses.first().and_then(|one| one.status.as_ref()), &[Code::Ok], "half the limit")?;
    pass()
}

async fn blob_limit(cx: &Cx) -> Judged {
    let client = &cx.client;
    let Some(limit) = cx.blob_max() else {
        let content = fresh(24 << 20);
        let digest = client.put(&content).await?;
        need!(client.has(&digest).await?, "no limit is announced, and a blob of 24 MiB is not stored");
        return noted("no limit is announced, and 24 MiB were accepted");
    };
    let over = Digest { size_bytes: limit.saturating_add(1), ..client.absent() };
    let mut requests = pieces(&fresh(1000), PIECE);
    for request in &mut requests {
        request.finish_write = false;
    }
    let answer = client.write(&client.write_name(&over), requests).await;
    refused(answer, &[Code::InvalidArgument], "a write above max_cas_blob_size_bytes")?;
    let request = Request { digest: Some(over), data: fresh(100), compressor: 0 };
    match client.batch_update(vec![request]).await {
        Ok(answer) => {
            let status = answer.responses.first().and_then(|one| one.status.as_ref());
            has_code(status, &[Code::InvalidArgument], "a batch upload above max_cas_blob_size_bytes")?;
        }
        Err(status) => {
            let answer: Result<(), _> = Err(status);
            refused(answer, &[Code::InvalidArgument], "a batch upload above max_cas_blob_size_bytes")?;
        }
    }
    pass()
}

async fn chunking(cx: &Cx) -> Judged {
    let (client, cache) = (&cx.client, cx.cache());
    let later = cx
        .capabilities
        .high_api_version
        .as_ref()
        .is_some_and(|version| (version.major, version.minor) >= (2, 13));
    let split = SplitBlobRequest {
        instance_name: client.instance.clone(),
        blob_digest: Some(client.absent()),
        digest_function: client.function_value(),
        chunking_function: 0,
    };
    let split = client.cas().split_blob(split).await.err().map(|status| status.code());
    let splice = SpliceBlobRequest {
        instance_name: client.instance.clone(),
        blob_digest: Some(client.absent()),
        chunk_digests: vec![client.absent()],
        digest_function: client.function_value(),
        chunking_function: 0,
    };
    let splice = client.cas().splice_blob(splice).await.err().map(|status| status.code());
    let both = [
        ("SplitBlob", split, cache.is_some_and(|cache| cache.split_blob_support)),
        ("SpliceBlob", splice, cache.is_some_and(|cache| cache.splice_blob_support)),
    ];
    for (name, code, announced) in both {
        let there = code != Some(Code::Unimplemented);
        // From version 2.13 on, other calls use the same flags.
        need!(!announced || there || later, "{name} is announced and not implemented");
        need!(announced || !there, "{name} is implemented and not announced");
    }
    pass()
}
