//! Built-in judges: compare a file with the expected one, and score how much of it is right.

use model::CompareRule;

/// Maximum number of characters of a word or line that a difference shows.
const SHOWN_MAX: usize = 60;

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Share of the words or lines that are right, of the file that has more of them: 0 to 1. It is 1 only without
    /// any difference between them.
    pub score: f64,
    /// The first difference as text; absent if there is none.
    pub difference: Option<String>,
}

/// Compares the content `found` with the `expected` one by `rule`.
pub fn judge(rule: CompareRule, found: &[u8], expected: &[u8]) -> Judgement {
    match rule {
        CompareRule::Exact => exact(found, expected),
        CompareRule::Whitespace => in_order(words(found), words(expected), |a, b| a == b),
        CompareRule::Float { absolute, relative } => {
            in_order(words(found), words(expected), |a, b| a == b || are_close(a, b, absolute, relative))
        }
        CompareRule::UnorderedLines => in_any_order("line", lines(found), lines(expected)),
        CompareRule::UnorderedTokens => in_any_order("word", words(found), words(expected)),
    }
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// The lines without white space at their ends, except empty ones.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty())
}

fn exact(found: &[u8], expected: &[u8]) -> Judgement {
    if found == expected {
        return Judgement { score: 1.0, difference: None };
    }
    let same = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let (has, wanted) = (found.len(), expected.len());
    let difference = if same == has.min(wanted) {
        format!("it has {has} bytes, expected {wanted}; the first {same} are the same")
    } else {
        format!("byte {} differs", same + 1)
    };
    Judgement { score: 0.0, difference: Some(difference) }
}

fn in_order<'a>(
    mut found: impl Iterator<Item = &'a [u8]>,
    mut expected: impl Iterator<Item = &'a [u8]>,
    is_same: impl Fn(&[u8], &[u8]) -> bool,
) -> Judgement {
    let (mut same, mut all, mut difference) = (0_u64, 0_u64, None);
    loop {
        let pair = (found.next(), expected.next());
        if pair == (None, None) {
            break;
        }
        all += 1;
        if matches!(pair, (Some(a), Some(b)) if is_same(a, b)) {
            same += 1;
            continue;
        }
        difference.get_or_insert_with(|| match pair {
            (Some(a), Some(b)) => format!("word {all} is {}, expected {}", shown(a), shown(b)),
            (Some(a), None) => format!("word {all} is {}, expected the end", shown(a)),
            (None, Some(b)) => format!("word {all} is missing, expected {}", shown(b)),
            (None, None) => String::new(),
        });
    }
    Judgement { score: share(same, all), difference }
}

fn in_any_order<'a>(
    what: &str,
    found: impl Iterator<Item = &'a [u8]>,
    expected: impl Iterator<Item = &'a [u8]>,
) -> Judgement {
    let sorted = |parts: &mut dyn Iterator<Item = &'a [u8]>| {
        let mut parts: Vec<&[u8]> = parts.collect();
        parts.sort_unstable();
        parts
    };
    let (found, expected) = (sorted(&mut { found }), sorted(&mut { expected }));
    let all = found.len().max(expected.len()) as u64;
    let (mut same, mut missing, mut extra) = (0_u64, None, None);
    let (mut found, mut expected) = (found.into_iter().peekable(), expected.into_iter().peekable());
    loop {
        match (found.peek().copied(), expected.peek().copied()) {
            (None, None) => break,
            (Some(a), Some(b)) if a == b => {
                same += 1;
                found.next();
                expected.next();
            }
            (Some(a), b) if b.is_none_or(|b| a < b) => {
                extra.get_or_insert(a);
                found.next();
            }
            (_, b) => {
                missing = missing.or(b);
                expected.next();
            }
        }
    }
    let difference = match (missing, extra) {
        (Some(missing), _) => Some(format!("{what} {} is missing", shown(missing))),
        (None, Some(extra)) => Some(format!("{what} {} is not expected, or not as often", shown(extra))),
        (None, None) => None,
    };
    Judgement { score: share(same, all), difference }
}

fn share(same: u64, all: u64) -> f64 {
    if all == 0 { 1.0 } else { same as f64 / all as f64 }
}

/// Whether both words are numbers, and differ by at most one of the tolerances.
fn are_close(found: &[u8], expected: &[u8], absolute: f64, relative: f64) -> bool {
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<f64>().ok();
    let (Some(found), Some(expected)) = (number(found), number(expected)) else { return false };
    if !found.is_finite() || !expected.is_finite() {
        return found.total_cmp(&expected).is_eq() || (found.is_nan() && expected.is_nan());
    }
    let difference = (found - expected).abs();
    difference <= absolute || difference <= relative * expected.abs()
}

fn shown(part: &[u8]) -> String {
    let text = String::from_utf8_lossy(part);
    let start: String = text.chars().take(SHOWN_MAX).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{start:?}{more}")
}

#[cfg(test)]
mod tests;
