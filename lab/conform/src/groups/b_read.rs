//! Checks 22–30: reading byte streams.

use model::DigestFunction;
use reapi::execution::{Digest, compressor::Value};
use tonic::Code;

use crate::{
    check::{Check, check},
    client::{Client, unzstd},
    context::{Cx, vacuous},
    names::{Noise, compressed_read_name, fresh, read_name, tail},
    stop::{Judged, Stop, describe, fail, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(22, B, Must, Store, "reads name the digest function exactly where they must", names)
        .each_function(),
    check!(23, B, Must, Store, "compressed reads take announced compressors only", compressed_names)
        .each_function(),
    check!(24, B, Must, Store, "a read of an absent blob is NOT_FOUND", absent).each_function(),
    check!(25, B, Must, Store, "malformed resource names are INVALID_ARGUMENT", malformed).each_function(),
    check!(26, B, Must, Store, "read_offset is honoured", offset).each_function(),
    check!(27, B, Must, Store, "read_limit is honoured", limit).each_function(),
    check!(28, B, Must, Store, "a compressed read with a limit is refused", compressed_limit).each_function(),
    check!(29, B, Must, Store, "a compressed read counts its offset in plain bytes", compressed_offset)
        .each_function(),
    check!(30, B, May, Store, "a compressed read of nothing is a frame or nothing", compressed_nothing)
        .each_function(),
];

async fn names(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(3000));
    let digest = client.put(&content).await?;
    let name = client.read_name(&digest);
    need!(client.read_at(&name, 0, 0).await? == content, "{name} returns different bytes");
    if client.function == DigestFunction::Blake3 {
        let name = read_name(&client.instance, DigestFunction::Sha256, &digest);
        let answer = client.read_at(&name, 0, 0).await;
        refused(
            answer,
            &[Code::NotFound, Code::InvalidArgument],
            "a BLAKE3 blob read without the segment blake3",
        )?;
    } else {
        let name = read_name(&client.instance, DigestFunction::Blake3, &digest);
        let answer = client.read_at(&name, 0, 0).await;
        refused(
            answer,
            &[Code::NotFound, Code::InvalidArgument],
            "a SHA-256 blob read with the segment blake3",
        )?;
    }
    pass()
}

async fn compressed_names(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(3000));
    let digest = client.put(&content).await?;
    let announced = cx.cache().map(|cache| cache.supported_compressors.clone()).unwrap_or_default();
    let all = [("zstd", Value::Zstd), ("deflate", Value::Deflate), ("brotli", Value::Brotli)];
    let unlisted = all
        .into_iter()
        .filter(|(_, value)| !announced.contains(&i32::from(*value)))
        .map(|(name, _)| name)
        .chain(["identity", "nonsense", "ZSTD"]);
    for compressor in unlisted {
        let name = compressed_read_name(&client.instance, compressor, client.function, &digest);
        let what = format!("a compressed read with {compressor:?}");
        refused(client.read_at(&name, 0, 0).await, &[Code::InvalidArgument], &what)?;
    }
    if cx.zstd() {
        let sent = client.read_at(&client.zstd_read_name(&digest), 0, 0).await?;
        need!(unzstd(&sent)? == content, "a zstd read returns different bytes");
    }
    pass()
}

async fn absent(cx: &Cx) -> Judged {
    let client = &cx.client;
    let digest = client.absent();
    refused(client.read(&digest).await, &[Code::NotFound], "a read of an absent blob")?;
    let answer = client.read_at(&client.read_name(&digest), 5, 10).await;
    refused(answer, &[Code::NotFound], "a read within an absent blob")?;
    if cx.zstd() {
        let answer = client.read_at(&client.zstd_read_name(&digest), 0, 0).await;
        refused(answer, &[Code::NotFound], "a compressed read of an absent blob")?;
    }
    pass()
}

/// Returns names that no grammar of the API allows.
fn broken_names(client: &Client, good: &Digest, noise: &mut Noise) -> Vec<String> {
    let instance = if client.instance.is_empty() { String::new() } else { format!("{}/", client.instance) };
    let (hash, size) = (&good.hash, good.size_bytes);
    let function = tail(client.function, good);
    let function = function.strip_suffix(&format!("{hash}/{size}")).unwrap_or_default();
    let mut names = vec![
        String::new(),
        "/".to_owned(),
        "blobs".to_owned(),
        format!("{instance}blobs"),
        format!("{instance}blobs/"),
        format!("{instance}blobs/{function}{hash}"),
        format!("{instance}blobs/{function}{hash}/"),
        format!("{instance}blobs/{function}{size}/{hash}"),
        format!("{instance}blobs/{function}/{hash}/{size}"),
        format!("{instance}blob/{function}{hash}/{size}"),
        format!("{instance}blobs/sha257/{hash}/{size}"),
        format!("{instance}compressed-blobs/{function}{hash}/{size}"),
        format!("{instance}compressed-blobs/zstd/{function}{hash}"),
        format!("{instance}compressed-blobs//{function}{hash}/{size}"),
        format!("{instance}uploads/{function}{hash}/{size}"),
    ];
    let sizes =
        ["-1", "x", "1x", "0x10", "1.5", "1e3", " 5", "5 ", "99999999999999999999999", "9223372036854775808"];
    names.extend(sizes.iter().map(|size| format!("{instance}blobs/{function}{hash}/{size}")));
    for _ in 0..120 {
        // A hash with one invalid digit, or too short, or too long.
        let at = noise.below(hash.len());
        let (before, after) = (hash.get(..at).unwrap_or_default(), hash.get(at + 1..).unwrap_or_default());
        let wrong = ["G", "g", "z", "A", "F", ".", " ", "%2F", "é", "\u{0}", "", "00"];
        let digit = wrong.get(noise.below(wrong.len())).copied().unwrap_or_default();
        names.push(format!("{instance}blobs/{function}{before}{digit}{after}/{size}"));
    }
    for _ in 0..120 {
        // Random segments without a keyword.
        let alphabet: Vec<char> = "abcdefghijklmnopqrstuvwxyz0123456789-_.~ ".chars().collect();
        let segments: Vec<String> = (0..=noise.below(6))
            .map(|_| (0..noise.below(12)).filter_map(|_| alphabet.get(noise.below(alphabet.len()))).collect())
            .collect();
        names.push(segments.join("/"));
    }
    names
}

async fn malformed(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(100));
    let good = client.put(&content).await?;
    let mut noise = Noise::new();
    let names = broken_names(client, &good, &mut noise);
    for name in &names {
        refused_name(client.read_at(name, 0, 0).await, "Read", name)?;
    }
    let uuid = "2c1a7d1e-44f2-4b6e-9d47-1c1f4f0e7a10";
    for name in names.iter().filter(|name| name.contains("blobs/")) {
        let name = name.replacen("compressed-blobs/", &format!("uploads/{uuid}/compressed-blobs/"), 1);
        let name = if name.contains("uploads/") {
            name
        } else {
            name.replacen("blobs/", &format!("uploads/{uuid}/blobs/"), 1)
        };
        let answer = client.write(&name, crate::client::pieces(&content, 100)).await;
        refused_name(answer, "Write", &name)?;
        refused_name(client.write_status(&name).await, "QueryWriteStatus", &name)?;
    }
    need!(client.read(&good).await? == content, "after reads of malformed names, a good read fails");
    Ok(format!("{} names", names.len()))
}

fn refused_name<T>(answer: Result<T, tonic::Status>, call: &str, name: &str) -> Result<(), Stop> {
    match answer {
        Ok(_) => fail!("{call} accepts the name {name:?}"),
        Err(status) if status.code() == Code::InvalidArgument => Ok(()),
        Err(status) => fail!("{call} answers the name {name:?} with {}", describe(&status)),
    }
}

async fn offset(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(300_000));
    let digest = client.put(&content).await?;
    let name = client.read_name(&digest);
    for at in [0_usize, 1, 77, 65_536, 299_999, 300_000] {
        let read = client.read_at(&name, i64::try_from(at).unwrap_or_default(), 0).await?;
        need!(
            content.get(at..) == Some(&*read),
            "a read from offset {at} returns {} different bytes",
            read.len()
        );
    }
    refused(client.read_at(&name, 300_001, 0).await, &[Code::OutOfRange], "a read from beyond the end")?;
    let codes = [Code::OutOfRange, Code::InvalidArgument];
    refused(client.read_at(&name, -1, 0).await, &codes, "a read from a negative offset")?;
    pass()
}

async fn limit(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(300_000));
    let digest = client.put(&content).await?;
    let name = client.read_name(&digest);
    for (at, limit) in
        [(0_usize, 1_usize), (0, 300_000), (100, 70_000), (299_000, 5000), (5, 0), (300_000, 7)]
    {
        let answer = client
            .read_at(&name, i64::try_from(at).unwrap_or_default(), i64::try_from(limit).unwrap_or_default())
            .await;
        let read = match answer {
            Ok(read) => read,
            Err(status) => fail!("a read of {limit} from {at} is answered with {}", describe(&status)),
        };
        let end = if limit == 0 { content.len() } else { content.len().min(at + limit) };
        need!(
            content.get(at..end) == Some(&*read),
            "a read of {limit} from {at} returns {} bytes, expected {}",
            read.len(),
            end - at
        );
    }
    refused(client.read_at(&name, 0, -1).await, &[Code::InvalidArgument], "a negative limit")?;
    pass()
}

async fn compressed_limit(cx: &Cx) -> Judged {
    if !cx.zstd() {
        return vacuous("the server announces no compressor that this tool supports");
    }
    let client = &cx.client;
    let name = client.zstd_read_name(&client.put(&fresh(5000)).await?);
    refused(client.read_at(&name, 0, 100).await, &[Code::InvalidArgument], "a compressed read with a limit")?;
    refused(
        client.read_at(&name, 0, -1).await,
        &[Code::InvalidArgument],
        "a compressed read with a negative limit",
    )?;
    pass()
}

async fn compressed_offset(cx: &Cx) -> Judged {
    if !cx.zstd() {
        return vacuous("the server announces no compressor that this tool supports");
    }
    let (client, content) = (&cx.client, [fresh(200_000), vec![7; 100_000]].concat());
    let digest = client.put(&content).await?;
    let name = client.zstd_read_name(&digest);
    for at in [1_usize, 1000, 150_001, 299_999] {
        let sent = client.read_at(&name, i64::try_from(at).unwrap_or_default(), 0).await?;
        let read = unzstd(&sent)?;
        need!(
            content.get(at..) == Some(&*read),
            "a compressed read from offset {at} returns {} bytes, expected {}",
            read.len(),
            content.len() - at
        );
    }
    let codes = [Code::OutOfRange, Code::InvalidArgument];
    refused(client.read_at(&name, 300_001, 0).await, &codes, "a compressed read from beyond the end")?;
    refused(client.read_at(&name, -1, 0).await, &codes, "a compressed read from a negative offset")?;
    pass()
}

async fn compressed_nothing(cx: &Cx) -> Judged {
    if !cx.zstd() {
        return vacuous("the server announces no compressor that this tool supports");
    }
    let client = &cx.client;
    let digest = client.put(&fresh(5000)).await?;
    let rest = client.read_at(&client.zstd_read_name(&digest), 5000, 0).await?;
    need!(unzstd(&rest)?.is_empty(), "a compressed read from the end returns bytes");
    let empty = client.read_at(&client.zstd_read_name(&client.digest(b"")), 0, 0).await?;
    need!(unzstd(&empty)?.is_empty(), "a compressed read of the empty blob returns bytes");
    pass()
}
