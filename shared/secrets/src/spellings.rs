//! How programs spell a secret in their output.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use zeroize::Zeroizing;

use crate::{SECRET_BYTES_MIN, Secret};

/// Minimum length of a line of a secret that is masked on its own, in bytes.
const LINE_MIN: usize = 8;
/// What RFC 3986 leaves as it is.
const STRICT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// What `encodeURIComponent` of JavaScript leaves as it is.
const COMPONENT: AsciiSet = STRICT.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')');
/// What stays in a path.
const PATH: AsciiSet = STRICT.remove(b'/');

/// A text to search for, without line breaks; cleared when it is dropped.
pub(crate) type Spelling = Zeroizing<Vec<u8>>;

/// Line breaks do not count when secrets are searched for: programs cut long lines anywhere.
pub(crate) fn is_skipped(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

/// All spellings of these secrets, without line breaks: output is searched without them, so that lines may be cut anywhere.
pub(crate) fn spellings<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Vec<Spelling> {
    let mut found = Vec::new();
    for secret in secrets {
        let core = secret.core();
        put_quoted(&mut found, core);
        put_base64(&mut found, core);
        // A program may print it with the line break of its file.
        put_base64(&mut found, secret.reveal());
        put_hex(&mut found, core);
        put_url(&mut found, core);
        for line in core.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            if line.len() >= LINE_MIN {
                put_quoted(&mut found, line);
            }
        }
    }
    found.retain(|spelling| spelling.len() >= SECRET_BYTES_MIN);
    found.sort_unstable_by(|one, other| one.as_slice().cmp(other));
    found.dedup();
    found
}

fn put(found: &mut Vec<Spelling>, text: impl Into<Vec<u8>>) {
    let mut text: Spelling = Zeroizing::new(text.into());
    text.retain(|byte| !is_skipped(*byte));
    found.push(text);
}

/// As it is, in a string of JSON, and in quotes of a shell.
fn put_quoted(found: &mut Vec<Spelling>, value: &[u8]) {
    put(found, value);
    let Ok(text) = std::str::from_utf8(value) else { return };
    if let Ok(json) = serde_json::to_string(text) {
        put(found, json.trim_matches('"'));
    }
    put(found, text.replace('\'', r"'\''"));
}

/// As a part of a longer encoded text, at each of the three places in a group, and at its end.
fn put_base64(found: &mut Vec<Spelling>, value: &[u8]) {
    for before in 0..3_usize {
        let mut whole = Zeroizing::new(vec![0; before]);
        whole.extend_from_slice(value);
        // Characters that depend on the bytes before.
        let foreign = (before * 8).div_ceil(6);
        let own = whole.len() * 8 / 6;
        for encoded in [STANDARD.encode(&*whole), URL_SAFE.encode(&*whole)] {
            put(found, encoded.get(foreign..own).unwrap_or_default());
            put(found, encoded.get(foreign..).unwrap_or_default());
        }
        let open = STANDARD_NO_PAD.encode(&*whole);
        put(found, open.get(foreign..).unwrap_or_default());
        put(found, open.get(foreign..).unwrap_or_default().replace('+', "-").replace('/', "_"));
    }
}

fn put_hex(found: &mut Vec<Spelling>, value: &[u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |half: u8| DIGITS.get(usize::from(half)).copied().unwrap_or_default();
    let hex: Vec<u8> = value.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
    put(found, hex.to_ascii_uppercase());
    put(found, hex);
}

/// In a URL or a form.
fn put_url(found: &mut Vec<Spelling>, value: &[u8]) {
    for left in [&STRICT, &COMPONENT, &PATH] {
        let upper = percent_encode(value, left).to_string();
        for upper in [upper.replace("%20", "+"), upper] {
            put(found, lower_escapes(&upper));
            put(found, upper);
        }
    }
}

/// The same with lower-case letters in its escapes.
fn lower_escapes(text: &str) -> String {
    let mut left = 0_u8;
    let lower = |character: char| {
        if character == '%' {
            left = 2;
            return character;
        }
        let is_escape = left > 0;
        left = left.saturating_sub(1);
        if is_escape { character.to_ascii_lowercase() } else { character }
    };
    text.chars().map(lower).collect()
}
