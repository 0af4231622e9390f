//! Spans of traces that were not selected at their start: held in case the trace turns out to be worth it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::span::Span;
use crate::trace_context::TraceId;

/// How long spans are held, and how long a decision to keep a trace is remembered.
const HOLD: Duration = Duration::from_secs(600);
/// Maximum memory of the spans held, in bytes.
const BYTES_MAX: usize = 64 << 20;
/// Maximum number of decisions remembered.
const KEPT_MAX: usize = 100_000;

/// The spans held, oldest first, and the traces that are kept.
#[derive(Debug, Default)]
pub(crate) struct Held {
    spans: HashMap<TraceId, VecDeque<Span>>,
    order: VecDeque<(Instant, TraceId)>,
    bytes: usize,
    kept: HashSet<TraceId>,
    kept_order: VecDeque<(Instant, TraceId)>,
}

impl Held {
    /// Holds the span; returns it if its trace is kept already.
    pub(crate) fn hold(&mut self, span: Span, now: Instant) -> Option<Span> {
        self.expire(now);
        let trace = span.context.trace;
        if self.kept.contains(&trace) {
            return Some(span);
        }
        self.bytes += span.size();
        self.spans.entry(trace).or_default().push_back(span);
        self.order.push_back((now, trace));
        while self.bytes > BYTES_MAX {
            self.drop_oldest();
        }
        None
    }

    /// Returns the spans of a trace that is kept, and remembers the decision for those that follow.
    pub(crate) fn keep(&mut self, trace: TraceId, now: Instant) -> VecDeque<Span> {
        self.expire(now);
        if self.kept.insert(trace) {
            self.kept_order.push_back((now, trace));
        }
        // Its entries in `order` stay, and find nothing when they expire.
        let spans = self.spans.remove(&trace).unwrap_or_default();
        self.bytes -= spans.iter().map(Span::size).sum::<usize>();
        spans
    }

    fn expire(&mut self, now: Instant) {
        let is_old = |entry: Option<&(Instant, TraceId)>| entry.is_some_and(|(at, _)| now - *at >= HOLD);
        while is_old(self.order.front()) {
            self.drop_oldest();
        }
        while is_old(self.kept_order.front()) || self.kept_order.len() > KEPT_MAX {
            if let Some((_, trace)) = self.kept_order.pop_front() {
                self.kept.remove(&trace);
            }
        }
    }

    fn drop_oldest(&mut self) {
        let Some((_, trace)) = self.order.pop_front() else { return };
        let Some(spans) = self.spans.get_mut(&trace) else { return };
        if let Some(span) = spans.pop_front() {
            self.bytes -= span.size();
        }
        if spans.is_empty() {
            self.spans.remove(&trace);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::spans::{SpanContext, SpanId};

    fn span(trace: u8, name: &'static str) -> Span {
        let context = SpanContext {
            trace: TraceId::from_bytes([trace; 16]),
            span: SpanId::from_bytes([1; 8]),
            sampled: false,
        };
        Span::new(context, None, name, SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn a_kept_trace_gets_its_spans_from_before_and_after() {
        let (mut held, now) = (Held::default(), Instant::now());
        assert_eq!(held.hold(span(1, "a"), now), None);
        assert_eq!(held.hold(span(2, "b"), now), None);
        assert_eq!(held.keep(TraceId::from_bytes([1; 16]), now), [span(1, "a")]);
        assert_eq!(held.hold(span(1, "c"), now), Some(span(1, "c")));
        assert_eq!(held.bytes, span(2, "b").size());
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_go_first() {
        let (mut held, now) = (Held::default(), Instant::now());
        let large = |trace| span(trace, "x").with("text", "x".repeat(1 << 20));
        for _ in 0..100 {
            assert_eq!(held.hold(large(1), now), None);
        }
        held.hold(span(2, "last"), now);
        assert!(held.bytes <= BYTES_MAX, "{}", held.bytes);
        assert!((60..=64).contains(&held.keep(TraceId::from_bytes([1; 16]), now).len()));
        assert_eq!(held.keep(TraceId::from_bytes([2; 16]), now).len(), 1);
        assert_eq!(held.bytes, 0);
    }

    #[test]
    fn what_is_held_too_long_is_dropped() {
        let (mut held, now) = (Held::default(), Instant::now());
        held.hold(span(1, "a"), now);
        held.keep(TraceId::from_bytes([3; 16]), now);
        let later = now + HOLD;
        assert_eq!(held.keep(TraceId::from_bytes([1; 16]), later), []);
        assert_eq!(held.hold(span(3, "c"), later), None);
        assert_eq!(held.bytes, span(3, "c").size());
    }
}
