//! Checks 31–37 and 43–45: writing byte streams.

use std::time::Duration;

use futures::future::try_join_all;
use reapi::{
    bytestream::{ReadRequest, WriteRequest},
    execution::Digest,
};
use tonic::{Code, Request, metadata::MetadataValue};

use crate::{
    check::{Check, check},
    client::{Client, PIECE, pieces, zstd},
    context::{Cx, vacuous, within},
    names::{Noise, fresh, tail},
    stop::{Judged, Stop, describe, fail, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(31, B, Must, Store, "write names may end in anything", trailing).each_function(),
    check!(32, B, Must, Store, "compressed write names may end in anything", compressed_trailing)
        .each_function(),
    check!(33, B, May, Store, "upload ids may be reused, uploads of one blob may meet", reuse)
        .each_function(),
    check!(34, B, Must, Store, "a write that does not match its digest is refused and not visible", mismatch)
        .each_function(),
    check!(35, B, Must, Store, "a write with more bytes than its digest is refused", too_long)
        .each_function(),
    check!(36, B, Must, Store, "a write that is not finished stores nothing", unfinished).each_function(),
    check!(37, B, Must, Store, "write offsets must follow one another", offsets).each_function(),
    check!(43, B, Must, Store, "the resource name header must agree with the request", name_header)
        .each_function(),
    check!(44, B, Must, Store, "only the first message names the resource", later_names).each_function(),
    check!(45, B, Must, Store, "pieces may have any size; those read fit into a message", piece_sizes)
        .each_function(),
];

const INVALID: &[Code] = &[Code::InvalidArgument];

async fn trailing(cx: &Cx) -> Judged {
    let client = &cx.client;
    for end in ["", "/name.txt", "/a/b/c", "/blobs/1/2", "/ä ö?#%"] {
        let content = fresh(1200);
        let digest = client.digest(&content);
        let name = format!("{}{end}", client.write_name(&digest));
        let size = match client.write(&name, pieces(&content, 500)).await {
            Ok(size) => size,
            Err(status) => {
                fail!("a write to a name that ends in {end:?} is answered with {}", describe(&status))
            }
        };
        need!(size == 1200, "the committed size of 1200 bytes is {size}");
        need!(client.read(&digest).await? == content, "the written blob comes back changed");
    }
    pass()
}

async fn compressed_trailing(cx: &Cx) -> Judged {
    if !cx.zstd() {
        return vacuous("the server announces no compressor that this tool supports");
    }
    let client = &cx.client;
    for end in ["", "/name.txt", "/a/b/c"] {
        let content = fresh(1200);
        let digest = client.digest(&content);
        let name = format!("{}{end}", client.zstd_write_name(&digest));
        client.write(&name, pieces(&zstd(&content)?, 500)).await?;
        need!(client.read(&digest).await? == content, "the blob written compressed comes back changed");
    }
    pass()
}

async fn reuse(cx: &Cx) -> Judged {
    let client = &cx.client;
    let instance = if client.instance.is_empty() { String::new() } else { format!("{}/", client.instance) };
    let uuid = uuid::Uuid::new_v4();
    for _ in 0..3 {
        let content = fresh(4000);
        let digest = client.digest(&content);
        let name = format!("{instance}uploads/{uuid}/blobs/{}", tail(client.function, &digest));
        client.write(&name, pieces(&content, 1000)).await?;
        need!(client.read(&digest).await? == content, "a reused upload id mixes blobs");
    }
    let content = fresh(2 << 20);
    let digest = client.digest(&content);
    let (digest, packed) = (&digest, zstd(&content)?);
    let (packed, content, both) = (&packed, &content, cx.zstd());
    let uploads = (0..8).map(|number| async move {
        if both && number % 2 == 1 {
            client.write(&client.zstd_write_name(digest), pieces(packed, PIECE)).await
        } else {
            client.write(&client.write_name(digest), pieces(content, PIECE)).await
        }
    });
    if let Err(status) = try_join_all(uploads).await {
        fail!("one of eight parallel uploads of a blob is answered with {}", describe(&status));
    }
    need!(client.read(digest).await? == *content, "eight parallel uploads make a changed blob");
    pass()
}

async fn invisible(client: &Client, digest: &Digest, what: &str) -> Result<(), Stop> {
    need!(!client.has(digest).await?, "after {what}, the blob is reported as present");
    refused(client.read(digest).await, &[Code::NotFound], &format!("a read after {what}"))?;
    Ok(())
}

async fn mismatch(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(50_000));
    let other = client.digest(&fresh(50_000));
    let what = "a write of other content than the digest's";
    refused(client.write(&client.write_name(&other), pieces(&content, 20_000)).await, INVALID, what)?;
    invisible(client, &other, what).await?;
    let longer = Digest { size_bytes: 50_001, ..client.digest(&content) };
    let what = "a write that is shorter than its digest";
    refused(client.write(&client.write_name(&longer), pieces(&content, 20_000)).await, INVALID, what)?;
    invisible(client, &longer, what).await?;
    if cx.zstd() {
        let other = client.digest(&fresh(50_000));
        let what = "a compressed write of other content than the digest's";
        let answer = client.write(&client.zstd_write_name(&other), pieces(&zstd(&content)?, 20_000)).await;
        refused(answer, INVALID, what)?;
        invisible(client, &other, what).await?;
        let digest = client.digest(&content);
        let what = "a compressed write that is not zstd";
        let answer = client.write(&client.zstd_write_name(&digest), pieces(&content, 20_000)).await;
        refused(answer, INVALID, what)?;
        invisible(client, &digest, what).await?;
    }
    pass()
}

async fn too_long(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(8 << 20));
    let short = client.digest(content.get(..1000).unwrap_or_default());
    let what = "a write of 8 MiB to a digest of 1000 bytes";
    let name = client.write_name(&short);
    let answer = client.write(&name, pieces(&content, PIECE));
    refused(within(Duration::from_secs(20), what, answer).await?, INVALID, what)?;
    invisible(client, &short, what).await?;
    if cx.zstd() {
        let packed = zstd(&vec![0; 64 << 20])?;
        let what = "a compressed write of 64 MiB to a digest of 1000 bytes";
        let short = Digest { size_bytes: 1000, ..client.absent() };
        let name = client.zstd_write_name(&short);
        let answer = client.write(&name, pieces(&packed, PIECE));
        refused(within(Duration::from_secs(20), what, answer).await?, INVALID, what)?;
        invisible(client, &short, what).await?;
    }
    pass()
}

async fn unfinished(cx: &Cx) -> Judged {
    let client = &cx.client;
    for sent in [1_usize, 2] {
        let content = fresh(20_000);
        let digest = client.digest(&content);
        let mut requests = pieces(&content, 10_000);
        for request in &mut requests {
            request.finish_write = false;
        }
        requests.truncate(sent);
        let name = client.write_name(&digest);
        if let Ok(size) = client.write(&name, requests).await {
            let most = i64::try_from(sent * 10_000).unwrap_or_default();
            need!((0..=most).contains(&size), "{size} bytes of {most} are reported as committed");
            let complete = client.write_status(&name).await.is_ok_and(|status| status.complete);
            need!(!complete, "an unfinished write is reported as complete");
        }
        invisible(client, &digest, "an unfinished write").await?;
    }
    pass()
}

async fn offsets(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(30_000));
    let digest = client.digest(&content);
    let codes = [Code::InvalidArgument, Code::OutOfRange];
    for (index, wrong) in [(1, 10_001), (1, 9_999), (1, 0), (2, 10_000), (0, 5), (0, -1)] {
        let mut requests = pieces(&content, 10_000);
        if let Some(request) = requests.get_mut(index) {
            request.write_offset = wrong;
        }
        let what = format!("offset {wrong} after {} bytes", index * 10_000);
        refused(client.write(&client.write_name(&digest), requests).await, &codes, &what)?;
    }
    invisible(client, &digest, "writes with gaps").await?;
    if cx.zstd() {
        let packed = zstd(&content)?;
        let mut requests = pieces(&packed, 10_000);
        if let Some(request) = requests.get_mut(1) {
            request.write_offset += 1;
        }
        let answer = client.write(&client.zstd_write_name(&digest), requests).await;
        refused(answer, &codes, "a gap of compressed bytes")?;
        invisible(client, &digest, "writes with gaps").await?;
        client.write(&client.zstd_write_name(&digest), pieces(&packed, 7000)).await?;
        need!(client.read(&digest).await? == content, "compressed pieces come back changed");
    }
    pass()
}

const NAME_HEADER: &str = "build.bazel.remote.execution.v2.resource-name";

fn header(name: &str) -> Result<MetadataValue<tonic::metadata::Ascii>, Stop> {
    name.parse().map_err(|_| Stop::Fail(format!("the tool cannot send {name} as a header")))
}

async fn name_header(cx: &Cx) -> Judged {
    let client = &cx.client;
    let (content, other) = (fresh(500), fresh(500));
    let digest = client.digest(&content);
    let name = client.write_name(&digest);
    let write = |header_name: String, digest: Digest, content: Vec<u8>| async move {
        let mut requests = pieces(&content, PIECE);
        if let Some(first) = requests.first_mut() {
            first.resource_name = client.write_name(&digest);
        }
        let own = requests.first().map(|first| first.resource_name.clone()).unwrap_or_default();
        let mut request = Request::new(tokio_stream::iter(requests));
        let name = if header_name.is_empty() { own } else { header_name };
        request.metadata_mut().insert(NAME_HEADER, header(&name)?);
        Ok::<_, Stop>(client.byte_stream().write(request).await)
    };
    if let Err(status) = write(String::new(), digest.clone(), content.clone()).await? {
        fail!("a write with the resource name as a header is answered with {}", describe(&status));
    }
    let wrong = write(name.clone(), client.digest(&other), other).await?;
    refused(wrong, INVALID, "a write whose header names another resource")?;
    let read = |header_name: String| async move {
        let mut request =
            Request::new(ReadRequest { resource_name: client.read_name(&digest), ..ReadRequest::default() });
        let name = if header_name.is_empty() { client.read_name(&digest) } else { header_name };
        request.metadata_mut().insert(NAME_HEADER, header(&name)?);
        Ok::<_, Stop>(client.byte_stream().read(request).await)
    };
    if let Err(status) = read.clone()(String::new()).await? {
        fail!("a read with the resource name as a header is answered with {}", describe(&status));
    }
    refused(read(name).await?, INVALID, "a read whose header names another resource")?;
    pass()
}

async fn later_names(cx: &Cx) -> Judged {
    let client = &cx.client;
    for repeated in [false, true] {
        let content = fresh(3000);
        let digest = client.digest(&content);
        let name = client.write_name(&digest);
        let mut requests = pieces(&content, 1000);
        if repeated {
            for request in &mut requests {
                request.resource_name.clone_from(&name);
            }
        }
        client.write(&name, requests).await?;
        need!(client.has(&digest).await?, "the written blob is missing");
    }
    let content = fresh(3000);
    let digest = client.digest(&content);
    let mut requests = pieces(&content, 1000);
    if let Some(second) = requests.get_mut(1) {
        second.resource_name = client.write_name(&client.absent());
    }
    let answer = client.write(&client.write_name(&digest), requests).await;
    refused(answer, INVALID, "a second message with another name")?;
    invisible(client, &digest, "a write that changed its name").await?;
    pass()
}

async fn piece_sizes(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(9 << 20));
    let digest = client.digest(&content);
    let mut noise = Noise::new();
    let mut requests: Vec<WriteRequest> = Vec::new();
    let mut at = 0;
    while at < content.len() {
        let sizes = [0, 1, 3, 1000, 64 << 10, 1 << 20, 3 << 20];
        let size = sizes.get(noise.below(sizes.len())).copied().unwrap_or(1);
        let end = content.len().min(at + size);
        requests.push(WriteRequest {
            resource_name: String::new(),
            write_offset: i64::try_from(at).unwrap_or_default(),
            finish_write: false,
            data: content.get(at..end).unwrap_or_default().to_vec(),
        });
        at = end;
    }
    requests.push(WriteRequest {
        write_offset: i64::try_from(at).unwrap_or_default(),
        finish_write: true,
        ..WriteRequest::default()
    });
    client.write(&client.write_name(&digest), requests).await?;
    let pieces = client.read_pieces(&client.read_name(&digest), 0, 0).await?;
    let largest = pieces.iter().map(Vec::len).max().unwrap_or_default();
    need!(largest + 100 < 4 << 20, "a read returns {largest} bytes in one message");
    need!(pieces.concat() == content, "the blob written in pieces comes back changed");
    pass()
}
