//! Changes of accounts on running nats-servers, without a reload.

use std::collections::BTreeSet;

use bus::{BusError, Resolver};
use credentials::{Expiry, Server, claims};
use serde_json::Value;

use crate::{Access, AccountName, Signer, SigningFault};

/// Accounts that were not changed on a server.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error(transparent)]
    Sign(#[from] SigningFault),
    #[error(
        "the accounts cannot be given to {url}; does it run with the configuration that `forebay access apply` wrote?"
    )]
    Connect {
        url: String,
        #[source]
        source: BusError,
    },
    #[error("account {account} on {url}")]
    Account {
        account: String,
        url: String,
        #[source]
        source: BusError,
    },
}

/// The accounts that [`push`] changed on servers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    pub updated: BTreeSet<AccountName>,
    /// Public keys of accounts that the description does not have, and that admit no user now.
    pub closed: BTreeSet<String>,
}

/// Gives a nats-server the accounts that differ from the description, and closes others. All servers of a cluster have them from
/// any of them. Changed users are disconnected, and connect again with what they may do now.
pub async fn push(access: &Access, signer: &Signer, server: &Server, now: i64) -> Result<Pushed, PushError> {
    let url = server.shown();
    let connect = |source| PushError::Connect { url: url.clone(), source };
    let failed = |account: String| {
        let url = url.clone();
        move |source| PushError::Account { account, url, source }
    };
    let (user, key) = signer.push_key(now)?;
    let resolver = Resolver::connect(server, &user, key).await.map_err(connect)?;
    let known = resolver.accounts().await.map_err(connect)?;
    let mut pushed = Pushed::default();
    let mut described = BTreeSet::new();
    // The account of the farm is first: the others import from it.
    for name in access.account_names() {
        let key = signer.account(&name)?.to_string();
        let current = if known.contains(&key) { Some(resolver.account(&key).await) } else { None };
        let current = current.transpose().map_err(failed(name.to_string()))?;
        let token = access.account_token(&name, signer, later(current.as_deref(), now))?;
        if !current.is_some_and(|current| says_the_same(&current, &token)) {
            resolver.update(&token).await.map_err(failed(name.to_string()))?;
            pushed.updated.insert(name);
        }
        described.insert(key);
    }
    for key in known.difference(&described) {
        let current = resolver.account(key).await.map_err(failed(key.clone()))?;
        let token = signer.closed_account(key, later(Some(&current), now))?;
        if !says_the_same(&current, &token) {
            resolver.update(&token).await.map_err(failed(key.clone()))?;
            pushed.closed.insert(key.clone());
        }
    }
    Ok(pushed)
}

/// The time of issue of what replaces a JWT. A server that was stopped meanwhile keeps the one that was issued last, also if a
/// clock was set back.
fn later(current: Option<&str>, now: i64) -> i64 {
    let issued = current.and_then(claims::<Expiry>).map(|current| current.issued);
    issued.map_or(now, |issued| now.max(issued.saturating_add(1)))
}

/// Whether two JWTs differ in nothing but when they were made.
fn says_the_same(one: &str, other: &str) -> bool {
    let content = |token: &str| -> Option<Value> {
        let mut claims: Value = claims(token)?;
        let fields = claims.as_object_mut()?;
        fields.remove("iat");
        fields.remove("jti");
        Some(claims)
    };
    content(one).is_some_and(|one| Some(one) == content(other))
}

#[cfg(test)]
mod tests {
    use data_encoding::BASE64URL_NOPAD;

    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.AA", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    #[test]
    fn what_replaces_a_jwt_is_always_newer() {
        let current = token(r#"{"iat":50}"#);
        assert_eq!((later(Some(&current), 10), later(Some(&current), 50)), (51, 51));
        assert_eq!((later(Some(&current), 99), later(None, 10), later(Some("none"), 10)), (99, 10, 10));
    }

    #[test]
    fn jwts_that_differ_in_time_only_say_the_same() {
        let one = token(r#"{"iat":50,"jti":"X","sub":"A","nats":{"x":1}}"#);
        assert!(says_the_same(&one, &token(r#"{"iat":51,"jti":"Y","sub":"A","nats":{"x":1}}"#)));
        for other in [r#"{"sub":"A","nats":{"x":2}}"#, r#"{"sub":"B","nats":{"x":1}}"#, "[]"] {
            assert!(!says_the_same(&one, &token(other)), "{other}");
        }
        assert!(!says_the_same("none", "none"));
    }
}
