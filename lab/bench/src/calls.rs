//! Rate of concurrent calls.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};

use crate::error::BenchError;

/// Rate of calls per second over `window`, with `in_flight` concurrent calls.
pub(crate) async fn calls<F: Future<Output = Result<(), BenchError>>>(
    in_flight: usize,
    window: Duration,
    one: impl Fn() -> F,
) -> Result<f64, BenchError> {
    let begun = Instant::now();
    let going = futures::stream::repeat(()).take_while(|()| futures::future::ready(begun.elapsed() < window));
    let done = going
        .map(|()| one())
        .buffer_unordered(in_flight)
        .try_fold(0_u64, |count, ()| futures::future::ready(Ok(count + 1)))
        .await?;
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}
