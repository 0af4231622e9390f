//! Sizes and times as text, for the command line and the pages.

use model::Millis;

/// The last millisecond of the year 9999: dates have four digits for the year.
const LATEST: Millis = Millis(253_402_300_799_999);

/// Formats a size in bytes, e.g. `1.5 MB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.5 {
            let digits = usize::from(unit != "B" && value < 99.95);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// Formats an instant in RFC 3339. Times after the year 9999, of a broken writer, are shown as the end of that year.
pub fn date(at: Millis) -> String {
    humantime::format_rfc3339_seconds(at.min(LATEST).into()).to_string()
}

#[cfg(test)]
mod tests {
    use super::{Millis, date, size};

    #[test]
    fn sizes() {
        for (bytes, text) in [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB")] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(4_200_000_000), "4.2 GB");
        assert_eq!(size(u64::MAX), "18446744.1 TB");
    }

    #[test]
    fn any_time_has_a_date() {
        assert_eq!(date(Millis(0)), "1970-01-01T00:00:00Z");
        assert_eq!(date(Millis(u64::MAX)), "9999-12-31T23:59:59Z");
    }
}
