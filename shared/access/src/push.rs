//! Changes of accounts on running nats-servers, without a reload.

use std::collections::BTreeSet;

use bus::{BusError, Resolver};
use credentials::{Server, claims};
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

/// What [`push`] changed.
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
    for (name, token) in access.account_tokens(signer, now)? {
        let key = signer.account(&name)?.to_string();
        let changed = if known.contains(&key) {
            replace(&resolver, &key, &token).await
        } else {
            resolver.update(&token).await.map(|_| true)
        };
        if changed.map_err(failed(name.to_string()))? {
            pushed.updated.insert(name);
        }
        described.insert(key);
    }
    for key in known.difference(&described) {
        let closed = signer.closed_account(key, now)?;
        if replace(&resolver, key, &closed).await.map_err(failed(key.clone()))? {
            pushed.closed.insert(key.clone());
        }
    }
    Ok(pushed)
}

/// Replaces the JWT of an account if the new one says something else.
async fn replace(resolver: &Resolver, key: &str, token: &str) -> Result<bool, BusError> {
    let is_same = says_the_same(&resolver.account(key).await?, token);
    if !is_same {
        resolver.update(token).await?;
    }
    Ok(!is_same)
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
