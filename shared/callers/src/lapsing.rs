//! Answers that end when their caller loses the right to them.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use http_body::{Body, Frame, SizeHint};

/// How often the right to an answer that is still being sent is checked again.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The body of an answer, which ends early when its caller loses its rights.
pub struct Lapsing<B> {
    inner: B,
    lapsed: Option<BoxFuture<'static, ()>>,
}

/// Resolves soon after `is_allowed` has said no.
fn lapse<F>(is_allowed: impl Fn() -> F + Send + 'static) -> BoxFuture<'static, ()>
where
    F: Future<Output = bool> + Send + 'static,
{
    let lapsed = async move {
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            if !is_allowed().await {
                return;
            }
        }
    };
    lapsed.boxed()
}

impl<B> Lapsing<B> {
    /// The body of a caller whose rights do not end.
    pub fn never(inner: B) -> Self {
        Self { inner, lapsed: None }
    }

    /// A body that ends soon after `is_allowed` has said no.
    pub fn while_allowed<F>(inner: B, is_allowed: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Self { inner, lapsed: Some(lapse(is_allowed)) }
    }
}

impl<B: Default> Default for Lapsing<B> {
    fn default() -> Self {
        Self::never(B::default())
    }
}

impl<B: Body + Unpin> Body for Lapsing<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if let Some(lapsed) = &mut self.lapsed
            && lapsed.poll_unpin(cx).is_ready()
        {
            self.lapsed = None;
            return Poll::Ready(None);
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The caller of a request lost its rights before all of it had arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rights of the caller ended while the request arrived")]
struct Lapsed;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request, which fails when its caller loses its rights: a request that stays open must not go on with them.
pub struct LapsingRequest<B> {
    inner: B,
    lapsed: BoxFuture<'static, ()>,
}

impl<B> LapsingRequest<B> {
    /// A body that fails soon after `is_allowed` has said no.
    pub fn while_allowed<F>(inner: B, is_allowed: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Self { inner, lapsed: lapse(is_allowed) }
    }
}

impl<B> Body for LapsingRequest<B>
where
    B: Body + Unpin,
    B::Error: Into<AnyError>,
{
    type Data = B::Data;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, AnyError>>> {
        if self.lapsed.poll_unpin(cx).is_ready() {
            return Poll::Ready(Some(Err(Lapsed.into())));
        }
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        frame.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
