//! What proves who a user is: its seed, and, where nats-server has an operator, its JWT.

use std::{fmt, path::Path};

use crate::{
    Seed, SeedError, SeedFault,
    seed::private_text,
    token::{Expiry, expiry},
};

/// The JWT of a user of nats-server. Together with the seed it admits the user; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct UserToken(String);

/// The key of a user, with its JWT if it has one.
#[derive(Debug, Clone)]
pub struct UserKey {
    pub seed: Seed,
    /// None where the configuration of nats-server lists public keys.
    pub token: Option<UserToken>,
}

const JWT_BEGINS: &str = "-----BEGIN NATS USER JWT-----";
const JWT_ENDS: &str = "------END NATS USER JWT------";
const SEED_BEGINS: &str = "-----BEGIN USER NKEY SEED-----";
const SEED_ENDS: &str = "------END USER NKEY SEED------";

impl fmt::Debug for UserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserToken")
    }
}

impl UserToken {
    /// A JWT that an account has signed.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The JWT as text, which is sent to nats-server.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// When it was issued, and when it expires.
    ///
    /// # Errors
    ///
    /// Fails if the text is not a JWT.
    pub fn expiry(&self) -> Result<Expiry, SeedError> {
        expiry(&self.0).ok_or(SeedError::Token)
    }
}

impl UserKey {
    /// Reads the file of a seed, or one that has a JWT too (`.creds`), if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, has something else in it, or can be read by others.
    pub fn read(path: &Path) -> Result<Option<Self>, SeedFault> {
        let Some(text) = private_text(path)? else { return Ok(None) };
        let unusable = |source| SeedFault::Unusable { path: path.to_owned(), source };
        Self::parse(&text).map(Some).map_err(unusable)
    }

    /// Reads a seed, or a JWT and a seed between the lines that clients of NATS expect.
    ///
    /// # Errors
    ///
    /// Fails if the text has no seed of a user, or another thing in place of the JWT.
    pub fn parse(text: &str) -> Result<Self, SeedError> {
        let Some(token) = between(text, JWT_BEGINS, JWT_ENDS) else {
            return Ok(Self { seed: Seed::parse(text)?, token: None });
        };
        let token = UserToken(token.to_owned());
        token.expiry()?;
        let seed = between(text, SEED_BEGINS, SEED_ENDS).ok_or(SeedError::Invalid)?;
        Ok(Self { seed: Seed::parse(seed)?, token: Some(token) })
    }

    /// The content of the file that [`UserKey::read`] and clients of NATS read.
    pub fn reveal(&self) -> String {
        let seed = self.seed.reveal();
        match &self.token {
            None => format!("{seed}\n"),
            Some(token) => format!(
                "{JWT_BEGINS}\n{}\n{JWT_ENDS}\n\nThe seed below is secret.\n\n{SEED_BEGINS}\n{seed}\n{SEED_ENDS}\n",
                token.reveal()
            ),
        }
    }
}

impl From<Seed> for UserKey {
    fn from(seed: Seed) -> Self {
        Self { seed, token: None }
    }
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(begin)?;
    rest.split_once(end).map(|(found, _)| found.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tests::token;

    #[test]
    fn a_seed_alone_and_with_a_jwt_are_read_as_they_were_written() {
        let seed = Seed::generate().unwrap();
        let alone = UserKey::parse(&UserKey::from(seed.clone()).reveal()).unwrap();
        assert!(alone.token.is_none() && alone.seed.public() == seed.public());
        let token = Some(UserToken::new(token(r#"{"sub":"U","iat":1}"#)));
        let key = UserKey { seed, token: token.clone() };
        let again = UserKey::parse(&key.reveal()).unwrap();
        assert!(again.token == token && again.seed.public() == key.seed.public());
        assert!(!format!("{key:?}").contains(key.token.unwrap().reveal()));
    }

    #[test]
    fn a_text_that_is_not_a_jwt_is_refused_and_not_repeated() {
        let seed = Seed::generate().unwrap();
        let wrong = UserKey { seed, token: Some(UserToken::new("x.y.z".to_owned())) };
        let error = UserKey::parse(&wrong.reveal()).unwrap_err();
        assert!(matches!(error, SeedError::Token) && !error.to_string().contains("x.y.z"));
        let text = wrong.reveal().replace("BEGIN USER NKEY SEED", "BEGIN");
        assert!(UserKey::parse(&text).is_err());
    }
}
