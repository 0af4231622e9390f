//! Which build events of a tool's stream are accepted, and where they are kept.

/// Maximum bytes of packed build events in one message of the bus, except that the store takes what exceeds it.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Bytes of one call's build events on the bus above which further ones go to the store.
const CALL_BYTES_MAX: u64 = 32 << 20;
/// Events of at most so many bytes stay on the bus in any case: the message that names a blob is as long.
const SMALL: usize = 1 << 10;

/// The numbers of the events of one stream, in the order in which they came.
///
/// Source: `google.devtools.build.v1`, and Bazel's `BuildEventServiceUploader`: after a broken connection a new stream
/// begins with the first number that was not acknowledged, so that a stream may begin with any number.
#[derive(Debug, Default)]
pub struct EventNumbers {
    next: Option<u64>,
}

/// What an accepted number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventNumber {
    /// The next event, with its number.
    Next(u64),
    /// An event that came before in this stream: it is acknowledged again, not stored again.
    Repeated,
}

/// Why a number is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumberRefusal {
    #[error("the number of a build event is {0}, expected at least 1")]
    NotPositive(i64),
    #[error("build event {found} follows {}: events are missing", .expected - 1)]
    Gap { expected: u64, found: u64 },
}

impl EventNumbers {
    /// Checks the number of the next event.
    ///
    /// # Errors
    ///
    /// Fails if the number is not positive, or leaves a gap after an event of this stream.
    pub fn accept(&mut self, number: i64) -> Result<EventNumber, NumberRefusal> {
        let refused = NumberRefusal::NotPositive(number);
        let number = u64::try_from(number).ok().filter(|number| *number > 0).ok_or(refused)?;
        match self.next {
            Some(expected) if number < expected => return Ok(EventNumber::Repeated),
            Some(expected) if number > expected => {
                return Err(NumberRefusal::Gap { expected, found: number });
            }
            Some(_) | None => {}
        }
        self.next = Some(number + 1);
        Ok(EventNumber::Next(number))
    }
}

/// Whether packed events of `bytes` go to the store, after `on_bus` bytes of the same call went to the bus.
pub fn events_go_to_store(bytes: usize, on_bus: u64) -> bool {
    bytes > MESSAGE_BYTES_MAX || (bytes > SMALL && on_bus + bytes as u64 > CALL_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn a_stream_begins_with_any_number_and_has_no_gap() {
        let mut numbers = EventNumbers::default();
        assert_eq!(numbers.accept(0), Err(NumberRefusal::NotPositive(0)));
        assert_eq!(numbers.accept(i64::MIN), Err(NumberRefusal::NotPositive(i64::MIN)));
        assert_eq!(numbers.accept(3), Ok(EventNumber::Next(3)));
        assert_eq!(numbers.accept(4), Ok(EventNumber::Next(4)));
        assert_eq!(numbers.accept(4), Ok(EventNumber::Repeated));
        assert_eq!(numbers.accept(1), Ok(EventNumber::Repeated));
        assert_eq!(numbers.accept(6), Err(NumberRefusal::Gap { expected: 5, found: 6 }));
        assert_eq!(numbers.accept(5), Ok(EventNumber::Next(5)));
        assert_eq!(EventNumbers::default().accept(i64::MAX), Ok(EventNumber::Next(i64::MAX as u64)));
    }

    #[test]
    fn large_events_and_events_of_long_calls_go_to_the_store() {
        assert!(!events_go_to_store(MESSAGE_BYTES_MAX, 0));
        assert!(events_go_to_store(MESSAGE_BYTES_MAX + 1, 0));
        assert!(!events_go_to_store(SMALL, CALL_BYTES_MAX));
        assert!(events_go_to_store(SMALL + 1, CALL_BYTES_MAX));
    }

    proptest! {
        #[test]
        fn each_event_is_new_once(first in 1_i64..1_000_000, steps in proptest::collection::vec(any::<bool>(), 0..50)) {
            let (mut numbers, mut last, mut new) = (EventNumbers::default(), first - 1, Vec::new());
            for repeat in steps {
                let number = if repeat && last >= first { last } else { last + 1 };
                if let EventNumber::Next(number) = numbers.accept(number).unwrap() {
                    new.push(number);
                }
                last = last.max(number);
            }
            let wanted: Vec<u64> = (first..=last).map(i64::unsigned_abs).collect();
            prop_assert_eq!(new, wanted);
        }
    }
}
