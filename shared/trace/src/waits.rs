//! Why a build waited in its queue.

use std::time::{Duration, SystemTime};

use telemetry::spans::{Span, SpanContext};

use crate::{ids, names};

/// What a build in its queue waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// A workspace that no build occupies.
    Workspace,
    /// A worker that offers what the build requires.
    Worker,
    /// Room in the target of its group.
    Quota,
    /// Room on the executors, which all builds that run actions share.
    Executors,
}

impl WaitsFor {
    fn name(self) -> &'static str {
        match self {
            Self::Workspace => names::WAIT_WORKSPACE,
            Self::Worker => names::WAIT_WORKER,
            Self::Quota => names::WAIT_QUOTA,
            Self::Executors => names::WAIT_EXECUTORS,
        }
    }
}

/// From this time on, a build waits for this.
pub type Change = (SystemTime, WaitsFor);

/// Shorter waits have no span.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// The spans of the waits of a build that left its queue at `picked`. Each of its `changes`, sorted by time, lasts until
/// the next one. `queue` is the span of the queue, which began at `since`.
pub fn waits(queue: SpanContext, since: SystemTime, picked: SystemTime, changes: &[Change]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let ends = changes.iter().skip(1).map(|(at, _)| *at).chain([picked]);
    for ((from, why), to) in changes.iter().zip(ends) {
        let (from, to) = ((*from).max(since), to.min(picked));
        match spans.last_mut() {
            _ if to <= from => {}
            Some(last) if last.name == why.name() && last.end == from => last.end = to,
            Some(_) | None => spans.push(wait(queue, *why, from, to)),
        }
    }
    spans.retain(|span| span.end.duration_since(span.start).is_ok_and(|length| length >= WAIT_MIN));
    spans
}

fn wait(queue: SpanContext, why: WaitsFor, from: SystemTime, to: SystemTime) -> Span {
    let begun = from.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
    let id = ids::span_id(&[&queue.span.to_string(), why.name(), &begun.to_string()]);
    Span::new(SpanContext { span: id, ..queue }, Some(queue.span), why.name(), from, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + ms)
    }

    fn named(since: u64, picked: u64, changes: &[(u64, WaitsFor)]) -> Vec<(String, u64, u64)> {
        let queue: SpanContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
        let changes: Vec<Change> = changes.iter().map(|(ms, why)| (at(*ms), *why)).collect();
        let ms = |time: SystemTime| u64::try_from(time.duration_since(at(0)).unwrap().as_millis()).unwrap();
        let spans = waits(queue, at(since), at(picked), &changes);
        assert!(spans.iter().all(|span| span.parent == Some(queue.span)));
        spans.iter().map(|span| (span.name.to_string(), ms(span.start), ms(span.end))).collect()
    }

    #[test]
    fn each_change_lasts_until_the_next_one_or_the_pick() {
        let changes = [
            // Before the build was queued.
            (0, WaitsFor::Executors),
            (50, WaitsFor::Workspace),
            (300, WaitsFor::Quota),
            (400, WaitsFor::Quota),
            // Too short.
            (600, WaitsFor::Worker),
            (605, WaitsFor::Quota),
            // After it was picked.
            (900, WaitsFor::Workspace),
        ];
        let wanted = [
            ("wait for workspace".to_owned(), 100, 300),
            ("wait for quota".to_owned(), 300, 600),
            ("wait for quota".to_owned(), 605, 800),
        ];
        assert_eq!(named(100, 800, &changes), wanted);
        assert_eq!(named(100, 800, &[]), []);
    }
}
