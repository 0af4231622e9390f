//! Times on the command line.

use std::time::Duration;

use model::Millis;

/// A time, or an age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    Ago(Duration),
    At(Millis),
}

impl Moment {
    /// The time, as seen at `now`.
    pub(crate) fn before(self, now: Millis) -> Millis {
        match self {
            Self::Ago(age) => Millis(now.0.saturating_sub(bus::millis(age))),
            Self::At(at) => at,
        }
    }

    /// Reads an age such as `2h`, or a time such as `2026-11-24T08:00:00Z`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Ok(age) = humantime::parse_duration(text) {
            return Ok(Self::Ago(age));
        }
        let at = humantime::parse_rfc3339_weak(text);
        at.map(|at| Self::At(at.into()))
            .map_err(|_| "expected an age such as 2h, or a time such as 2026-11-24T08:00:00Z".to_owned())
    }
}
