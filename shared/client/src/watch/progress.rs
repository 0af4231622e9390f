//! Decides for each live message whether it is old, next in order, or follows a gap.

use bus::{Completeness, EventKind, RunPlace};
use model::Sequence;

/// Progress of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Progress {
    cursor: Sequence,
    run: Option<RunPlace>,
    completeness: Completeness,
}

/// Verdict on a live message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was seen before: drop it.
    Old,
    /// Nothing is missing before it: deliver it.
    Next,
    /// Events may be missing before it: read the stream.
    Gap,
}

impl Progress {
    /// Progress of a watch that starts after `position`.
    pub(super) fn after(position: Sequence, completeness: Completeness) -> Self {
        Self { cursor: position, run: None, completeness }
    }

    /// Position up to which every event was seen.
    pub(super) fn cursor(&self) -> Sequence {
        self.cursor
    }

    /// Classifies a live message at `position` that follows `previous` on the same subject, at `place` in its attempt.
    ///
    /// The previous position on the same subject says nothing about the build's other subjects. For events written by a
    /// worker, the number in the attempt does, and the start of the attempt says that the state has not changed. A state
    /// change is always treated as a gap: it is rare, and read at once.
    pub(super) fn classify(
        &self,
        position: Sequence,
        previous: Sequence,
        place: Option<RunPlace>,
    ) -> Verdict {
        if position <= self.cursor {
            return Verdict::Old;
        }
        let (Some(place), Some(run)) = (place, self.run) else { return Verdict::Gap };
        let follows = match self.completeness {
            Completeness::Count => place == RunPlace { count: run.count + 1, ..run },
            Completeness::Previous => place.guard == run.guard,
            Completeness::Unknown => false,
        };
        if follows && previous <= self.cursor { Verdict::Next } else { Verdict::Gap }
    }

    /// Marks the event at `position` as seen. Its kind is unknown if it could not be read.
    pub(super) fn advance(&mut self, position: Sequence, kind: Option<EventKind>, place: Option<RunPlace>) {
        self.cursor = self.cursor.max(position);
        match kind {
            // Everything that a worker writes from now on names this position.
            Some(EventKind::Lifecycle) => self.run = Some(RunPlace { guard: position, count: 0 }),
            Some(EventKind::Console | EventKind::Tool) | None => self.run = place,
            // Written by a gateway: it is between the worker's events, and not counted among them.
            Some(EventKind::Bazel) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Completeness, EventKind, Progress, RunPlace, Sequence, Verdict};

    #[expect(clippy::unnecessary_wraps, reason = "it is what a message holds")]
    fn place(guard: u64, count: u64) -> Option<RunPlace> {
        Some(RunPlace { guard: Sequence(guard), count })
    }

    /// A build that was enqueued at 3, started at 7, and wrote a tool event at 8 and output at 10.
    fn running() -> Progress {
        let mut progress = Progress::after(Sequence(0), Completeness::Count);
        progress.advance(Sequence(3), Some(EventKind::Lifecycle), None);
        progress.advance(Sequence(7), Some(EventKind::Lifecycle), None);
        progress.advance(Sequence(8), Some(EventKind::Tool), place(7, 1));
        progress.advance(Sequence(10), Some(EventKind::Console), place(7, 2));
        progress
    }

    fn classify(progress: &Progress, position: u64, previous: u64, place: Option<RunPlace>) -> Verdict {
        progress.classify(Sequence(position), Sequence(previous), place)
    }

    #[test]
    fn what_was_seen_is_dropped() {
        for (position, count) in [(8, 1), (10, 2), (10, 3)] {
            assert_eq!(classify(&running(), position, 0, place(7, count)), Verdict::Old);
        }
    }

    #[test]
    fn the_next_of_the_run_is_handed_out_whatever_its_kind() {
        assert_eq!(classify(&running(), 11, 10, place(7, 3)), Verdict::Next);
        assert_eq!(classify(&running(), 11, 8, place(7, 3)), Verdict::Next);
    }

    #[test]
    fn the_first_of_a_run_follows_its_start() {
        let mut progress = running();
        progress.advance(Sequence(20), Some(EventKind::Lifecycle), None);
        progress.advance(Sequence(25), Some(EventKind::Lifecycle), None);
        assert_eq!(classify(&progress, 26, 10, place(25, 1)), Verdict::Next);
        assert_eq!(classify(&progress, 27, 10, place(25, 2)), Verdict::Gap);
        assert_eq!(classify(&progress, 28, 10, place(7, 3)), Verdict::Gap);
    }

    #[test]
    fn a_lost_message_is_a_gap_whatever_its_kind() {
        // Same kind of event.
        assert_eq!(classify(&running(), 12, 11, place(7, 4)), Verdict::Gap);
        // Another kind of event: the previous one of its own kind was seen.
        assert_eq!(classify(&running(), 12, 10, place(7, 4)), Verdict::Gap);
        // A new attempt whose start was not seen.
        assert_eq!(classify(&running(), 30, 10, place(25, 1)), Verdict::Gap);
    }

    #[test]
    fn the_worker_goes_on_after_events_of_bazel() {
        let mut progress = running();
        assert_eq!(
            classify(&progress, 12, 10, None),
            Verdict::Gap,
            "console output may be missing before it"
        );
        progress.advance(Sequence(12), Some(EventKind::Bazel), None);
        assert_eq!(classify(&progress, 13, 10, place(7, 3)), Verdict::Next);
    }

    #[test]
    fn a_change_of_state_is_read_from_the_stream() {
        assert_eq!(classify(&running(), 12, 7, None), Verdict::Gap);
    }

    #[test]
    fn a_resumed_watch_reads_before_it_trusts() {
        let mut progress = Progress::after(Sequence(10), Completeness::Count);
        assert_eq!(classify(&progress, 10, 8, place(7, 2)), Verdict::Old);
        assert_eq!(classify(&progress, 11, 10, place(7, 3)), Verdict::Gap);
        progress.advance(Sequence(11), Some(EventKind::Console), place(7, 3));
        assert_eq!(classify(&progress, 12, 11, place(7, 4)), Verdict::Next);
    }

    /// A build that was enqueued at 3, started at 7, and wrote output at 10, which is all that is wanted.
    fn reading_output() -> Progress {
        let mut progress = Progress::after(Sequence(0), Completeness::Previous);
        progress.advance(Sequence(3), Some(EventKind::Lifecycle), None);
        progress.advance(Sequence(7), Some(EventKind::Lifecycle), None);
        progress.advance(Sequence(10), Some(EventKind::Console), place(7, 2));
        progress
    }

    #[test]
    fn events_that_are_not_wanted_leave_no_gap() {
        assert_eq!(classify(&reading_output(), 15, 10, place(7, 5)), Verdict::Next);
    }

    #[test]
    fn among_events_of_one_kind_a_lost_one_is_a_gap() {
        assert_eq!(classify(&reading_output(), 15, 12, place(7, 5)), Verdict::Gap);
        // A new attempt whose start was not seen, and a late event of the one before.
        assert_eq!(classify(&reading_output(), 30, 10, place(25, 1)), Verdict::Gap);
        let mut progress = reading_output();
        progress.advance(Sequence(25), Some(EventKind::Lifecycle), None);
        assert_eq!(classify(&progress, 26, 10, place(25, 1)), Verdict::Next);
        assert_eq!(classify(&progress, 26, 10, place(7, 3)), Verdict::Gap);
        assert_eq!(classify(&reading_output(), 12, 7, None), Verdict::Gap);
    }

    #[test]
    fn without_a_proof_every_event_is_read_from_the_stream() {
        let mut progress = Progress::after(Sequence(0), Completeness::Unknown);
        progress.advance(Sequence(7), Some(EventKind::Lifecycle), None);
        assert_eq!(classify(&progress, 8, 0, place(7, 1)), Verdict::Gap);
    }
}
