//! Detection of streams that refuse writes.

use serde::Deserialize;

use crate::{BusError, StoredStream};

/// A purge request for a subject without messages.
const EMPTY_PURGE: &str = r#"{"filter":"forebay.nothing"}"#;

/// The server's error code for a purge that its store refused.
const PURGE_FAILED: u16 = 10051;
/// The server's description of a stream that allows no purges: its error code (10110) is that of other failures, too.
const NO_PURGE: &str = "stream purge not permitted";

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

impl StoredStream<'_> {
    /// The reason why the stream refuses writes, if it does. Requests a purge of messages that do not exist, which
    /// changes nothing: a store whose last write failed reports this, and keeps reporting it after the cause is gone,
    /// until its nats-server is restarted.
    pub async fn write_fault(self) -> Result<Option<String>, BusError> {
        let stream = self.name;
        let subject = format!("$JS.API.STREAM.PURGE.{stream}");
        let what = || format!("checking whether stream {stream} accepts writes");
        let reply =
            self.bus.client.request(subject, EMPTY_PURGE.into()).await.map_err(BusError::failed(what()))?;
        let reply: Reply = serde_json::from_slice(&reply.payload).map_err(BusError::failed(what()))?;
        Ok(match reply.error {
            // Other checks report a missing stream.
            Some(Fault { code: 404, .. }) | None => None,
            // Other streams of the same disk tell.
            Some(Fault { description, .. }) if description.contains(NO_PURGE) => None,
            Some(Fault { err_code: PURGE_FAILED, description, .. }) => Some(description),
            Some(Fault { description, .. }) => return Err(BusError::failed(what())(description)),
        })
    }
}
