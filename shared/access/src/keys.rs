//! Keys of users. The description has their public part; a seed is a secret in a file of its own.

use std::{fmt, str::FromStr};

use model::hex;
use nkeys::{KeyPair, KeyPairType};
use sha2::{Digest as _, Sha256};

/// Public key of a user of NATS.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(String);

impl PublicKey {
    pub fn as_str(&self) -> &str {
        &self.0
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

/// SHA-256 of the password of a user of Redis.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RedisHash(String);

impl fmt::Display for RedisHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not the hash of a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid hash of a password: expected 64 hexadecimal digits in lower case")]
pub struct HashError;

impl FromStr for RedisHash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() == 64 && text.bytes().all(good) { Ok(Self(text.to_owned())) } else { Err(HashError) }
    }
}

/// A key of a service: its public key, and the hash of its password of Redis if it uses Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceKey {
    pub public: PublicKey,
    pub redis: Option<RedisHash>,
}

/// The keys of a user, oldest first: one, or two during a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys<K> {
    pub current: K,
    pub next: Option<K>,
}

impl<K> Keys<K> {
    /// One key, without a rotation in progress.
    pub fn one(current: K) -> Self {
        Self { current, next: None }
    }

    /// All keys, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        std::iter::once(&self.current).chain(&self.next)
    }
}

/// The secret of a user, from which its key pair and its password of Redis follow. Never printed.
#[derive(Clone)]
pub struct Seed {
    text: String,
    public: PublicKey,
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seed").field("public", &self.public).finish_non_exhaustive()
    }
}

/// A seed that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    #[error("a new key could not be made")]
    New(#[source] nkeys::error::Error),
    /// The text is not shown: it may be most of a seed.
    #[error("it is not the seed of a user, which begins with SU")]
    Invalid,
}

/// Separates the password from other uses of the seed.
const REDIS: &str = "forebay: password of Redis\n";

impl Seed {
    /// Makes a new key.
    ///
    /// # Errors
    ///
    /// Fails if the machine has no random numbers.
    pub fn generate() -> Result<Self, SeedError> {
        Self::of(&KeyPair::new_user())
    }

    /// Reads a seed, which may end with white space.
    ///
    /// # Errors
    ///
    /// Fails if the text is not the seed of a user.
    pub fn parse(text: &str) -> Result<Self, SeedError> {
        let pair = KeyPair::from_seed(text.trim()).map_err(|_| SeedError::Invalid)?;
        match pair.key_pair_type() {
            KeyPairType::User => Self::of(&pair),
            KeyPairType::Server
            | KeyPairType::Cluster
            | KeyPairType::Operator
            | KeyPairType::Account
            | KeyPairType::Module
            | KeyPairType::Service
            | KeyPairType::Curve => Err(SeedError::Invalid),
        }
    }

    fn of(pair: &KeyPair) -> Result<Self, SeedError> {
        let text = pair.seed().map_err(SeedError::New)?;
        Ok(Self { text, public: PublicKey(pair.public_key()) })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The seed as text, for its file and for the connection.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// The password of Redis. It does not reveal the seed, and Redis knows only its hash.
    pub fn redis_password(&self) -> String {
        hex(&Sha256::new().chain_update(REDIS).chain_update(&self.text).finalize())
    }

    /// The key of a user of a tenant.
    pub fn user_key(&self) -> PublicKey {
        self.public.clone()
    }

    /// The key of a service, with the hash of its password if it uses Redis.
    pub fn service_key(&self, uses_redis: bool) -> ServiceKey {
        let hash = || RedisHash(hex(&Sha256::digest(self.redis_password())));
        ServiceKey { public: self.public.clone(), redis: uses_redis.then(hash) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_read_as_it_was_written_and_is_not_printed() {
        let seed = Seed::generate().unwrap();
        let again = Seed::parse(&format!("{}\n", seed.reveal())).unwrap();
        assert_eq!(seed.public(), again.public());
        assert_eq!(seed.redis_password(), again.redis_password());
        assert!(!format!("{seed:?}").contains(seed.reveal()));
        assert_eq!(seed.public().as_str().parse(), Ok(seed.public().clone()));
    }

    #[test]
    fn a_seed_in_place_of_a_public_key_is_refused_and_not_repeated() {
        let seed = Seed::generate().unwrap();
        let error = seed.reveal().parse::<PublicKey>().unwrap_err();
        assert_eq!(error, KeyError::Seed);
        assert!(!error.to_string().contains(seed.reveal()));
        let account = KeyPair::new_account();
        assert!(account.public_key().parse::<PublicKey>().is_err());
        assert!(Seed::parse(&account.seed().unwrap()).is_err());
        for wrong in ["", "U", "UABC", "u", "SU"] {
            assert!(wrong.parse::<PublicKey>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_password_of_redis_differs_from_the_seed_and_from_its_hash() {
        let seed = Seed::generate().unwrap();
        let key = seed.service_key(true);
        let hash = key.redis.unwrap().to_string();
        assert!(hash != seed.redis_password() && seed.redis_password() != seed.reveal());
        assert_eq!(seed.service_key(false).redis, None);
    }
}
