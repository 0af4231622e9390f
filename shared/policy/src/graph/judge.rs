//! Reads the verdict of a judge (section 1.1.1 of the thesis: a number from 0, absolutely incorrect,
//! to 1, absolutely correct).

/// Maximum number of characters of a judge's output that a message repeats.
const SHOWN: usize = 80;

/// Why the output of a judge is not a valid verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadVerdict {
    /// The exit code says that it could not judge.
    #[error("the judge exited with code {0}: expected 0 or 1")]
    ExitCode(i32),
    /// The standard output is empty.
    #[error("the judge printed nothing: expected a score from 0 to 1 as its first word")]
    Nothing,
    /// The first word is not a score.
    #[error("the judge printed {0:?}: expected a score from 0 to 1 as its first word")]
    NoScore(String),
}

/// The score of a judge that exited with `exit_code` and printed `stdout`.
pub fn judged(exit_code: i32, stdout: &[u8]) -> Result<f64, BadVerdict> {
    if !(0..=1).contains(&exit_code) {
        return Err(BadVerdict::ExitCode(exit_code));
    }
    let text = String::from_utf8_lossy(stdout);
    let word = text.split_whitespace().next().ok_or(BadVerdict::Nothing)?;
    match word.parse::<f64>() {
        Ok(score) if (0.0..=1.0).contains(&score) => Ok(score.abs()),
        Ok(_) | Err(_) => Err(BadVerdict::NoScore(word.chars().take(SHOWN).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_the_score() {
        assert_eq!(judged(0, b"1\n"), Ok(1.0));
        assert_eq!(judged(1, b"  0.25 of the lines differ\n0.9"), Ok(0.25));
        assert_eq!(judged(1, b"-0").map(f64::is_sign_positive), Ok(true));
    }

    #[test]
    fn what_is_no_score_is_a_failure() {
        for printed in ["NaN", "inf", "-0.1", "1.0001", "yes", "0,5"] {
            assert_eq!(judged(0, printed.as_bytes()), Err(BadVerdict::NoScore(printed.into())), "{printed}");
        }
        assert_eq!(judged(0, b" \n"), Err(BadVerdict::Nothing));
        assert_eq!(judged(2, b"1"), Err(BadVerdict::ExitCode(2)));
    }
}
