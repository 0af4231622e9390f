//! The secret of a user, and the file that has it.

use std::{
    fmt, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use model::hex;
use nkeys::{KeyPair, KeyPairType};
use sha2::{Digest as _, Sha256};

use crate::PublicKey;

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
    #[error("the number of the server could not be signed")]
    Sign(#[source] nkeys::error::Error),
    #[error("what it has in place of a JWT is none")]
    Token,
}

/// A file with a seed that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeedFault {
    #[error("the seed in {} cannot be used", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        source: SeedError,
    },
    #[error("{} can be read by others: make it private with `chmod 600 {}`; if they may have read it, replace the key with \
             `forebay access rotate`", path.display(), path.display())]
    Readable { path: PathBuf },
    #[error("cannot {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    New(#[from] SeedError),
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

    /// Reads the file of a seed, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, has something else in it, or can be read by others.
    pub fn read(path: &Path) -> Result<Option<Self>, SeedFault> {
        let Some(text) = private_text(path)? else { return Ok(None) };
        let unusable = |source| SeedFault::Unusable { path: path.to_owned(), source };
        Self::parse(&text).map(Some).map_err(unusable)
    }

    fn of(pair: &KeyPair) -> Result<Self, SeedError> {
        let text = pair.seed().map_err(SeedError::New)?;
        Ok(Self { text, public: PublicKey::of(pair) })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// The seed as text, for its file.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// Signs a number that nats-server has chosen.
    ///
    /// # Errors
    ///
    /// Fails if the key cannot sign.
    pub fn sign(&self, nonce: &[u8]) -> Result<Vec<u8>, SeedError> {
        let pair = KeyPair::from_seed(&self.text).map_err(SeedError::Sign)?;
        pair.sign(nonce).map_err(SeedError::Sign)
    }

    /// The password of Redis. It does not reveal the seed, and Redis knows only its hash.
    pub fn redis_password(&self) -> String {
        hex(&Sha256::new().chain_update(REDIS).chain_update(&self.text).finalize())
    }
}

/// The content of a file that only its owner can read. None if it does not exist.
///
/// # Errors
///
/// Fails if the file cannot be read, or can be read by others.
pub fn private_text(path: &Path) -> Result<Option<String>, SeedFault> {
    let path = || path.to_owned();
    let failed = |source| SeedFault::File { what: "read", path: path(), source };
    let mode = match fs::metadata(path()) {
        Ok(found) if !found.is_file() => {
            return Err(failed(io::Error::other("it is not a regular file")));
        }
        Ok(found) => found.permissions().mode(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    if mode & 0o077 != 0 {
        return Err(SeedFault::Readable { path: path() });
    }
    fs::read_to_string(path()).map(Some).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyError;

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
    fn the_public_key_verifies_what_the_seed_signs() {
        let seed = Seed::generate().unwrap();
        let signature = seed.sign(b"number").unwrap();
        let public = KeyPair::from_public_key(seed.public().as_str()).unwrap();
        assert!(public.verify(b"number", &signature).is_ok());
        assert!(public.verify(b"another", &signature).is_err());
    }

    #[test]
    fn only_private_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.1.seed");
        assert!(Seed::read(&path).unwrap().is_none());
        let seed = Seed::generate().unwrap();
        fs::write(&path, seed.reveal()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Seed::read(&path), Err(SeedFault::Readable { .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Seed::read(&path).unwrap().unwrap().public(), seed.public());
        assert!(matches!(Seed::read(folder.path()), Err(SeedFault::File { .. })));
        fs::write(&path, "SUxyz").unwrap();
        let error = Seed::read(&path).unwrap_err();
        assert!(matches!(error, SeedFault::Unusable { .. }) && !format!("{error:?}").contains("SUxyz"));
    }
}
