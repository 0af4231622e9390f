//! Pages: a cursor is the place of the last row of the page before, so that a page costs the same wherever it is.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Serialize;

use crate::{StoreError, plain::whole};

/// Maximum size in bytes of the rows of a page: a reply is one message of at most 1 MiB.
const PAGE_BYTES_MAX: usize = 800 << 10;
const CURSOR_PREFIX: char = 'p';

/// The place that rows of the page come before; the first page starts after all places.
pub(crate) fn before(cursor: Option<&str>) -> Result<i64, StoreError> {
    let Some(text) = cursor else { return Ok(i64::MAX) };
    let place =
        text.strip_prefix(CURSOR_PREFIX).and_then(|place| place.parse().ok()).filter(|place| *place > 0);
    place.ok_or_else(|| forged(text))
}

fn forged(text: &str) -> StoreError {
    StoreError::Cursor { text: text.chars().take(80).collect() }
}

/// The cursor of the rows after the one at `place`.
pub(crate) fn cursor(place: i64) -> String {
    format!("{CURSOR_PREFIX}{place}")
}

/// The cursor of the rows after the one with these texts as its key. They may contain any character.
pub(crate) fn text_cursor<const N: usize>(key: &[String; N]) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::Value::from(key.as_slice()).to_string())
}

/// The key in a cursor that [`text_cursor`] made.
pub(crate) fn texts<const N: usize>(cursor: &str) -> Result<[String; N], StoreError> {
    let read = || {
        let parts: Vec<String> = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(cursor).ok()?).ok()?;
        // No stored text has the character 0, and PostgreSQL refuses it.
        let parts: [String; N] = parts.try_into().ok()?;
        parts.iter().all(|part| !part.contains('\0')).then_some(parts)
    };
    read().ok_or_else(|| forged(cursor))
}

/// The number in a part of a cursor.
pub(crate) fn number(part: &str, cursor: &str) -> Result<i64, StoreError> {
    part.parse().map_err(|_| forged(cursor))
}

/// The rows that fit into a page, and the key of the last one if more follow. `found` are the rows of a page and one
/// more, with their keys.
pub(crate) fn cut<K, T: Serialize>(found: Vec<(K, T)>, limit: usize) -> (Vec<T>, Option<K>) {
    let (mut rows, mut room, mut last) = (Vec::new(), PAGE_BYTES_MAX, None);
    for (key, row) in found {
        let size = serde_json::to_vec(&row).map_or(0, |json| json.len());
        // The first row is part of the page even if it is too large: otherwise pages would not advance.
        if rows.len() == limit || (size > room && !rows.is_empty()) {
            return (rows, last);
        }
        room = room.saturating_sub(size);
        rows.push(row);
        last = Some(key);
    }
    (rows, None)
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
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{PAGE_BYTES_MAX, before, cursor, cut, limit, text_cursor, texts};

    #[test]
    fn cursors_are_read_back_and_others_refused() {
        assert_eq!(before(Some(&cursor(7))).unwrap(), 7);
        assert_eq!(before(None).unwrap(), i64::MAX);
        for forged in ["", "p", "7", "p-7", "p0", "p1; DROP TABLE builds", "p99999999999999999999"] {
            assert!(before(Some(forged)).is_err(), "{forged}");
        }
    }

    proptest! {
        #[test]
        fn all_texts_are_read_back(one in "[^\0]*", other in "(\n|[^\0])*") {
            let key = [one, other];
            prop_assert_eq!(texts::<2>(&text_cursor(&key)).unwrap(), key);
        }
    }

    #[test]
    fn forged_texts_are_refused() {
        for forged in ["", "a", "a\nb", "WyJhIl0", &text_cursor(&["\0".to_owned(), String::new()])] {
            assert!(texts::<2>(forged).is_err(), "{forged:?}");
        }
    }

    #[test]
    fn pages_end_at_their_limits_and_have_a_row() {
        let rows =
            |size: usize, count: usize| (1..=count).map(|key| (key, "x".repeat(size))).collect::<Vec<_>>();
        assert_eq!(cut(rows(1, 3), 2), (vec!["x".to_owned(); 2], Some(2)));
        assert_eq!(cut(rows(1, 2), 2).1, None);
        let (large, next) = cut(rows(PAGE_BYTES_MAX, 2), 2);
        assert_eq!((large.len(), next), (1, Some(1)));
        let (found, next) = cut(rows(PAGE_BYTES_MAX / 4, 9), 9);
        assert_eq!((found.len(), next), (3, Some(3)));
    }

    #[test]
    fn pages_are_bounded() {
        assert_eq!(limit(None, 50).unwrap(), 50);
        assert!(limit(Some(0), 50).is_err() && limit(Some(1001), 50).is_err());
    }
}
