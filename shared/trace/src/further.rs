//! Calls of `Execute` beyond those that the trace of a build shows one by one.

use std::time::{Duration, SystemTime};

use telemetry::spans::{LINKS_MAX, Span, SpanContext, SpanId};

use crate::{Answer, Call, names};

/// Maximum number of links to failed calls, and to the longest ones.
const LINKED_MAX: usize = LINKS_MAX / 2;

/// Calls that one span stands for. Each has the trace of its execution; the span links to failed and to long ones.
#[derive(Debug, Clone, PartialEq)]
pub struct FurtherCalls {
    first: SystemTime,
    last: SystemTime,
    started: u32,
    merged: u32,
    cached: u32,
    failed: u32,
    took: Duration,
    /// The first executions that failed.
    failures: Vec<SpanContext>,
    /// The longest successful calls, sorted by time.
    longest: Vec<(Duration, SpanContext)>,
}

impl FurtherCalls {
    /// No call yet, at a time before all of them.
    pub fn since(first: SystemTime) -> Self {
        Self {
            first,
            last: first,
            started: 0,
            merged: 0,
            cached: 0,
            failed: 0,
            took: Duration::ZERO,
            failures: Vec::new(),
            longest: Vec::new(),
        }
    }

    /// Number of calls that were added so far.
    pub fn count(&self) -> u32 {
        self.started.saturating_add(self.merged).saturating_add(self.cached)
    }

    /// Adds a call that ended.
    pub fn add(&mut self, call: &Call, at: SystemTime, failed: bool) {
        self.first = self.first.min(call.started);
        self.last = self.last.max(at);
        let took = at.duration_since(call.started).unwrap_or_default();
        self.took = self.took.saturating_add(took);
        let number = match &call.answer {
            Answer::Started(_) => &mut self.started,
            Answer::Merged(..) => &mut self.merged,
            Answer::Cached => &mut self.cached,
        };
        *number = number.saturating_add(1);
        self.failed = self.failed.saturating_add(u32::from(failed));
        let Some(execution) = call.execution() else { return };
        if failed {
            if self.failures.len() < LINKED_MAX {
                self.failures.push(execution);
            }
            return;
        }
        let place = self.longest.partition_point(|(longer, _)| *longer >= took);
        if place < LINKED_MAX {
            self.longest.insert(place, (took, execution));
            self.longest.truncate(LINKED_MAX);
        }
    }

    /// The span of these calls, with this id, below the span that their client stated.
    pub fn span(self, parent: SpanContext, id: SpanId) -> Span {
        let calls = self.count();
        let mut span = Span::new(
            SpanContext { span: id, ..parent },
            Some(parent.span),
            names::FURTHER_CALLS,
            self.first,
            self.last,
        )
        .with(names::CALLS, calls)
        .with(names::CALLS_STARTED, self.started)
        .with(names::CALLS_MERGED, self.merged)
        .with(names::CALLS_CACHED, self.cached)
        .with(names::CALLS_FAILED, self.failed)
        .with(names::CALLS_SECONDS, self.took.as_secs_f64());
        span.links = self.failures.into_iter().chain(self.longest.into_iter().map(|(_, at)| at)).collect();
        span
    }
}

#[cfg(test)]
mod tests {
    use model::{ExecutionId, ExecutionKey};

    use super::*;

    fn at(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + ms)
    }

    fn call(started: u64, answer: Answer) -> Call {
        Call { parent: None, id: SpanId::from_bytes([7; 8]), started: at(started), answer }
    }

    fn execution() -> ExecutionKey {
        ExecutionKey { group: "g".parse().unwrap(), id: ExecutionId::generate() }
    }

    #[test]
    fn failed_and_long_calls_are_linked() {
        let mut calls = FurtherCalls::since(at(50));
        calls.add(&call(40, Answer::Cached), at(45), false);
        let failed = call(60, Answer::Started(execution()));
        calls.add(&failed, at(61), true);
        let mut long = Vec::new();
        for ms in 0..200 {
            let one = call(100, Answer::Started(execution()));
            calls.add(&one, at(100 + ms), false);
            long.push(one.execution().unwrap());
        }
        assert_eq!(calls.count(), 202);
        let parent: SpanContext = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".parse().unwrap();
        let span = calls.span(parent, SpanId::from_bytes([9; 8]));
        assert_eq!((span.start, span.end), (at(40), at(299)));
        assert!(span.links.len() <= LINKS_MAX && span.links[0] == failed.execution().unwrap());
        assert_eq!(span.links[1], long[199], "the longest call comes first");
        assert!(!span.links.contains(&long[0]));
        let number = |name| span.attributes.iter().find(|(it, _)| *it == name).unwrap().1.clone();
        assert_eq!(number(names::CALLS), 202_u32.into());
        assert_eq!(number(names::CALLS_FAILED), 1_u32.into());
        assert_eq!(number(names::CALLS_CACHED), 1_u32.into());
    }
}
