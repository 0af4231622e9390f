//! Clock offsets of machines.

use std::{fmt, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Offset of a machine's clock from the farm's clock in milliseconds: positive if it is ahead, negative if behind. The
/// farm's clock is that of nats-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Skew(pub i64);

impl Skew {
    /// Smallest offset worth a warning: on a busy machine the measurement is off by nearly as much.
    pub const NOTABLE: Duration = Duration::from_secs(1);

    /// Whether the offset is worth a warning.
    pub fn is_notable(self) -> bool {
        u128::from(self.0.unsigned_abs()) > Self::NOTABLE.as_millis()
    }
}

/// Prints a text such as `5.2 s ahead`.
impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.unsigned_abs() / 100;
        let side = if self.0 < 0 { "behind" } else { "ahead" };
        write!(f, "{}.{} s {side}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_is_said_in_seconds() {
        assert_eq!(Skew(5210).to_string(), "5.2 s ahead");
        assert_eq!(Skew(-3_600_000).to_string(), "3600.0 s behind");
        assert!(!Skew(-1000).is_notable() && Skew(-1001).is_notable() && Skew(1001).is_notable());
    }
}
