//! The place of a span in its trace, as W3C trace context writes it.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

/// Id of a trace: 16 bytes, never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId(NonZeroU128);

impl TraceId {
    /// The id with these bytes. Zero, which is not an id, becomes one.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(NonZeroU128::new(u128::from_be_bytes(bytes)).unwrap_or(NonZeroU128::MIN))
    }

    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }

    /// The last eight bytes, which publishers must choose at random.
    pub(crate) fn random_part(self) -> u64 {
        let low = self.0.get() & u128::from(u64::MAX);
        u64::try_from(low).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is not a trace id or a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a W3C trace context: 00-TRACE-SPAN-FLAGS in lower-case hexadecimal digits")]
pub struct InvalidContext;

impl FromStr for TraceId {
    type Err = InvalidContext;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = u128::from_str_radix(hex(text, 32)?, 16).map_err(|_| InvalidContext)?;
        NonZeroU128::new(number).map(Self).ok_or(InvalidContext)
    }
}

/// Id of a span inside its trace: 8 bytes, never all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpanId(NonZeroU64);

impl SpanId {
    /// The id with these bytes. Zero, which is not an id, becomes one.
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(NonZeroU64::new(u64::from_be_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
    }

    pub fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A span, its trace, and whether the trace was selected at its start. Written as a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanContext {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whether the trace is exported whatever its outcome.
    pub sampled: bool,
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl FromStr for SpanContext {
    type Err = InvalidContext;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(InvalidContext);
        let version = hex(next()?, 2)?;
        let trace = next()?.parse()?;
        let span = u64::from_str_radix(hex(next()?, 16)?, 16).map_err(|_| InvalidContext)?;
        let span = NonZeroU64::new(span).map(SpanId).ok_or(InvalidContext)?;
        let flags = u8::from_str_radix(hex(next()?, 2)?, 16).map_err(|_| InvalidContext)?;
        // Later versions may append fields; version 00 may not, and ff is forbidden.
        let ends_well = version != "00" || parts.next().is_none();
        if version == "ff" || !ends_well {
            return Err(InvalidContext);
        }
        Ok(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

/// Whether `text` is a `traceparent` as W3C trace context defines it.
pub fn is_valid_traceparent(text: &str) -> bool {
    text.parse::<SpanContext>().is_ok()
}

fn hex(text: &str, length: usize) -> Result<&str, InvalidContext> {
    let proper = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() == length && text.bytes().all(proper) { Ok(text) } else { Err(InvalidContext) }
}

#[cfg(test)]
mod tests {
    use super::{SpanContext, is_valid_traceparent};

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn good_ones_survive_the_round_trip() {
        for text in [GOOD, "00-00000000000000000000000000000001-0000000000000001-00"] {
            assert_eq!(text.parse::<SpanContext>().unwrap().to_string(), text);
        }
        assert!(is_valid_traceparent(&format!("{}-more", GOOD.replacen("00", "01", 1))));
    }

    #[test]
    fn malformed_ones_are_refused() {
        for text in [
            "",
            "00",
            "nonsense",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-é0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
        ] {
            assert!(!is_valid_traceparent(text), "{text}");
        }
    }
}
