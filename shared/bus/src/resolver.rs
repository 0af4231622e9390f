//! Accounts of nats-servers whose users have JWTs: what the servers have of them, and changes while they run.

use std::{collections::BTreeSet, time::Duration};

use async_nats::{Client, Subscriber};
use credentials::{BusUser, Server, UserKey};
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use crate::{
    BusError,
    connect::{addresses, options_with_key},
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
/// Time after the first answer of a server until the last one of a cluster.
const FURTHER_ANSWERS: Duration = Duration::from_millis(300);

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
        let connected = options_with_key(server, user, key)?
            .name("forebay access")
            .connection_timeout(TIMEOUT)
            .request_timeout(Some(TIMEOUT))
            .connect(addresses(&server.url)?)
            .await;
        let unreachable = |source| BusError::Unreachable { url: server.shown(), source };
        connected.map(Self).map_err(|error| unreachable(Box::new(error)))
    }

    /// The public keys of the accounts that any of the servers has.
    pub async fn accounts(&self) -> Result<BTreeSet<String>, BusError> {
        let what = "listing the accounts of nats-server";
        let mut answers = self.ask(LIST, "", what).await?;
        let mut found = BTreeSet::new();
        while let Some(answer) = answers.next().await {
            let listed: Listed = serde_json::from_slice(&answer).map_err(BusError::failed(what))?;
            found.extend(listed.data);
        }
        if answers.count == 0 { Err(BusError::Timeout { what: what.to_owned() }) } else { Ok(found) }
    }

    /// The JWT of an account, as the first server that answers has it.
    pub async fn account(&self, key: &str) -> Result<String, BusError> {
        let what = || format!("reading the JWT of account {key}");
        let subject = format!("$SYS.REQ.ACCOUNT.{key}.CLAIMS.LOOKUP");
        let answer = self.0.request(subject, "".into()).await.map_err(BusError::failed(what()))?;
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
        let mut answers = self.ask(UPDATE, token, what).await?;
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

    async fn ask(&self, subject: &'static str, body: &str, what: &str) -> Result<Answers, BusError> {
        let inbox = self.0.new_inbox();
        let subscriber = self.0.subscribe(inbox.clone()).await.map_err(BusError::failed(what))?;
        let sent = self.0.publish_with_reply(subject, inbox, body.to_owned().into()).await;
        sent.map_err(BusError::failed(what))?;
        Ok(Answers { subscriber, until: Instant::now() + TIMEOUT, count: 0 })
    }
}

/// The answers of all servers of a cluster to one request.
struct Answers {
    subscriber: Subscriber,
    until: Instant,
    count: usize,
}

impl Answers {
    async fn next(&mut self) -> Option<bytes::Bytes> {
        let answer = timeout_at(self.until, self.subscriber.next()).await.ok().flatten()?;
        // Without a receiver, the server answers with an empty message.
        let has_content = answer.status.is_none();
        self.until = self.until.min(Instant::now() + FURTHER_ANSWERS);
        self.count += usize::from(has_content);
        has_content.then_some(answer.payload)
    }
}
