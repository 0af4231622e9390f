//! Bodies that count for their connection: of requests, which must arrive in time, and of answers.

use std::{
    error::Error,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};
use policy::connections::body_time;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{call::Call, limiter::Usage};

pub(crate) type AnyError = Box<dyn Error + Send + Sync>;

/// A client sent the body of its request too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("timed out waiting for the request body: {received} bytes arrived in {waited:?}")]
pub struct TooSlow {
    received: u64,
    waited: Duration,
}

impl TooSlow {
    /// Whether `error` is a `TooSlow`, or is caused by one.
    pub fn is_in(error: &(dyn Error + 'static)) -> bool {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if error.is::<Self>() {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// An open request of a connection; closed when the answer ends.
#[derive(Debug)]
pub(crate) struct OpenRequest(Arc<Usage>);

impl OpenRequest {
    pub(crate) fn new(usage: Arc<Usage>) -> Self {
        usage.begin();
        Self(usage)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The body of a request, which fails when its client sends it too slowly.
pub(crate) struct RequestBody<B> {
    inner: B,
    usage: Option<Arc<Usage>>,
    /// Maximum pause; none means no limit.
    patience: Option<Duration>,
    received: u64,
    /// Time spent waiting so far, without the current wait.
    waited: Duration,
    current_wait: Option<Wait>,
    too_slow: fn(TooSlow) -> AnyError,
}

struct Wait {
    since: Instant,
    /// End of the current wait; none while the wait is unlimited.
    until: Option<Pin<Box<Sleep>>>,
}

impl<B> RequestBody<B> {
    /// Wraps a body; `usage` is that of its connection.
    pub(crate) fn new(
        inner: B,
        usage: Option<Arc<Usage>>,
        patience: Option<Duration>,
        too_slow: fn(TooSlow) -> AnyError,
    ) -> Self {
        Self { inner, usage, patience, received: 0, waited: Duration::ZERO, current_wait: None, too_slow }
    }

    /// Counts only the time in which the server wants more bytes and has none.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<TooSlow> {
        let (received, waited) = (self.received, self.waited);
        let (usage, patience) = (&self.usage, self.patience);
        let wait = self.current_wait.get_or_insert_with(|| {
            if let Some(usage) = usage {
                usage.begin_wait();
            }
            let since = Instant::now();
            let left = patience.map(|patience| body_time(patience, received).saturating_sub(waited));
            Wait { since, until: left.map(|left| Box::pin(sleep_until(since + left))) }
        });
        let Some(until) = &mut wait.until else { return Poll::Pending };
        let since = wait.since;
        until.as_mut().poll(cx).map(|()| TooSlow { received, waited: waited + since.elapsed() })
    }

    fn end_wait(&mut self) {
        if let Some(wait) = self.current_wait.take() {
            self.waited += wait.since.elapsed();
            if let Some(usage) = &self.usage {
                usage.end_wait();
            }
        }
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<AnyError>,
{
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) else {
            return self.wait(cx).map(|error| Some(Err((self.too_slow)(error))));
        };
        self.end_wait();
        if let Some(Ok(frame)) = &frame {
            self.received += frame.data_ref().map_or(0, |data| data.remaining() as u64);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for RequestBody<B> {
    fn drop(&mut self) {
        self.end_wait();
    }
}

/// The body of an answer, which keeps its request open.
#[derive(Debug)]
pub struct ResponseBody<B> {
    inner: B,
    _open: Option<OpenRequest>,
    /// The call that it answers, if it is one of gRPC.
    call: Option<Call>,
}

impl<B> ResponseBody<B> {
    pub(crate) fn new(inner: B, open: Option<OpenRequest>, call: Option<Call>) -> Self {
        Self { inner, _open: open, call }
    }
}

impl<B: Body + Unpin> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let (Some(call), Some(trailers)) = (&mut self.call, frame.trailers_ref())
        {
            call.note(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
