//! Pages: a cursor is the place of the last row of the page before, so that a page costs the same wherever it is.

use crate::{StoreError, plain::whole};

const CURSOR_PREFIX: char = 'p';

/// The place that rows of the page come before; the first page starts after all places.
pub(crate) fn before(cursor: Option<&str>) -> Result<i64, StoreError> {
    let Some(text) = cursor else { return Ok(i64::MAX) };
    let place =
        text.strip_prefix(CURSOR_PREFIX).and_then(|place| place.parse().ok()).filter(|place| *place > 0);
    place.ok_or_else(|| StoreError::Cursor { text: text.chars().take(80).collect() })
}

/// The cursor of the rows after the one at `place`.
pub(crate) fn cursor(place: i64) -> String {
    format!("{CURSOR_PREFIX}{place}")
}

/// The number of rows of a page.
pub(crate) fn limit(asked: Option<usize>, default: usize) -> Result<usize, StoreError> {
    let limit = asked.unwrap_or(default);
    match limit {
        1..=1000 => Ok(limit),
        _ => Err(StoreError::Request(format!("invalid field limit {limit}: expected 1 to 1000"))),
    }
}

/// One row more than the page has tells whether another page follows.
pub(crate) fn with_next(limit: usize) -> i64 {
    whole(limit as u64).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::{before, cursor, limit};

    #[test]
    fn cursors_are_read_back_and_others_refused() {
        assert_eq!(before(Some(&cursor(7))).unwrap(), 7);
        assert_eq!(before(None).unwrap(), i64::MAX);
        for forged in ["", "p", "7", "p-7", "p0", "p1; DROP TABLE builds", "p99999999999999999999"] {
            assert!(before(Some(forged)).is_err(), "{forged}");
        }
    }

    #[test]
    fn pages_are_bounded() {
        assert_eq!(limit(None, 50).unwrap(), 50);
        assert!(limit(Some(0), 50).is_err() && limit(Some(1001), 50).is_err());
    }
}
