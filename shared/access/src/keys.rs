//! Keys of users, as the description has them: their public parts.

use std::{fmt, str::FromStr};

use credentials::{PublicKey, Seed};
use model::hex;
use sha2::{Digest as _, Sha256};

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

impl ServiceKey {
    /// The key of a service with this seed, with the hash of its password if it uses Redis.
    pub fn of(seed: &Seed, uses_redis: bool) -> Self {
        let hash = || RedisHash(hex(&Sha256::digest(seed.redis_password())));
        Self { public: seed.public().clone(), redis: uses_redis.then(hash) }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_redis_differs_from_the_seed_and_from_its_hash() {
        let seed = Seed::generate().unwrap();
        let key = ServiceKey::of(&seed, true);
        let hash = key.redis.unwrap().to_string();
        assert!(hash != seed.redis_password() && seed.redis_password() != seed.reveal());
        assert_eq!(ServiceKey::of(&seed, false).redis, None);
    }
}
