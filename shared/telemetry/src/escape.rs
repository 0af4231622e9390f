//! Text from users in logs, consoles and terminals.

/// `text` with escaped control characters, e.g. `\n` or `\u{1b}`: it stays in its line and does not control a terminal.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("a\u{1b}[31m\tb\n\u{9b}ü"), "a\\u{1b}[31m\\tb\\n\\u{9b}ü");
    }
}
