//! Subresource integrity: `sha256-BASE64`, several separated by spaces.

use base64::{
    Engine as _,
    engine::{
        DecodePaddingMode,
        general_purpose::{GeneralPurpose, GeneralPurposeConfig},
    },
};
use hashing::ContentHasher;
use invariant::Present as _;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Incremental check of content against expected hashes.
#[derive(Debug, Clone)]
pub(crate) struct Checksum {
    state: State,
    /// The content must match one of these.
    expected: Vec<Vec<u8>>,
}

#[derive(Debug, Clone)]
enum State {
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
}

impl Checksum {
    /// Parses the hashes. Only those of the strongest kind count, and one of them must match.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut best: Option<(u16, Vec<Vec<u8>>)> = None;
        for word in text.split_ascii_whitespace() {
            let (name, rest) =
                word.split_once('-').ok_or_else(|| format!("invalid hash {word:?}: expected NAME-BASE64"))?;
            // Options after a question mark are ignored: none are defined.
            let value = rest.split('?').next().present("a split text has no first part");
            let bits = match name {
                "sha256" => 256,
                "sha384" => 384,
                "sha512" => 512,
                _ => return Err(format!("unknown hash {name:?}: expected sha256, sha384 or sha512")),
            };
            let hash = LENIENT.decode(value).map_err(|error| format!("invalid base64 {value:?}: {error}"))?;
            if hash.len() * 8 != usize::from(bits) {
                return Err(format!("invalid hash {word:?}: it has {} bytes", hash.len()));
            }
            match best.as_mut() {
                Some((strength, hashes)) if *strength == bits => hashes.push(hash),
                Some((strength, _)) if *strength > bits => {}
                Some(_) | None => best = Some((bits, vec![hash])),
            }
        }
        let (bits, expected) = best.ok_or("expected a hash")?;
        let state = match bits {
            256 => State::Sha256(Sha256::new()),
            384 => State::Sha384(Sha384::new()),
            _ => State::Sha512(Sha512::new()),
        };
        Ok(Self { state, expected })
    }
}

impl ContentHasher for Checksum {
    /// Whether the content matches an expected hash.
    type Output = bool;

    fn update(&mut self, piece: &[u8]) {
        match &mut self.state {
            State::Sha256(hasher) => hasher.update(piece),
            State::Sha384(hasher) => hasher.update(piece),
            State::Sha512(hasher) => hasher.update(piece),
        }
    }

    fn finish(self) -> bool {
        let found = match self.state {
            State::Sha256(hasher) => hasher.finalize().to_vec(),
            State::Sha384(hasher) => hasher.finalize().to_vec(),
            State::Sha512(hasher) => hasher.finalize().to_vec(),
        };
        self.expected.contains(&found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO_256: &str = "sha256-LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=";
    const HELLO_384: &str = "sha384-WeF0h3dEjGnPqi4zOzkXfxQoNhWyr/bE5wO9E4dM2Cz/O1JwgYwDwjHkqO1ZVTTP";

    fn holds(text: &str, content: &[u8]) -> bool {
        let mut checksum = Checksum::parse(text).unwrap();
        content.chunks(2).for_each(|piece| checksum.update(piece));
        checksum.finish()
    }

    #[test]
    fn content_is_checked() {
        assert!(holds(HELLO_256, b"hello"));
        assert!(!holds(HELLO_256, b"hell"));
        assert!(holds(HELLO_256.trim_end_matches('='), b"hello"), "padding may be left out");
        let other = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        assert!(holds(&format!("{other} {HELLO_256}"), b"hello"), "any of one kind will do");
        assert_eq!(holds(&format!("{other} {HELLO_384}"), b"hello"), holds(HELLO_384, b"hello"));
    }

    #[test]
    fn what_is_no_checksum_is_refused() {
        for bad in ["", "sha256", "md5-abcd", "sha256-!!!", "sha256-abcd", "sha1-LPJN"] {
            assert!(Checksum::parse(bad).is_err(), "{bad:?}");
        }
    }
}
