//! Public keys of users.

use std::{fmt, str::FromStr};

use nkeys::KeyPair;

/// Public key of a user of NATS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(String);

impl PublicKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn of(pair: &KeyPair) -> Self {
        Self(pair.public_key())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not the public key of a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A seed must not be where public keys are: it is a secret.
    #[error(
        "this is a seed, which is secret: give the public key, which begins with U, and make a new key for this user"
    )]
    Seed,
    /// The text is not shown: it may be most of a seed.
    #[error("invalid public key: expected the nkey of a user, 56 letters and digits that begin with U")]
    Invalid,
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with('S') && KeyPair::from_seed(text).is_ok() {
            return Err(KeyError::Seed);
        }
        let valid = text.starts_with('U') && KeyPair::from_public_key(text).is_ok();
        if valid { Ok(Self(text.to_owned())) } else { Err(KeyError::Invalid) }
    }
}
