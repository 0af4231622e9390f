//! Bounds the memory of calls with whole messages.
//!
//! The length of a message precedes its bytes. No more of the message is read until there is memory for it and for
//! the data made of it; the memory is released when the response is sent. A call that waits therefore holds no memory
//! for the message that it waits for.
//!
//! Unread bytes stay in the flow-control windows of the stream and of the connection. If waiting calls could fill the
//! connection's window, calls that have their memory would not receive their bytes. So the number of unread bytes of
//! waiting calls is bounded, and further calls are refused at once.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Frame, SizeHint};
use invariant::{Present as _, impossible};
use parking_lot::Mutex;
use reapi::status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};

use crate::{
    fault::RETRY_SOON,
    limits::{CONNECTION_WINDOW, STREAM_WINDOW},
};

/// Granularity of the budget in bytes.
const UNIT: u64 = 1024;

/// Memory for a message as a multiple of its length: its encoded bytes and the decoded message.
const COPIES: u64 = 2;

/// Maximum bytes that waiting calls may leave unread, so that the window of a connection keeps some space.
const WAITING_BYTES_MAX: u64 = CONNECTION_WINDOW as u64 / 4 * 3;

/// Maximum time that a call waits for memory.
const PATIENCE: Duration = Duration::from_secs(15);

/// Memory for the calls of one server.
#[derive(Debug)]
pub struct Budget {
    room: Arc<Semaphore>,
    units: u32,
    /// Bytes that waiting calls leave in the windows of their connections.
    waiting: AtomicU64,
}

impl Budget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: u64) -> Self {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        let room = Semaphore::new(units.try_into().unwrap_or(Semaphore::MAX_PERMITS));
        Self { room: Arc::new(room), units, waiting: AtomicU64::new(0) }
    }
}

/// The memory that one call holds.
#[derive(Debug, Clone)]
pub struct Held {
    budget: Arc<Budget>,
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Held {
    /// Creates an empty reservation.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), permit: Arc::default() }
    }

    /// Returns the reservation of the call with these extensions, or a new one.
    pub(crate) fn of(extensions: &http::Extensions, budget: &Arc<Budget>) -> Self {
        extensions.get().cloned().unwrap_or_else(|| Self::new(budget))
    }

    /// Reserves `bytes` more. Fails with `RESOURCE_EXHAUSTED` if the memory is not available in time. A reservation
    /// never exceeds the whole budget.
    pub async fn grow(&self, bytes: u64) -> Result<(), Status> {
        self.grow_before(bytes, 0).await
    }

    /// Like [`Held::grow`], while `unread` bytes of the client wait to be read.
    pub(crate) async fn grow_before(&self, bytes: u64, unread: u64) -> Result<(), Status> {
        let units = self.units(bytes);
        let room = Arc::clone(&self.budget.room);
        let permit = if let Ok(permit) = Arc::clone(&room).try_acquire_many_owned(units) {
            permit
        } else {
            let _share = WaitingShare::claim(&self.budget, unread.min(STREAM_WINDOW.into()))?;
            let room = tokio::time::timeout(PATIENCE, room.acquire_many_owned(units)).await;
            room.ok().and_then(Result::ok).ok_or_else(out_of_memory)?
        };
        self.keep(permit);
        Ok(())
    }

    fn try_grow(&self, bytes: u64) -> bool {
        let permit = Arc::clone(&self.budget.room).try_acquire_many_owned(self.units(bytes));
        permit.map(|permit| self.keep(permit)).is_ok()
    }

    fn units(&self, bytes: u64) -> u32 {
        let held = self.permit.lock();
        let held = held.as_ref().map_or(0, |permit| u32::try_from(permit.num_permits()).unwrap_or(u32::MAX));
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        units.min(self.budget.units.saturating_sub(held))
    }

    fn keep(&self, permit: OwnedSemaphorePermit) {
        let mut held = self.permit.lock();
        match held.as_mut() {
            Some(held) => held.merge(permit),
            None => *held = Some(permit),
        }
    }
}

fn out_of_memory() -> Status {
    let message = "the server has no memory left for calls; try again";
    status::retry(Code::ResourceExhausted, message, RETRY_SOON)
}

/// The share of one waiting call in [`WAITING_BYTES_MAX`].
struct WaitingShare<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl<'a> WaitingShare<'a> {
    fn claim(budget: &'a Budget, bytes: u64) -> Result<Self, Status> {
        let share = Self { budget, bytes };
        let before = budget.waiting.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > WAITING_BYTES_MAX { Err(out_of_memory()) } else { Ok(share) }
    }
}

impl Drop for WaitingShare<'_> {
    fn drop(&mut self) {
        self.budget.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A service whose messages use memory of a budget.
#[derive(Debug, Clone)]
pub struct Metered<S> {
    inner: S,
    budget: Arc<Budget>,
}

impl<S> Metered<S> {
    /// Wraps `inner` with the limit `budget`.
    pub fn new(inner: S, budget: Arc<Budget>) -> Self {
        Self { inner, budget }
    }
}

impl<S: NamedService> NamedService for Metered<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Metered<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let held = Held::new(&self.budget);
        let (mut parts, inner) = request.into_parts();
        parts.extensions.insert(held.clone());
        let body = MeteredRequest { inner, held: held.clone(), lengths: Lengths::default(), waiting: None };
        let answer = self.inner.call(http::Request::from_parts(parts, Body::new(body)));
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|inner| Body::new(MeteredResponse { inner, _held: held })))
        })
    }
}

/// Extracts the lengths of messages from their bytes.
#[derive(Debug, Default)]
struct Lengths {
    /// Number of bytes received of the message header, which is a flag and four bytes of length.
    head: u8,
    length: u32,
    /// Number of bytes of the message not yet received.
    left: u64,
}

impl Lengths {
    /// Returns the sum of the lengths of the messages that begin in these bytes.
    fn take(&mut self, bytes: &Bytes) -> u64 {
        let mut sum = 0;
        let mut rest = bytes.as_ref();
        while let Some((first, after)) = rest.split_first() {
            if self.left > 0 {
                let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(rest.len());
                self.left -= skipped as u64;
                rest = rest.get(skipped..).present("more bytes are skipped than there are");
                continue;
            }
            if self.head > 0 {
                self.length = self.length << 8 | u32::from(*first);
            }
            self.head += 1;
            rest = after;
            if self.head == 5 {
                self.left = self.length.into();
                sum += self.left;
                (self.head, self.length) = (0, 0);
            }
        }
        sum
    }
}

/// A request body that is read only as far as there is memory.
struct MeteredRequest {
    inner: Body,
    held: Held,
    lengths: Lengths,
    waiting: Option<Waiting>,
}

/// A frame, and the future that waits for its memory.
type Waiting = (Frame<Bytes>, BoxFuture<'static, Result<(), Status>>);

impl http_body::Body for MeteredRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.waiting.is_none() {
            let frame = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            let length = frame.data_ref().map_or(0, |data| this.lengths.take(data));
            let bytes = length * COPIES;
            if bytes == 0 || this.held.try_grow(bytes) {
                return Poll::Ready(Some(Ok(frame)));
            }
            let held = this.held.clone();
            this.waiting = Some((frame, Box::pin(async move { held.grow_before(bytes, length).await })));
        }
        let Some((_, room)) = &mut this.waiting else {
            impossible!("no frame waits for memory");
            return Poll::Ready(None);
        };
        let room = ready!(room.as_mut().poll(cx));
        let frame = this.waiting.take().map(|(frame, _)| frame);
        Poll::Ready(frame.map(|frame| room.map(|()| frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.inner.is_end_stream()
    }
}

/// A response body that holds its memory until it is sent.
struct MeteredResponse {
    inner: Body,
    _held: Held,
}

impl http_body::Body for MeteredResponse {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lengths_are_read_however_the_bytes_are_cut(
            messages in proptest::collection::vec(0..600usize, 0..8),
            cuts in proptest::collection::vec(1..50usize, 1..200),
        ) {
            let mut bytes = Vec::new();
            for length in &messages {
                bytes.push(0);
                bytes.extend_from_slice(&u32::try_from(*length).unwrap().to_be_bytes());
                bytes.extend(std::iter::repeat_n(7, *length));
            }
            let (mut lengths, mut sum) = (Lengths::default(), 0);
            let mut rest = Bytes::from(bytes);
            let mut cuts = cuts.into_iter().cycle();
            while !rest.is_empty() {
                let piece = rest.split_to(cuts.next().unwrap().min(rest.len()));
                sum += lengths.take(&piece);
            }
            prop_assert_eq!(sum, messages.iter().map(|length| *length as u64).sum::<u64>());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn room_is_waited_for_and_given_back() {
        let budget = Arc::new(Budget::new(10 * UNIT));
        let first = Held::new(&budget);
        first.grow(8 * UNIT).await.unwrap();
        let second = Held::new(&budget);
        assert!(!second.try_grow(3 * UNIT));
        let refused = second.grow(3 * UNIT).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(status::retry_delay(&status::rpc_status(&refused)).is_some());
        drop(first);
        second.grow(3 * UNIT).await.unwrap();
        // A request beyond the whole budget gets the whole budget.
        second.grow(1 << 40).await.unwrap();
        assert_eq!(budget.room.available_permits(), 0);
        drop(second);
        assert_eq!(budget.room.available_permits(), 10);
    }
}
