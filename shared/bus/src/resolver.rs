//! Accounts of nats-servers whose users have JWTs: what the servers have of them, and changes while they run.

use std::{collections::BTreeSet, time::Duration};

use async_nats::Client;
use bytes::Bytes;
use credentials::{BusUser, Server, UserKey};
use serde::Deserialize;

use crate::{
    BusError,
    connect::{connect_for_access, options_with_key},
    several::OfServers,
};

/// A connection that reads and changes the accounts of all nats-servers of a cluster, in their system account.
#[derive(Debug)]
pub struct Resolver(Client);

/// The answer of one server.
#[derive(Deserialize)]
struct Answer {
    server: Named,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct Listed {
    data: BTreeSet<String>,
}

const TIMEOUT: Duration = Duration::from_secs(5);

/// The subjects that a connection which changes accounts publishes to.
pub(crate) const RESOLVER_SUBJECTS: [&str; 3] = [LIST, UPDATE, "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP"];
const LIST: &str = "$SYS.REQ.CLAIMS.LIST";
const UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";

impl Resolver {
    /// Connects to `server` as `user` of the system account.
    ///
    /// # Errors
    ///
    /// Fails if the server is not reachable or does not admit the user.
    pub async fn connect(server: &Server, user: &BusUser, key: UserKey) -> Result<Self, BusError> {
        connect_for_access(server, options_with_key(server, user, key)?, TIMEOUT).await.map(Self)
    }

    /// The public keys of the accounts that any of the servers has.
    pub async fn accounts(&self) -> Result<BTreeSet<String>, BusError> {
        let what = "listing the accounts of nats-server";
        let mut answers = OfServers::ask(&self.0, LIST, Bytes::new(), (what, TIMEOUT)).await?;
        let (mut found, mut has_answer) = (BTreeSet::new(), false);
        while let Some(answer) = answers.next().await {
            let listed: Listed = serde_json::from_slice(&answer).map_err(BusError::failed(what))?;
            found.extend(listed.data);
            has_answer = true;
        }
        if has_answer { Ok(found) } else { Err(BusError::Timeout { what: what.to_owned() }) }
    }

    /// The JWT of an account, as the first server that answers has it.
    pub async fn account(&self, key: &str) -> Result<String, BusError> {
        let what = || format!("reading the JWT of account {key}");
        let subject = format!("$SYS.REQ.ACCOUNT.{key}.CLAIMS.LOOKUP");
        let answer = self.0.request(subject, Bytes::new()).await.map_err(BusError::failed(what()))?;
        String::from_utf8(answer.payload.to_vec()).map_err(BusError::failed(what()))
    }

    /// Gives all servers the JWT of an account. Returns the names of those that have it now.
    ///
    /// # Errors
    ///
    /// Fails if a server refuses it, or if none answers.
    pub async fn update(&self, token: &str) -> Result<BTreeSet<String>, BusError> {
        let what = "giving nats-server the JWT of an account";
        if token.len() > self.0.server_info().max_payload {
            return Err(BusError::TooLarge { what: "the JWT of an account".to_owned() });
        }
        let body = Bytes::from(token.to_owned());
        let mut answers = OfServers::ask(&self.0, UPDATE, body, (what, TIMEOUT)).await?;
        let mut servers = BTreeSet::new();
        while let Some(answer) = answers.next().await {
            let answer: Answer = serde_json::from_slice(&answer).map_err(BusError::failed(what))?;
            if let Some(refusal) = answer.error {
                let reason = format!("{} refuses it: {}", answer.server.name, refusal.description);
                return Err(BusError::failed(what)(std::io::Error::other(reason)));
            }
            servers.insert(answer.server.name);
        }
        if servers.is_empty() { Err(BusError::Timeout { what: what.to_owned() }) } else { Ok(servers) }
    }
}
