//! Checks 38–42: writes of present blobs, and resumed uploads.

use tonic::Code;

use crate::{
    check::{Check, check},
    client::{PIECE, pieces, zstd},
    context::{Cx, vacuous},
    names::fresh,
    stop::{Judged, describe, fail, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(38, B, Must, Store, "a write of a present blob commits its full size", present).each_function(),
    check!(39, B, Must, Store, "a compressed write of a present blob returns -1", compressed_present)
        .each_function(),
    check!(
        40,
        B,
        Practical,
        Store,
        "a new compressed write returns the number of bytes it received",
        compressed_size
    )
    .each_function(),
    check!(41, B, Practical, Store, "an early answer to a write is complete", early_answer).each_function(),
    check!(42, B, May, Store, "QueryWriteStatus reports where to resume", resume).each_function(),
];

async fn present(cx: &Cx) -> Judged {
    let client = &cx.client;
    for size in [1, 1000, 3 << 20] {
        let content = fresh(size);
        let digest = client.put(&content).await?;
        let committed = client.write(&client.write_name(&digest), pieces(&content, PIECE)).await?;
        need!(committed == digest.size_bytes, "the committed size of {size} present bytes is {committed}");
    }
    pass()
}

async fn compressed_present(cx: &Cx) -> Judged {
    if !cx.zstd() {
        return vacuous("the server announces no compressor that this tool supports");
    }
    let client = &cx.client;
    for size in [1000, 3 << 20] {
        let content = fresh(size);
        let digest = client.put(&content).await?;
        let requests = pieces(&zstd(&content)?, PIECE);
        let committed = client.write(&client.zstd_write_name(&digest), requests).await?;
        need!(committed == -1, "the committed size of a present blob, compressed, is {committed}");
    }
    pass()
}

async fn compressed_size(cx: &Cx) -> Judged {
    if !cx.zstd() {
        return vacuous("the server announces no compressor that this tool supports");
    }
    let (client, content) = (&cx.client, [fresh(100_000), vec![1; 400_000]].concat());
    let digest = client.digest(&content);
    let packed = zstd(&content)?;
    let committed = client.write(&client.zstd_write_name(&digest), pieces(&packed, PIECE)).await?;
    let sent = i64::try_from(packed.len()).unwrap_or_default();
    need!(
        committed == sent || committed == digest.size_bytes,
        "the committed size of {sent} compressed bytes of {} is {committed}",
        digest.size_bytes
    );
    pass()
}

async fn early_answer(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(16 << 20));
    let digest = client.put(&content).await?;
    let packed = if cx.zstd() { zstd(&content)? } else { Vec::new() };
    for round in 0..5 {
        let answer = if cx.zstd() && round % 2 == 1 {
            client.write(&client.zstd_write_name(&digest), pieces(&packed, PIECE)).await
        } else {
            client.write(&client.write_name(&digest), pieces(&content, PIECE)).await
        };
        if let Err(status) = answer {
            fail!("a write of a present blob of 16 MiB is answered with {}", describe(&status));
        }
    }
    pass()
}

async fn resume(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(1 << 20));
    let digest = client.digest(&content);
    let name = client.write_name(&digest);
    match client.write_status(&name).await {
        Ok(status) => need!(
            status.committed_size == 0 && !status.complete,
            "an upload that never began has {} bytes",
            status.committed_size
        ),
        Err(status) => need!(
            status.code() == Code::NotFound,
            "QueryWriteStatus of an upload that never began is answered with {}",
            describe(&status)
        ),
    }
    let mut half = pieces(&content, 512 << 10);
    half.truncate(1);
    // The server may answer with an error or with a partial success.
    let _ = client.write(&name, half).await;
    let committed = match client.write_status(&name).await {
        Ok(status) => {
            need!(!status.complete, "half an upload is reported as complete");
            status.committed_size
        }
        Err(status) if status.code() == Code::NotFound => 0,
        Err(status) => fail!("QueryWriteStatus of half an upload is answered with {}", describe(&status)),
    };
    need!(
        (0..=512 << 10).contains(&committed),
        "{committed} bytes are committed of an upload interrupted at 524288"
    );
    let from = usize::try_from(committed).unwrap_or_default();
    let mut rest = pieces(content.get(from..).unwrap_or_default(), PIECE);
    for request in &mut rest {
        request.write_offset += committed;
    }
    let size = client.write(&name, rest).await?;
    need!(size == digest.size_bytes, "a resumed upload commits {size} bytes");
    need!(client.read(&digest).await? == content, "a resumed upload comes back changed");
    match client.write_status(&name).await {
        Ok(status) => need!(
            status.complete && status.committed_size == digest.size_bytes,
            "a finished upload has {} bytes and complete = {}",
            status.committed_size,
            status.complete
        ),
        Err(status) => fail!("QueryWriteStatus of a finished upload is answered with {}", describe(&status)),
    }
    pass()
}
