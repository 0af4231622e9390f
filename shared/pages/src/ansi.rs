//! Console output as HTML: colours and weights of the terminal's codes become classes, all other codes are left out.

use std::fmt::Write as _;

use maud::{Markup, PreEscaped, Render as _};
use vte::{Params, Parser, Perform};

/// What the codes so far say about the text that follows. It continues from line to line.
#[derive(Default)]
pub(super) struct Colours {
    parser: Parser,
    style: Style,
}

/// Weights and lines of a text: the code that starts one, the code that ends it, and its class.
const MARKS: [(u16, u16, &str); 5] = [(1, 22, "b"), (2, 22, "d"), (3, 23, "i"), (4, 24, "u"), (7, 27, "v")];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Style {
    /// One of the 16 colours of terminals.
    front: Option<u8>,
    back: Option<u8>,
    /// Which of [`MARKS`] are on.
    marks: [bool; MARKS.len()],
}

/// A line while it is made.
struct Line<'a> {
    style: &'a mut Style,
    html: String,
    /// Text in one style.
    text: String,
    /// Whether styles are left out.
    plain: bool,
}

impl Colours {
    /// A line of output.
    pub(super) fn line(&mut self, text: &str) -> Markup {
        let mut line =
            Line { style: &mut self.style, html: String::new(), text: String::new(), plain: false };
        self.parser.advance(&mut line, text.as_bytes());
        line.close();
        PreEscaped(line.html)
    }
}

/// A line of output without colours.
pub(super) fn plain(text: &str) -> Markup {
    let mut style = Style::default();
    let mut line = Line { style: &mut style, html: String::new(), text: String::new(), plain: true };
    Parser::new().advance(&mut line, text.as_bytes());
    line.close();
    PreEscaped(line.html)
}

impl Line<'_> {
    /// Ends the text in one style.
    fn close(&mut self) {
        if self.text.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.text);
        let class = self.style.class();
        let escaped = text.as_str().render().into_string();
        if class.is_empty() || self.plain {
            self.html.push_str(&escaped);
        } else {
            // Writing to a String cannot fail.
            let _ = write!(self.html, "<span class=\"{class}\">{escaped}</span>");
        }
    }
}

impl Perform for Line<'_> {
    fn print(&mut self, c: char) {
        // Characters that turn the direction of the text would show another text than the build printed.
        match c {
            '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                self.text.extend(c.escape_unicode());
            }
            c => self.text.push(c),
        }
    }

    fn execute(&mut self, byte: u8) {
        match byte {
            b'\t' => self.text.push('\t'),
            // What a progress bar overwrites is not shown.
            b'\r' => {
                self.html.clear();
                self.text.clear();
            }
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, params: &Params, _: &[u8], _: bool, action: char) {
        if action == 'm' {
            self.close();
            self.style.apply(params);
        }
    }
}

impl Style {
    fn apply(&mut self, params: &Params) {
        let mut codes = params.iter().map(|param| param.first().copied().unwrap_or(0));
        while let Some(code) = codes.next() {
            match code {
                0 => *self = Self::default(),
                30..=37 => self.front = u8::try_from(code - 30).ok(),
                38 => self.front = extended(&mut codes),
                39 => self.front = None,
                40..=47 => self.back = u8::try_from(code - 40).ok(),
                48 => self.back = extended(&mut codes),
                49 => self.back = None,
                90..=97 => self.front = u8::try_from(code - 82).ok(),
                100..=107 => self.back = u8::try_from(code - 92).ok(),
                code => {
                    for (is_on, (on, off, _)) in self.marks.iter_mut().zip(MARKS) {
                        *is_on = code == on || (*is_on && code != off);
                    }
                }
            }
        }
    }

    fn class(self) -> String {
        let colour = |letter: char, colour: Option<u8>| colour.map(|number| format!("{letter}{number}"));
        let marks = self.marks.into_iter().zip(MARKS).filter(|(is_on, _)| *is_on);
        let marks = marks.map(|(_, (_, _, class))| class.to_owned());
        colour('f', self.front)
            .into_iter()
            .chain(colour('g', self.back))
            .chain(marks)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// One of the 16 colours for `5;N`; the others, and `2;R;G;B`, have no class.
fn extended(codes: &mut impl Iterator<Item = u16>) -> Option<u8> {
    match codes.next() {
        Some(5) => codes.next().and_then(|number| u8::try_from(number).ok()).filter(|number| *number < 16),
        Some(2) => {
            codes.by_ref().take(3).for_each(drop);
            None
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Colours, plain};

    fn html(lines: &[&str]) -> Vec<String> {
        let mut colours = Colours::default();
        lines.iter().map(|line| colours.line(line).into_string()).collect()
    }

    #[test]
    fn colours_become_classes_and_continue_in_the_next_line() {
        assert_eq!(
            html(&["a\u{1b}[1;31mb", "c\u{1b}[0md\u{1b}[38;5;12me\u{1b}[38;2;1;2;3mf\u{1b}[7mg"]),
            [
                "a<span class=\"f1 b\">b</span>",
                "<span class=\"f1 b\">c</span>d<span class=\"f12\">e</span>f<span class=\"v\">g</span>"
            ]
        );
    }

    #[test]
    fn a_plain_line_has_no_colours() {
        assert_eq!(plain("a\u{1b}[31m<b>\u{1b}[0m").into_string(), "a&lt;b&gt;");
    }

    #[test]
    fn nothing_of_the_output_is_html_and_no_code_but_colours_remains() {
        assert_eq!(
            html(&["<script>alert(1)</script>&\""]),
            ["&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;"]
        );
        // A link, a title, a move of the cursor, and what a progress bar overwrote.
        let line = "\u{1b}]8;;javascript:alert(1)\u{7}x\u{1b}]8;;\u{7}\u{1b}]0;t\u{7}\u{1b}[2Ky";
        assert_eq!(html(&[line, "10 %\r20 %", "a\u{202e}b"]), ["xy", "20 %", "a\\u{202e}b"]);
    }

    proptest! {
        #[test]
        fn any_output_gives_balanced_html(bytes in prop::collection::vec(prop_oneof![
            Just(0x1b_u8), Just(b'['), Just(b']'), Just(b'm'), Just(b';'), Just(b'<'), Just(b'3'), Just(b'1'), any::<u8>()
        ], 0..60)) {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let shown = html(&[&text]).concat();
            let tags = shown.matches('<').count();
            prop_assert_eq!(tags, shown.matches("<span class=\"").count() + shown.matches("</span>").count());
            prop_assert_eq!(shown.matches("<span").count(), shown.matches("</span>").count());
        }
    }
}
