//! Checks 148 and 149: log streams.

use std::time::Duration;

use reapi::{
    bytestream::{ReadRequest, WriteRequest},
    logstream::{CreateLogStreamRequest, LogStream},
};
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Streaming};

use crate::{
    check::{Check, check},
    client::pieces,
    context::{Cx, within},
    names::fresh,
    stop::{Judged, Stop, describe, fail, need, pass, refused, skip},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(148, I, Must, Nothing, "a log stream has a name to read and a secret one to write", create),
    check!(149, I, Must, Nothing, "a log stream is read while it is written, and never changes", follow),
];

const LIMIT: Duration = Duration::from_secs(10);

/// Creates a log stream under the first parent that the server accepts.
async fn log_stream(cx: &Cx) -> Result<(String, LogStream), Stop> {
    let parents = [cx.client.instance.clone(), cx.options.nested_instance.clone(), "projects/conform".into()];
    let mut last = None;
    for parent in parents.into_iter().filter(|parent| !parent.is_empty()) {
        let request = CreateLogStreamRequest { parent: parent.clone() };
        match cx.client.log_streams().create_log_stream(request).await {
            Ok(stream) => return Ok((parent, stream.into_inner())),
            Err(status) if status.code() == Code::Unimplemented => {
                skip!("the server does not implement CreateLogStream")
            }
            Err(status) => last = Some(status),
        }
    }
    fail!("CreateLogStream is answered with {}", last.as_ref().map(describe).unwrap_or_default());
}

async fn create(cx: &Cx) -> Judged {
    let (parent, stream) = log_stream(cx).await?;
    let LogStream { name, write_resource_name: secret } = &stream;
    let id = name.strip_prefix(&format!("{parent}/logstreams/")).unwrap_or_default();
    need!(!id.is_empty() && !id.contains('/'), "the log stream of {parent} is called {name}");
    let token = secret.strip_prefix(&format!("{name}/")).unwrap_or_default();
    need!(token.len() >= 8 && !token.contains('/'), "the log stream {name} is written as {secret}");
    let (_, other) = log_stream(cx).await?;
    need!(other.name != *name, "two log streams have the same name");
    need!(!other.write_resource_name.ends_with(token), "two log streams have the same secret");
    let answer = cx.client.write(name, pieces(&fresh(10), 10)).await;
    need!(answer.is_err(), "the name to read a log stream can be written");
    let answer = within(LIMIT, "a read of the secret name", cx.client.read_at(secret, 0, 0)).await?;
    refused(answer, &[Code::InvalidArgument], "a read of the secret name")?;
    pass()
}

async fn open(cx: &Cx, name: &str) -> Result<Streaming<reapi::bytestream::ReadResponse>, Stop> {
    let request = ReadRequest { resource_name: name.to_owned(), ..ReadRequest::default() };
    Ok(cx.client.byte_stream().read(request).await?.into_inner())
}

/// Reads until `size` bytes have arrived.
async fn take(stream: &mut Streaming<reapi::bytestream::ReadResponse>, size: usize) -> Result<Vec<u8>, Stop> {
    let mut content = Vec::new();
    while content.len() < size {
        match within(LIMIT, "a read of a log stream that was written", stream.message()).await?? {
            Some(piece) => content.extend(piece.data),
            None => fail!("a log stream ends before it was finished"),
        }
    }
    Ok(content)
}

async fn follow(cx: &Cx) -> Judged {
    let (_, LogStream { name, write_resource_name: secret }) = log_stream(cx).await?;
    let (first, second) = (fresh(5000), fresh(3000));
    let (send, receive) = mpsc::unbounded_channel();
    let mut byte_stream = cx.client.byte_stream();
    let writing = tokio::spawn(async move { byte_stream.write(UnboundedReceiverStream::new(receive)).await });
    let part = |data: &[u8], at: i64, finish_write: bool| WriteRequest {
        resource_name: secret.clone(),
        write_offset: at,
        finish_write,
        data: data.to_vec(),
    };
    let ended_early = |_| Stop::Fail("the write to a log stream ended early".to_owned());
    send.send(part(&first, 0, false)).map_err(ended_early)?;
    let mut reading = within(LIMIT, "a read of a log stream", open(cx, &name)).await??;
    need!(take(&mut reading, 5000).await? == first, "a log stream does not read as it was written");
    let quiet = tokio::time::timeout(Duration::from_millis(700), reading.message()).await;
    match quiet {
        Ok(Ok(Some(piece))) if piece.data.is_empty() => {}
        Ok(_) => fail!("a read of an unfinished log stream does not stay open"),
        Err(_) => {}
    }
    send.send(part(&second, 5000, true)).map_err(ended_early)?;
    drop(send);
    let written = within(LIMIT, "a write to a log stream", writing).await?;
    let written = written.map_err(|error| Stop::Fail(format!("the check itself failed: {error}")))??;
    need!(written.into_inner().committed_size == 8000, "a log stream of 8000 bytes commits another size");
    need!(take(&mut reading, 3000).await? == second, "data appended to a log stream is lost");
    let end = within(LIMIT, "after it was finished, a read of a log stream", reading.message()).await??;
    need!(end.is_none_or(|piece| piece.data.is_empty()), "a log stream has more than was written");
    let whole = [first, second].concat();
    for at in [0_usize, 1, 4999, 7999, 8000] {
        let read = cx.client.read_at(&name, i64::try_from(at).unwrap_or_default(), 0).await?;
        need!(whole.get(at..) == Some(&*read), "a finished log stream reads differently from {at}");
    }
    let more = cx.client.write(&secret, vec![part(b"more", 8000, false)]).await;
    need!(more.is_err(), "a finished log stream accepts more data");
    let other = cx.client.write(&secret, vec![part(b"other", 0, true)]).await;
    sleep(Duration::from_millis(100)).await;
    need!(other.is_err() || other.is_ok_and(|size| size == 8000), "a finished log stream is overwritten");
    need!(cx.client.read_at(&name, 0, 0).await? == whole, "the committed bytes of a log stream changed");
    pass()
}
