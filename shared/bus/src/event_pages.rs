//! The call `forebay.api.events.<group>`: events of a build after a position, for users who may not read streams. The answer
//! is a message for each event, as on live subjects, and one that ends it.

use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures::StreamExt as _;
use model::{ApiError, BuildId, BuildKey, Sequence};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ApiCall, ApiRequest, Bus, BusError, EventKind, Message as _, Stored, Subject, Tail, WatchedKinds,
    ask::refusal,
    codec::from_client,
    headers::{MORE, header},
    message, several,
};

/// Maximum number of events in an answer.
pub const EVENTS_MAX: usize = 256;
/// Time limit of an answer, from one message to the next.
const PATIENCE: Duration = Duration::from_secs(5);

/// Request of `events`: which events of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsRequest {
    /// Id of the build.
    pub id: BuildId,
    /// Position after which the events are wanted.
    #[serde(default)]
    pub from: Sequence,
    /// Kinds of events in addition to changes of state; all if it is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<EventKind>,
    /// Maximum number of events, at most 256. Large events make it fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

message!(EventsRequest);
from_client!(EventsRequest);

impl EventsRequest {
    /// The kinds that are wanted.
    pub fn watched(&self) -> WatchedKinds {
        if self.kinds.is_empty() { WatchedKinds::ALL } else { WatchedKinds::of(&self.kinds) }
    }

    /// The number of events that an answer has at most.
    pub fn batch(&self) -> usize {
        self.limit.unwrap_or(EVENTS_MAX).clamp(1, EVENTS_MAX)
    }

    /// The first position that is wanted.
    pub fn first(&self) -> Sequence {
        Sequence(self.from.0.saturating_add(1))
    }
}

impl ApiRequest {
    /// Sends each event with its headers, and then an empty message that says whether there are more.
    pub async fn answer_events(&self, bus: &Bus, tail: Tail) -> Result<(), BusError> {
        let failed = || BusError::failed("answering a request for events");
        if let Some(inbox) = self.reply() {
            // Where the server delivered the request, it accepts answers.
            let client = &bus.outside().await?.client;
            for event in tail.events {
                let headers = event.headers.unwrap_or_default();
                let sent = client.publish_with_headers(inbox.clone(), headers, event.payload).await;
                sent.map_err(failed())?;
            }
        }
        let mut end = HeaderMap::new();
        end.insert(MORE, if tail.more { "true" } else { "false" });
        self.respond(Bytes::new(), end).await.map_err(failed())
    }
}

impl Bus {
    /// Asks an enqueuer for events of a build from position `from` on, at most `batch`.
    pub(crate) async fn ask_events(
        &self,
        key: &BuildKey,
        kinds: WatchedKinds,
        from: Sequence,
        batch: usize,
    ) -> Result<Tail, BusError> {
        let what = || format!("asking for events of build {key}");
        let request = EventsRequest {
            id: key.id,
            from: Sequence(from.0.saturating_sub(1)),
            kinds: kinds.kinds(),
            limit: Some(batch.min(EVENTS_MAX)),
        };
        let subject = Subject::Api(ApiCall::Events, key.group.clone()).to_string();
        let mut replies = several::ask(&self.client, subject, request.to_json(), &what()).await?;
        let mut events = Vec::new();
        loop {
            let next = tokio::time::timeout(PATIENCE, replies.next()).await;
            let Ok(Some(message)) = next else { return Err(BusError::Timeout { what: what() }) };
            if let Some(status) = message.status {
                return Err(BusError::failed(what())(format!("no enqueuer answers (status {status})")));
            }
            if let Some(error) = refusal(&message) {
                return Err(BusError::failed(what())(error));
            }
            if let Some(more) = header(message.headers.as_ref(), MORE) {
                return Ok(Tail { events, more: more == "true" });
            }
            events.extend(Stored::from_direct(message));
        }
    }
}

/// A build that has no events on the bus: it does not exist, or was archived.
pub fn no_events(key: &BuildKey) -> ApiError {
    let message = format!("build {} of group {} has no events on the bus", key.id, key.group);
    ApiError::new(model::ErrorCode::NotFound, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeError, Encoding, FromClient as _};

    fn read(text: &str) -> Result<EventsRequest, DecodeError> {
        EventsRequest::decode(Encoding::Json, text.as_bytes())
    }

    #[test]
    fn a_request_names_a_build_and_may_say_more() {
        let id = "0198c5d3-0000-7000-8000-000000000001";
        let all = read(&format!(r#"{{"id":"{id}"}}"#)).unwrap();
        assert_eq!((all.first(), all.batch(), all.watched()), (Sequence(1), EVENTS_MAX, WatchedKinds::ALL));
        let text = format!(r#"{{"id":"{id}","from":18446744073709551615,"kinds":["tool"],"limit":9999999}}"#);
        let some = read(&text).unwrap();
        assert_eq!((some.first(), some.batch()), (Sequence(u64::MAX), EVENTS_MAX));
        assert_eq!(some.watched(), WatchedKinds::of(&[EventKind::Tool]));
        for wrong in [
            r#"{"id":"x"}"#.to_owned(),
            format!(r#"{{"id":"{id}","from":-1}}"#),
            format!(r#"{{"id":"{id}","kinds":["stderr"]}}"#),
            format!(r#"{{"id":"{id}","group":"other"}}"#),
        ] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn kinds_stay_those_that_are_wanted() {
        for kinds in [vec![], vec![EventKind::Console], vec![EventKind::Tool, EventKind::Bazel]] {
            let watched = WatchedKinds::of(&kinds);
            assert_eq!(WatchedKinds::of(&watched.kinds()), watched, "{kinds:?}");
        }
    }
}
