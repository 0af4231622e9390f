//! Checks that a user of the bus can do what it should, with requests that change nothing.

use std::time::Duration;

use async_nats::{Client, HeaderMap, client::RequestErrorKind};
use bytes::Bytes;
use credentials::Server;
use model::{BuildId, BuildKey, Group};
use serde::Deserialize;

use crate::{
    BusError, EventSubject, RequestSubject,
    connect::{connect_for_access, options},
    crossing::last_event,
    several::OfServers,
};

/// A user that cannot do what it should.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The account of the user lacks an import, or lost it.
    #[error("no stream of the farm listens on {subject}")]
    NotConnected { subject: String },
    /// The server denies it, or does not answer.
    #[error("no answer on {subject}: nats-server denies it, or does not respond")]
    NoAnswer { subject: String },
    #[error("unexpected answer on {subject}: {answer}")]
    Unexpected { subject: String, answer: String },
}

/// A connection of one user to one server, which asks whether its rights work.
#[derive(Debug)]
pub struct Probe(Client);

#[derive(Deserialize)]
struct Refusal {
    error: Option<Fault>,
}

#[derive(Deserialize)]
struct Fault {
    err_code: u16,
}

#[derive(Deserialize)]
struct Varz {
    server: Named,
    data: Loaded,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Loaded {
    config_load_time: String,
}

const TIMEOUT: Duration = Duration::from_secs(3);
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// A name that no stream has.
const NO_STREAM: &str = "FOREBAY_PROBE";
/// The server's error code for a message that expects another stream.
const OTHER_STREAM: u16 = 10060;

impl Probe {
    /// Connects to `server` as the user with its credentials.
    ///
    /// # Errors
    ///
    /// Fails if the server is not reachable or does not know the user.
    pub async fn connect(server: &Server) -> Result<Self, BusError> {
        connect_for_access(server, options(server)?, TIMEOUT).await.map(Self)
    }

    /// Checks that a request published to `subject` would be stored: sends one that expects a stream that does not exist,
    /// which the stream of requests refuses.
    pub async fn may_publish(&self, subject: &RequestSubject) -> Result<(), ProbeError> {
        let subject = subject.to_string();
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_STREAM, NO_STREAM);
        let request = async_nats::Request::new().headers(headers);
        let answer = self.ask(&subject, request).await?;
        let refusal = serde_json::from_slice(&answer.payload);
        if let Ok(Refusal { error: Some(Fault { err_code: OTHER_STREAM }) }) = refusal {
            return Ok(());
        }
        let answer = String::from_utf8_lossy(&answer.payload).into_owned();
        Err(ProbeError::Unexpected { subject, answer })
    }

    /// Checks that the records of a group can be read: asks for one of a build that does not exist.
    pub async fn may_read(&self, group: &Group) -> Result<(), ProbeError> {
        let key = BuildKey { group: group.clone(), id: BuildId::generate() };
        let subject = last_event(&EventSubject::lifecycle(&key));
        let answer = self.ask(&subject, async_nats::Request::new()).await?;
        match answer.status {
            Some(async_nats::StatusCode::NOT_FOUND) => Ok(()),
            other => Err(ProbeError::Unexpected { subject, answer: format!("status {other:?}") }),
        }
    }

    /// The time at which each server that answers loaded its configuration, with the name of the server. Only users of
    /// the system account may ask.
    pub async fn loaded(&self) -> Result<Vec<(String, String)>, BusError> {
        let what = "asking the servers when they loaded their configuration";
        let subject = "$SYS.REQ.SERVER.PING.VARZ";
        let mut answers = OfServers::ask(&self.0, subject, Bytes::new(), (what, TIMEOUT)).await?;
        let mut found = Vec::new();
        while let Some(answer) = answers.next().await {
            let varz: Varz = serde_json::from_slice(&answer).map_err(BusError::failed(what))?;
            found.push((varz.server.name, varz.data.config_load_time));
        }
        found.sort();
        if found.is_empty() { Err(BusError::Timeout { what: what.to_owned() }) } else { Ok(found) }
    }

    async fn ask(
        &self,
        subject: &str,
        request: async_nats::Request,
    ) -> Result<async_nats::Message, ProbeError> {
        let asked = self.0.send_request(subject.to_owned(), request).await;
        let subject = subject.to_owned();
        asked.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => ProbeError::NotConnected { subject },
            RequestErrorKind::TimedOut => ProbeError::NoAnswer { subject },
            RequestErrorKind::InvalidSubject
            | RequestErrorKind::MaxPayloadExceeded
            | RequestErrorKind::Other => BusError::failed(format!("asking on {subject}"))(error).into(),
        })
    }
}
