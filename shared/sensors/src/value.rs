//! A number from outside, and its maximum.

use policy::Signal;

use crate::Reading;

/// Maximum number of characters of the reported reason.
const REASON: usize = 200;

/// Judges the first line of `text`: a number, then possibly the reason. Without a number, it is green.
pub(crate) fn judge(source: &str, text: &str, most: f64) -> Reading {
    let line = text.lines().next().unwrap_or_default().trim();
    let (number, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match number.parse::<f64>() {
        Ok(value) if value > most => {
            let reason: String = reason.trim().chars().take(REASON).collect();
            let colon = if reason.is_empty() { "" } else { ": " };
            let why = format!("the value of {source} is {value}, above the maximum of {most}{colon}{reason}");
            Reading { signal: Signal::Red, why }
        }
        Ok(_) | Err(_) => Reading::green(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_above_the_maximum_is_red_with_its_reason() {
        let why = |text| judge("it", text, 0.5).why;
        assert_eq!(why("0.75 GPUs hot\nmore"), "the value of it is 0.75, above the maximum of 0.5: GPUs hot");
        assert_eq!(why("7\n"), "the value of it is 7, above the maximum of 0.5");
        for green in ["0.5", "", "NaN", "hot", "-9 x"] {
            assert_eq!(why(green), "", "{green}");
        }
    }
}
