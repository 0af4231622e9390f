//! Bodies of requests whose callers may upload a limited number of bytes per second.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::FutureExt as _;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::limits::Use;

/// The body of a request, from which more is read only as fast as its caller may upload.
pub struct Slowed<B> {
    inner: B,
    of: Option<Arc<Use>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<B> Slowed<B> {
    pub(crate) fn new(inner: B, of: Option<Arc<Use>>) -> Self {
        Self { inner, of, pause: None }
    }
}

impl<B> fmt::Debug for Slowed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slowed").field("of", &self.of).finish_non_exhaustive()
    }
}

impl<B> Body for Slowed<B>
where
    B: Body + Unpin,
    B::Data: bytes::Buf,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.poll_unpin(cx));
            self.pause = None;
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let (Some(of), Some(Ok(frame))) = (&self.of, &frame)
            && let Some(data) = frame.data_ref()
        {
            let pause = of.upload(bytes::Buf::remaining(data) as u64);
            self.pause = (pause > Duration::ZERO).then(|| Box::pin(sleep(pause)));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
