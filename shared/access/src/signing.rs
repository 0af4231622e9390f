//! Keys that sign JWTs of NATS: those of the operator and of accounts.

use std::{fmt, path::PathBuf, str::FromStr};

use credentials::{SeedError, SeedFault};
use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use nkeys::{KeyPair, KeyPairType};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256, Sha512_256};

/// Public key of an account of nats-server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct AccountKey(String);

impl AccountKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AccountKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let valid = text.starts_with('A') && KeyPair::from_public_key(text).is_ok();
        // The text is not shown: it may be most of a seed.
        let wanted =
            "invalid key of an account: expected a public nkey, 56 letters and digits that begin with A";
        if valid { Ok(Self(text.to_owned())) } else { Err(wanted.to_owned()) }
    }
}

impl TryFrom<String> for AccountKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Whose JWTs a key signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signs {
    /// Of the operator: those of accounts.
    Accounts,
    /// Of an account: those of users.
    Users,
}

/// A JWT that cannot be signed, or a key for it that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningFault {
    #[error("a new key could not be made")]
    New(#[source] nkeys::error::Error),
    #[error("a JWT could not be signed")]
    Sign(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The text is not shown: it may be most of a seed.
    #[error("{} is not the seed of an operator or of an account", path.display())]
    Unusable { path: PathBuf },
    #[error("{} does not exist, and only its key can sign: restore it from a backup", path.display())]
    Missing { path: PathBuf },
    #[error("{} has key {found}, but the description has {wanted} for it", path.display())]
    Other { path: PathBuf, found: String, wanted: String },
    #[error(
        "the description has no account keys for {0}: run `forebay access init --jwt` with the same --seeds"
    )]
    NoAccount(String),
    #[error(
        "not all users of {0} have JWTs of its new signing key: run `forebay access apply --push`, which names those whose seeds are \
         not in the folder; revoke or rotate these"
    )]
    NotUsed(String),
    #[error("users of this description have no JWTs: `forebay access init --jwt` changes that")]
    NoJwt,
    #[error(transparent)]
    File(#[from] SeedFault),
    #[error(transparent)]
    Seed(#[from] SeedError),
}

/// A secret key that signs JWTs. It cannot be printed.
pub(crate) struct SigningKey(KeyPair);

/// What a JWT says. Fields are in the order of the alphabet, as in those that the tools of NATS make.
#[derive(Serialize)]
pub(crate) struct Claims<'a, N> {
    /// Seconds since 1970; none: it does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exp: Option<i64>,
    /// Seconds since 1970; none for JWTs that must be the same each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) iat: Option<i64>,
    pub(crate) name: &'a str,
    pub(crate) nats: N,
    /// The public key that the JWT is about.
    pub(crate) sub: &'a str,
}

#[derive(Serialize)]
struct Issued<'a, N> {
    iss: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<String>,
    #[serde(flatten)]
    claims: &'a Claims<'a, N>,
}

const HEADER: &str = r#"{"typ":"JWT","alg":"ed25519-nkey"}"#;
/// Separates derived keys from other uses of a seed.
const DERIVED: &str = "forebay: signing key\n";

impl SigningKey {
    pub(crate) fn generate(signs: Signs) -> Self {
        Self(match signs {
            Signs::Accounts => KeyPair::new_operator(),
            Signs::Users => KeyPair::new_account(),
        })
    }

    /// The key with this seed, which may end with white space.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let pair = KeyPair::from_seed(text.trim()).ok()?;
        let kind = pair.key_pair_type();
        (kind == KeyPairType::Operator || kind == KeyPairType::Account).then_some(Self(pair))
    }

    pub(crate) fn public(&self) -> String {
        self.0.public_key()
    }

    /// The seed as text, for its file.
    pub(crate) fn reveal(&self) -> Result<String, SigningFault> {
        self.0.seed().map_err(SigningFault::New)
    }

    /// The key of an account that follows from this one and `label`: it needs no file of its own.
    pub(crate) fn derive(&self, label: &str) -> Result<Self, SigningFault> {
        let hash = Sha256::new().chain_update(DERIVED).chain_update(self.reveal()?).chain_update("\n");
        let raw: [u8; 32] = hash.chain_update(label).finalize().into();
        KeyPair::new_from_raw(KeyPairType::Account, raw).map(Self).map_err(SigningFault::New)
    }

    /// The JWT with these claims. Its id is the hash of all others, as NATS defines it.
    pub(crate) fn sign<N: Serialize>(&self, claims: &Claims<'_, N>) -> Result<String, SigningFault> {
        let json = |jti: Option<String>| {
            serde_json::to_vec(&Issued { iss: self.public(), jti, claims })
                .map_err(|error| SigningFault::Sign(Box::new(error)))
        };
        let id = BASE32_NOPAD.encode(&Sha512_256::digest(json(None)?));
        let body = BASE64URL_NOPAD.encode(&json(Some(id))?);
        let signed = format!("{}.{body}", BASE64URL_NOPAD.encode(HEADER.as_bytes()));
        let signature = self.0.sign(signed.as_bytes());
        let signature = signature.map_err(|error| SigningFault::Sign(Box::new(error)))?;
        Ok(format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature)))
    }
}

/// Whether the key `public` has signed a JWT.
pub(crate) fn is_signed_by(token: &str, public: &str) -> bool {
    let signature = token
        .rsplit_once('.')
        .and_then(|(signed, signature)| Some((signed, BASE64URL_NOPAD.decode(signature.as_bytes()).ok()?)));
    match (signature, KeyPair::from_public_key(public)) {
        (Some((signed, signature)), Ok(key)) => key.verify(signed.as_bytes(), &signature).is_ok(),
        (_, _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jwt_is_verified_by_the_key_that_signed_it_only() {
        let (key, other) = (SigningKey::generate(Signs::Users), SigningKey::generate(Signs::Users));
        let claims = Claims { exp: None, iat: Some(1), name: "n", nats: 2, sub: "U" };
        let token = key.sign(&claims).unwrap();
        assert!(is_signed_by(&token, &key.public()) && !is_signed_by(&token, &other.public()));
        let changed = token.replacen('.', ".e30", 1);
        assert!(!is_signed_by(&changed, &key.public()));
        let found: serde_json::Value = credentials::claims(&token).unwrap();
        assert_eq!((found["iss"].as_str(), found["nats"].as_i64()), (Some(key.public().as_str()), Some(2)));
        assert_eq!(found["jti"].as_str().map(str::len), Some(52));
    }

    #[test]
    fn derived_keys_follow_from_the_seed_and_the_label() {
        let key = SigningKey::generate(Signs::Users);
        let again = SigningKey::parse(&key.reveal().unwrap()).unwrap();
        let public = |key: &SigningKey, label| key.derive(label).unwrap().public();
        assert_eq!(public(&key, "gateway"), public(&again, "gateway"));
        assert!(public(&key, "gateway").parse::<AccountKey>().is_ok());
        let others = [public(&key, "worker"), key.public()];
        assert!(!others.contains(&public(&key, "gateway")));
        let stranger = SigningKey::generate(Signs::Users);
        assert_ne!(public(&key, "gateway"), public(&stranger, "gateway"));
    }
}
