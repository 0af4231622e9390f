//! Errors as one line of text.

use std::error::Error;

/// Joins an error and its causes with `": "`.
///
/// A cause whose text already ends the line is left out: many errors print their source as well as returning it.
pub fn error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        next = cause.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::error_chain;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store")]
    struct Plain(#[source] Repeating);

    #[derive(Debug, thiserror::Error)]
    #[error("read failed: {0}")]
    struct Repeating(#[source] std::io::Error);

    #[test]
    fn causes_are_joined_once() {
        let error = Plain(Repeating(std::io::Error::other("disk gone")));
        assert_eq!(error_chain(&error), "cannot open the store: read failed: disk gone");
        assert_eq!(error_chain(&std::io::Error::other("alone")), "alone");
    }
}
