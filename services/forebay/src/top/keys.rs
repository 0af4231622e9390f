//! Keys of a terminal in raw mode.

use console::Key;

const ESCAPE: char = '\u{1b}';

/// The keys in bytes that came together. Keys without a meaning here are left out.
pub(super) fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.chars();
    let mut found = Vec::new();
    while let Some(first) = rest.next() {
        let after = rest.as_str();
        found.extend(match first {
            ESCAPE if after.is_empty() || after.starts_with(ESCAPE) => Some(Key::Escape),
            ESCAPE if after.starts_with(['[', 'O']) => {
                rest.next();
                sequence(&mut rest)
            }
            '\r' | '\n' => Some(Key::Enter),
            '\t' => Some(Key::Tab),
            '\u{8}' | '\u{7f}' => Some(Key::Backspace),
            '\u{3}' => Some(Key::CtrlC),
            // An escape before a character is Alt, which changes nothing.
            control if control.is_control() => None,
            character => Some(Key::Char(character)),
        });
    }
    found
}

/// The key of a control sequence: parameters, then one character from `@` on.
fn sequence(rest: &mut std::str::Chars<'_>) -> Option<Key> {
    let mut parameters = String::new();
    let last = rest.find(|character| {
        let is_last = ('@'..='~').contains(character);
        if !is_last {
            parameters.push(*character);
        }
        is_last
    });
    match (last?, parameters.split(';').next()?) {
        ('A', _) => Some(Key::ArrowUp),
        ('B', _) => Some(Key::ArrowDown),
        ('C', _) => Some(Key::ArrowRight),
        ('D', _) => Some(Key::ArrowLeft),
        ('H', _) | ('~', "1" | "7") => Some(Key::Home),
        ('F', _) | ('~', "4" | "8") => Some(Key::End),
        ('Z', _) => Some(Key::BackTab),
        ('~', "5") => Some(Key::PageUp),
        ('~', "6") => Some(Key::PageDown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_known_by_what_terminals_send() {
        use Key::{
            ArrowDown, ArrowLeft, ArrowRight, ArrowUp, BackTab, Backspace, Char, CtrlC, End, Enter, Escape,
            Home, PageDown, PageUp, Tab,
        };
        for (sent, expected) in [
            ("q", vec![Char('q')]),
            ("gG\u{e4}\u{4f60}", vec![Char('g'), Char('G'), Char('\u{e4}'), Char('\u{4f60}')]),
            ("\r\t\u{7f}\u{8}\u{3}", vec![Enter, Tab, Backspace, Backspace, CtrlC]),
            ("\u{1b}", vec![Escape]),
            ("\u{1b}\u{1b}[A", vec![Escape, ArrowUp]),
            ("\u{1b}[A\u{1b}[B\u{1b}[C\u{1b}[D", vec![ArrowUp, ArrowDown, ArrowRight, ArrowLeft]),
            ("\u{1b}OA\u{1b}OH\u{1b}OF", vec![ArrowUp, Home, End]),
            ("\u{1b}[1;5B", vec![ArrowDown]),
            ("\u{1b}[5~\u{1b}[6~\u{1b}[1~\u{1b}[4~\u{1b}[Z", vec![PageUp, PageDown, Home, End, BackTab]),
            ("\u{1b}[15~\u{1b}[3~\u{1}", vec![]),
            ("\u{1b}x", vec![Char('x')]),
            ("\u{1b}[12", vec![]),
        ] {
            assert_eq!(keys(sent.as_bytes()), expected, "{sent:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(keys(&bytes).len() <= bytes.len());
        }
    }
}
