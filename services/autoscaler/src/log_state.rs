//! State that is read from a log.

use bus::{BusError, Stored};
use model::Sequence;

pub(crate) trait LogState: Send {
    /// Name of the log's content in log messages.
    const WHAT: &str;

    /// Applies a record; returns whether something joined the queue. A record older than the
    /// known one changes nothing.
    fn apply(&mut self, stored: &Stored) -> Result<bool, BusError>;

    /// Notes that the log was read up to this position.
    fn read_up_to(&mut self, sequence: Sequence);
}
