//! Checks 50–56: batch calls.

use reapi::execution::{Digest, batch_update_blobs_request::Request, compressor::Value};
use tonic::Code;

use crate::{
    check::{Check, check},
    client::{PIECE, pieces, unzstd, zstd},
    context::{Cx, noted, vacuous},
    names::fresh,
    stop::{Judged, fail, has_code, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(50, C, Must, Store, "a batch upload answers for each blob", each_upload).each_function(),
    check!(51, C, Must, Store, "a wrong blob of a batch is refused alone", wrong_upload).each_function(),
    check!(52, C, Must, Store, "compressors of batch uploads are honoured", compressed_upload)
        .each_function(),
    check!(53, C, Must, Store, "a batch read answers for each digest", each_read).each_function(),
    check!(54, C, Must, Store, "a batch read compresses only as accepted", compressed_read).each_function(),
    check!(55, C, Must, Store, "a batch read above the limit is refused", read_limit).each_function(),
    check!(56, C, Must, Store, "duplicates in a batch are answered alike", duplicates).each_function(),
];

async fn each_upload(cx: &Cx) -> Judged {
    let client = &cx.client;
    let contents: Vec<Vec<u8>> = (0..20).map(|number| fresh(10 + number)).collect();
    let mut requests: Vec<Request> = contents.iter().map(|content| client.update(content)).collect();
    requests.push(Request { digest: Some(client.absent()), ..client.update(&fresh(10)) });
    let answer = client.batch_update(requests.clone()).await?;
    need!(answer.responses.len() == 21, "{} responses for 21 blobs", answer.responses.len());
    for request in &requests {
        let digest = request.digest.clone();
        let one = answer.responses.iter().find(|response| response.digest == digest);
        need!(one.is_some(), "a blob has no response");
    }
    for content in &contents {
        let digest = Some(client.digest(content));
        let one = answer.responses.iter().find(|response| response.digest == digest);
        has_code(one.and_then(|one| one.status.as_ref()), &[Code::Ok], "a good blob beside a wrong one")?;
    }
    pass()
}

async fn wrong_upload(cx: &Cx) -> Judged {
    let client = &cx.client;
    let (good, bad, short) = (fresh(300), fresh(300), fresh(300));
    let other = client.digest(&fresh(300));
    let longer = Digest { size_bytes: 301, ..client.digest(&short) };
    let requests = vec![
        Request { digest: Some(other.clone()), ..client.update(&bad) },
        client.update(&good),
        Request { digest: Some(longer.clone()), ..client.update(&short) },
    ];
    let answer = client.batch_update(requests).await?;
    for response in &answer.responses {
        let is_good = response.digest == Some(client.digest(&good));
        let (code, what) = if is_good {
            (Code::Ok, "a good blob")
        } else {
            (Code::InvalidArgument, "a blob that is not its digest")
        };
        has_code(response.status.as_ref(), &[code], what)?;
    }
    let missing = client.missing(vec![other, longer, client.digest(&good)]).await?;
    need!(missing.len() == 2, "after two wrong blobs and a good one, {} are missing", missing.len());
    let Some(full) = cx.full().await? else {
        return noted("no full store was given, so a full store was not checked");
    };
    let answer = full.batch_update(vec![full.update(&fresh(400_000))]).await?;
    let status = answer.responses.first().and_then(|one| one.status.as_ref());
    has_code(status, &[Code::ResourceExhausted], "an upload to the full store")?;
    pass()
}

async fn compressed_upload(cx: &Cx) -> Judged {
    let client = &cx.client;
    let announced =
        cx.cache().map(|cache| cache.supported_batch_update_compressors.clone()).unwrap_or_default();
    let request = |content: &[u8], data: Vec<u8>, compressor: i32| Request {
        digest: Some(client.digest(content)),
        data,
        compressor,
    };
    let content = [fresh(2000), vec![3; 2000]].concat();
    if announced.contains(&Value::Zstd.into()) {
        let answer =
            client.batch_update(vec![request(&content, zstd(&content)?, Value::Zstd.into())]).await?;
        let status = answer.responses.first().and_then(|one| one.status.as_ref());
        has_code(status, &[Code::Ok], "a batch upload as zstd, which is announced,")?;
        need!(client.read(&client.digest(&content)).await? == content, "a zstd upload comes back changed");
    }
    let unannounced = [i32::from(Value::Zstd), Value::Deflate.into(), Value::Brotli.into(), 77]
        .into_iter()
        .filter(|value| !announced.contains(value));
    for value in unannounced {
        // Plain bytes under a false label: a server that ignores the label would accept them.
        let content = fresh(200);
        let what = format!("a batch upload with compressor {value}, which is not announced,");
        match client.batch_update(vec![request(&content, content.clone(), value)]).await {
            Ok(answer) => {
                let status = answer.responses.first().and_then(|one| one.status.as_ref());
                has_code(status, &[Code::InvalidArgument], &what)?;
            }
            Err(status) => {
                refused::<()>(Err(status), &[Code::InvalidArgument], &what)?;
            }
        }
        need!(!client.has(&client.digest(&content)).await?, "{what} was stored");
    }
    pass()
}

async fn each_read(cx: &Cx) -> Judged {
    let client = &cx.client;
    let contents: Vec<Vec<u8>> = (0..10).map(|number| fresh(10 + number)).collect();
    client.put_all(&contents).await?;
    let absent = client.absent();
    let digests: Vec<Digest> =
        contents.iter().map(|content| client.digest(content)).chain([absent.clone()]).collect();
    let answer = client.batch_read(digests.clone(), Vec::new()).await?;
    need!(answer.responses.len() == 11, "{} responses for 11 digests", answer.responses.len());
    for (content, digest) in contents.iter().zip(&digests) {
        let one = answer.responses.iter().find(|response| response.digest.as_ref() == Some(digest));
        need!(one.is_some_and(|one| one.data == *content), "a blob of a batch read differs");
    }
    let one = answer.responses.iter().find(|response| response.digest.as_ref() == Some(&absent));
    has_code(one.and_then(|one| one.status.as_ref()), &[Code::NotFound], "an absent blob of a batch read")?;
    pass()
}

async fn compressed_read(cx: &Cx) -> Judged {
    let client = &cx.client;
    let content = [fresh(500), vec![9; 5000]].concat();
    let digest = client.put(&content).await?;
    for accepted in [Vec::new(), vec![0], vec![Value::Zstd.into()], vec![Value::Deflate.into()]] {
        let answer = client.batch_read(vec![digest.clone()], accepted.clone()).await?;
        let Some(one) = answer.responses.first() else { fail!("a batch read has no response") };
        has_code(one.status.as_ref(), &[Code::Ok], "a batch read")?;
        need!(
            one.compressor == 0 || accepted.contains(&one.compressor),
            "a batch read that accepts {accepted:?} is answered with compressor {}",
            one.compressor
        );
        let data = match one.compressor {
            0 => Some(one.data.clone()),
            1 => Some(unzstd(&one.data)?),
            _ => None,
        };
        need!(data.is_none_or(|data| data == content), "a batch read comes back changed");
    }
    pass()
}

async fn read_limit(cx: &Cx) -> Judged {
    let Some(limit) = cx.batch_max() else { return vacuous("the server announces no limit") };
    let client = &cx.client;
    if limit > 64 << 20 {
        let huge = Digest { size_bytes: i64::try_from(limit).unwrap_or(i64::MAX), ..client.absent() };
        let answer = client.batch_read(vec![huge, client.absent()], Vec::new()).await;
        refused(answer, &[Code::InvalidArgument], "a batch read above the limit")?;
        return pass();
    }
    let mut digests = Vec::new();
    for _ in 0..3 {
        let content = fresh(limit / 3 + 1);
        let digest = client.digest(&content);
        client.write(&client.write_name(&digest), pieces(&content, PIECE)).await?;
        digests.push(digest);
    }
    let answer = client.batch_read(digests.clone(), Vec::new()).await;
    refused(answer, &[Code::InvalidArgument], "a batch read above the limit")?;
    digests.pop();
    let answer = client.batch_read(digests, Vec::new()).await?;
    need!(answer.responses.len() == 2, "a batch read within the limit lacks a blob");
    pass()
}

async fn duplicates(cx: &Cx) -> Judged {
    let (client, content) = (&cx.client, fresh(700));
    let answer = client.batch_update(vec![client.update(&content), client.update(&content)]).await?;
    need!(!answer.responses.is_empty(), "a batch upload has no response");
    for response in &answer.responses {
        has_code(response.status.as_ref(), &[Code::Ok], "a blob that is in a batch twice")?;
    }
    let (digest, absent) = (client.digest(&content), client.absent());
    let asked = vec![digest.clone(), absent.clone(), digest.clone(), absent.clone()];
    let answer = client.batch_read(asked, Vec::new()).await?;
    let responses_to = |wanted: &Digest| {
        let wanted = Some(wanted.clone());
        answer.responses.iter().filter(move |one| one.digest == wanted).collect::<Vec<_>>()
    };
    need!(
        !responses_to(&digest).is_empty() && !responses_to(&absent).is_empty(),
        "a digest of a batch read has no response"
    );
    need!(
        responses_to(&digest).iter().all(|one| one.data == content),
        "a digest requested twice is answered in two ways"
    );
    for one in responses_to(&absent) {
        has_code(one.status.as_ref(), &[Code::NotFound], "an absent digest requested twice")?;
    }
    pass()
}
