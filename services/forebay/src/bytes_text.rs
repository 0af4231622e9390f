//! Sizes, durations and times as text.

use std::time::Duration;

use client::text::date;
pub(crate) use client::text::size;
use model::Millis;

/// Formats seconds, e.g. `0.123 s`, `12.3 s` or `5m 2s`.
pub(crate) fn seconds(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{seconds:.3} s");
    }
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    humantime::format_duration(Duration::from_secs(whole)).to_string()
}

/// Formats an approximate duration: rounded to seconds below two minutes, to minutes above.
pub(crate) fn about(span: Duration) -> String {
    let whole = span.as_secs_f64().round();
    let step = if whole < 120.0 { 1.0 } else { 60.0 };
    let rounded = Duration::try_from_secs_f64((whole / step).round() * step).unwrap_or_default();
    humantime::format_duration(rounded.max(Duration::from_secs(1))).to_string()
}

/// The time between two instants in the format of [`seconds`].
pub(crate) fn span(from: Millis, to: Millis) -> String {
    seconds(to.since(from).as_secs_f64())
}

/// Formats an instant and its age.
pub(crate) fn instant(at: Millis, now: Millis) -> String {
    format!("{} ({} ago)", date(at), age(at, now))
}

/// The age of an instant in its two largest units.
pub(crate) fn age(at: Millis, now: Millis) -> String {
    let whole = now.since(at).as_secs();
    let step = match whole {
        0..3600 => 1,
        3600..86_400 => 60,
        _ => 3600,
    };
    humantime::format_duration(Duration::from_secs(whole / step * step)).to_string()
}

#[cfg(test)]
mod tests {
    use super::{Duration, Millis, about, age, instant, seconds};

    #[test]
    fn times() {
        assert_eq!(seconds(0.0123), "0.012 s");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(302.9), "5m 2s");
        assert_eq!(about(Duration::from_millis(12_600)), "13s");
        assert_eq!(about(Duration::from_secs(302)), "5m");
        assert_eq!(about(Duration::from_millis(40)), "1s");
        assert_eq!(age(Millis(0), Millis(90_061_000)), "1day 1h");
        assert_eq!(age(Millis(0), Millis(3_661_000)), "1h 1m");
        assert_eq!(age(Millis(5000), Millis(0)), "0s");
        assert_eq!(instant(Millis(0), Millis(1000)), "1970-01-01T00:00:00Z (1s ago)");
        assert_eq!(instant(Millis(u64::MAX), Millis(0)), "9999-12-31T23:59:59Z (0s ago)");
    }
}
