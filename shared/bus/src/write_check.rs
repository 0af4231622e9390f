//! Finding streams that refuse writes.

use serde::Deserialize;

use crate::{Bus, BusError};

/// A subject that no stream has anything on.
const NOTHING: &str = r#"{"filter":"forebay.nothing"}"#;

/// The server's number for a purge that its store refused.
const PURGE_FAILED: u16 = 10051;

#[derive(Debug, Deserialize)]
struct Reply {
    error: Option<Fault>,
}

#[derive(Debug, Deserialize)]
struct Fault {
    code: u16,
    #[serde(default)]
    err_code: u16,
    description: String,
}

impl Bus {
    /// Why `stream` refuses writes, if it does. It is asked to purge what it does not have, which changes nothing: a store
    /// whose last write failed says so, and goes on saying so when the cause has gone, until its nats-server is started
    /// again.
    pub async fn write_fault(&self, stream: &str) -> Result<Option<String>, BusError> {
        let subject = format!("$JS.API.STREAM.PURGE.{stream}");
        let what = || format!("asking whether stream {stream} takes writes");
        let reply = self.client().request(subject, NOTHING.into()).await.map_err(BusError::failed(what()))?;
        let reply: Reply = serde_json::from_slice(&reply.payload).map_err(BusError::failed(what()))?;
        Ok(match reply.error {
            // No such stream: that is found elsewhere.
            Some(Fault { code: 404, .. }) | None => None,
            Some(Fault { err_code: PURGE_FAILED, description, .. }) => Some(description),
            Some(Fault { description, .. }) => return Err(BusError::failed(what())(description)),
        })
    }
}
