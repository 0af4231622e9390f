//! API keys: random secrets, of which the access rules contain only the hash.

use std::{fmt, str::FromStr};

use model::hex;
use ring::rand::{SecureRandom as _, SystemRandom};
use sha2::{Digest as _, Sha256};

/// First characters of every key, by which scanners of source code recognise it.
const PREFIX: &str = "fbk_";
const RANDOM_BYTES: usize = 32;
/// Hexadecimal digits of the checksum, by which a mistyped key is recognised without the rules.
const CHECK_DIGITS: usize = 8;

/// An API key: `fbk_`, 64 random hexadecimal digits, and 8 digits of their checksum. It is never logged.
pub struct ApiKey(String);

impl ApiKey {
    /// Makes a key of 256 random bits.
    ///
    /// # Errors
    ///
    /// Fails if the system has no random numbers.
    pub fn generate() -> Result<Self, NoRandomNumbers> {
        let mut random = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| NoRandomNumbers)?;
        let digits = hex(&random);
        Ok(Self(format!("{PREFIX}{digits}{}", checksum(&digits))))
    }

    /// The key of a text; none if the text is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(PREFIX)?;
        let (random, check) = digits.split_at_checked(2 * RANDOM_BYTES)?;
        (check == checksum(random)).then(|| Self(text.to_owned()))
    }

    /// Whether a text looks like a key, also a mistyped one.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.0)
    }

    /// The key as the client sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// The system gives no random numbers.
#[derive(Debug, thiserror::Error)]
#[error("the system gives no random numbers")]
pub struct NoRandomNumbers;

/// SHA-256 of a credential. A key has enough random bits that a fast hash does not reveal it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub(crate) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hexadecimal digits")]
pub struct InvalidHash;

impl FromStr for KeyHash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidHash);
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            let digits = text.get(at..at + 2).ok_or(InvalidHash)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| InvalidHash)?;
        }
        Ok(Self(bytes))
    }
}

fn checksum(digits: &str) -> String {
    let mut hash = hex(&Sha256::digest(digits.as_bytes()));
    hash.truncate(CHECK_DIGITS);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_recognised_and_no_other_text_is() {
        let key = ApiKey::generate().unwrap();
        let text = key.reveal().to_owned();
        assert_eq!(text.len(), 76);
        assert_eq!(ApiKey::parse(&text).unwrap().hash(), key.hash());
        assert_ne!(ApiKey::generate().unwrap().hash(), key.hash());
        let mut typo = text.clone().into_bytes();
        typo[10] = if typo[10] == b'0' { b'1' } else { b'0' };
        for wrong in [
            String::from_utf8(typo).unwrap(),
            text[1..].to_owned(),
            format!("{text}0"),
            "fbk_".into(),
            "fbk_é".repeat(30),
        ] {
            assert!(ApiKey::parse(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_hash_reads_what_it_writes() {
        let hash = KeyHash::of("a");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string(), "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb");
        for wrong in ["", "zz", &"é".repeat(32), &"+1".repeat(32)] {
            assert!(wrong.parse::<KeyHash>().is_err(), "{wrong}");
        }
    }
}
