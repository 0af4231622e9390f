//! Values that are read when a scrape comes, because reading them regularly would keep an idle farm busy.

use std::{pin::Pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::metrics::{self, Readings, Shown};

/// Time limit of reading the values. Scrapers give up after some ten seconds.
const LIMIT: Duration = Duration::from_secs(2);
/// For this long values are not read again, so that several scrapers cost no more than one.
const FRESH: Duration = Duration::from_secs(5);
/// For this long the last values are shown while their source does not answer.
const KEPT: Duration = Duration::from_secs(60);

type Reading = Pin<Box<dyn Future<Output = Option<Readings>> + Send>>;

/// Where values come from, and which of them are shown.
struct Source {
    read: Box<dyn Fn() -> Reading + Send + Sync>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    tried: Option<Instant>,
    answered: Option<Instant>,
    shown: Shown,
}

static SOURCES: Mutex<Vec<Arc<Source>>> = Mutex::new(Vec::new());

/// Calls `read` when a scrape comes, and shows what it returns; `None` means that the values cannot be read now. Without
/// an answer the last values stay for a minute, then their series end.
pub fn on_scrape<F>(read: impl Fn() -> F + Send + Sync + 'static)
where
    F: Future<Output = Option<Readings>> + Send + 'static,
{
    let read: Box<dyn Fn() -> Reading + Send + Sync> = Box::new(move || Box::pin(read()));
    SOURCES.lock().push(Arc::new(Source { read, state: tokio::sync::Mutex::default() }));
}

/// All metrics as text, after reading the values that are read at a scrape.
pub async fn scrape() -> String {
    let mut reads: JoinSet<()> =
        SOURCES.lock().iter().cloned().map(|source| async move { source.refresh().await }).collect();
    // A source that panicked keeps its last values.
    while reads.join_next().await.is_some() {}
    metrics::render()
}

impl Source {
    /// Reads the values unless that was tried a moment ago.
    async fn refresh(&self) {
        let mut state = self.state.lock().await;
        if state.tried.is_some_and(|tried| tried.elapsed() < FRESH) {
            return;
        }
        let readings = timeout(LIMIT, (self.read)()).await.ok().flatten();
        let now = Instant::now();
        state.tried = Some(now);
        if let Some(readings) = readings {
            state.answered = Some(now);
            state.shown.replace(readings);
        } else if state.answered.is_none_or(|answered| now - answered >= KEPT) {
            state.shown.replace(Readings::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::time::{advance, sleep};

    use super::*;
    use crate::metrics::{Gauge, Label};

    fn waiting(priority: &str, builds: u64) -> Readings {
        let mut readings = Readings::default();
        readings.add(Gauge::BuildsWaiting, &[(Label::Priority, priority)], builds);
        readings
    }

    fn has(text: &str, line: &str) -> bool {
        text.lines().any(|it| it == line)
    }

    #[tokio::test(start_paused = true)]
    async fn values_are_read_at_a_scrape_and_not_again_for_five_seconds() {
        let reads = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&reads);
        on_scrape(move || {
            let read = counted.fetch_add(1, Ordering::Relaxed) + 1;
            async move { Some(waiting("batch", read)) }
        });
        assert_eq!(reads.load(Ordering::Relaxed), 0, "nothing is read without a scrape");
        let line = |read| format!("forebay_builds_waiting{{priority=\"batch\"}} {read}");
        assert!(has(&scrape().await, &line(1)));
        advance(Duration::from_millis(4900)).await;
        assert!(has(&scrape().await, &line(1)));
        advance(Duration::from_millis(200)).await;
        assert!(has(&scrape().await, &line(2)));
        let (one, other) = tokio::join!(scrape(), scrape());
        assert!(has(&one, &line(2)) && has(&other, &line(2)));
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn series_end_when_their_source_no_longer_has_them() {
        let reads = AtomicU64::new(0);
        on_scrape(move || {
            let first = reads.fetch_add(1, Ordering::Relaxed) == 0;
            async move { Some(waiting(if first { "emergency" } else { "automated" }, 7)) }
        });
        let text = scrape().await;
        assert!(has(&text, "forebay_builds_waiting{priority=\"emergency\"} 7"), "{text}");
        advance(FRESH).await;
        let text = scrape().await;
        assert!(!text.contains("priority=\"emergency\""), "{text}");
        assert!(has(&text, "forebay_builds_waiting{priority=\"automated\"} 7"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_source_delays_a_scrape_by_two_seconds_and_keeps_its_values_for_a_minute() {
        let reads = AtomicU64::new(0);
        on_scrape(move || {
            let first = reads.fetch_add(1, Ordering::Relaxed) == 0;
            async move {
                if !first {
                    sleep(Duration::from_secs(3600)).await;
                }
                let mut readings = waiting("interactive", 3);
                readings.add(Gauge::BuildsRunning, &[], 5);
                Some(readings)
            }
        });
        let line = "forebay_builds_waiting{priority=\"interactive\"} 3";
        assert!(has(&scrape().await, line));
        advance(Duration::from_secs(50)).await;
        let start = Instant::now();
        let text = scrape().await;
        assert_eq!(start.elapsed().as_secs(), LIMIT.as_secs());
        assert!(has(&text, line) && has(&text, "forebay_builds_running 5"));
        advance(Duration::from_secs(10)).await;
        let text = scrape().await;
        assert!(!text.contains("priority=\"interactive\""), "{text}");
        assert!(has(&text, "forebay_builds_running 0"), "a gauge without labels cannot end: {text}");
    }
}
