//! Times that a program reports itself, in a file among its outputs.

use model::JobPath;
use serde_json::Value;

/// Maximum bytes of the file.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
/// Maximum number of times.
const TIMES_MAX: usize = 1000;
/// Maximum time in seconds: a larger number is a mistake.
const SECONDS_MAX: f64 = 1e9;

/// Reads the times in microseconds from a file at `path`. It contains numbers of seconds between white space, or is a
/// JSON document, of which all numbers count.
pub(crate) fn times_us(path: &JobPath, content: &[u8]) -> Result<Vec<u64>, String> {
    let wrong = |why: String| format!("cannot read the times in {path}: {why}");
    let text = std::str::from_utf8(content).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    let mut times = Vec::new();
    if text.trim_start().starts_with(['[', '{']) {
        let document = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        numbers(&document, &mut |number| add(&mut times, number.as_f64(), &number.to_string()))
            .map_err(wrong)?;
    } else {
        for word in text.split_whitespace() {
            add(&mut times, word.parse().ok(), word).map_err(wrong)?;
        }
    }
    if times.is_empty() { Err(wrong("it has no numbers".to_owned())) } else { Ok(times) }
}

fn numbers(
    value: &Value,
    take: &mut impl FnMut(&serde_json::Number) -> Result<(), String>,
) -> Result<(), String> {
    match value {
        Value::Number(number) => take(number),
        Value::Array(values) => values.iter().try_for_each(|value| numbers(value, take)),
        Value::Object(values) => values.values().try_for_each(|value| numbers(value, take)),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is at least 0, and its microseconds are far below 2^63"
)]
fn add(times: &mut Vec<u64>, seconds: Option<f64>, text: &str) -> Result<(), String> {
    let Some(seconds) = seconds.filter(|seconds| (0.0..=SECONDS_MAX).contains(seconds)) else {
        let shown: String = text.chars().take(40).collect();
        return Err(format!("{shown:?} is not a number of seconds from 0 to {SECONDS_MAX}"));
    };
    if times.len() >= TIMES_MAX {
        return Err(format!("it has more than {TIMES_MAX} numbers"));
    }
    times.push((seconds * 1e6).round() as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Result<Vec<u64>, String> {
        times_us(&JobPath::parse("t").unwrap(), content.as_bytes())
    }

    #[test]
    fn lines_and_json_give_the_same_times() {
        let expected = Ok(vec![1_500_000, 1, 0]);
        for content in
            ["1.5\n0.000001\n0\n", " 1.5 1e-6 0 ", "[1.5, 1e-6, 0]", r#"{"a": [1.5, {"b": 1e-6}], "c": 0}"#]
        {
            assert_eq!(read(content), expected, "{content}");
        }
        assert_eq!(read(r#"{"name": "qsort", "seconds": 2}"#), Ok(vec![2_000_000]));
    }

    #[test]
    fn what_is_no_time_is_named() {
        for (content, why) in [
            ("1.5 fast", r#""fast" is not a number of seconds from 0 to 1000000000"#),
            ("-1", r#""-1" is not a number of seconds"#),
            ("nan", r#""nan" is not"#),
            ("[1, -2]", r#""-2" is not"#),
            ("", "it has no numbers"),
            ("[]", "it has no numbers"),
            ("[1,", "EOF"),
        ] {
            let error = read(content).unwrap_err();
            assert!(error.starts_with("cannot read the times in t: ") && error.contains(why), "{error}");
        }
        assert_eq!(read(&"1 ".repeat(1000)).map(|times| times.len()), Ok(1000));
        assert!(read(&"1 ".repeat(1001)).unwrap_err().contains("more than 1000"));
        assert!(times_us(&JobPath::parse("t").unwrap(), b"\xff").unwrap_err().contains("UTF-8"));
    }
}
