//! A build's events as server-sent events.

mod ahead;
mod watch;

use std::{convert::Infallible, fmt::Display, str::FromStr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Extension as FromExtensions, State as FromState},
    http::{HeaderMap, HeaderName, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use bus::EventKind;
use callers::{Caller, Watching};
use client::{Followed, QueuePlace, WatchEvent, WatchFilter, WatchKind};
use futures::{Stream, stream};
use model::{Sequence, State};
use tokio::sync::mpsc;

use crate::{
    failure::Failure,
    input::{self, PathParameters, QueryParameters},
    state::Api,
};
use ahead::{Next, ReadAhead};
pub(crate) use watch::ENDPOINT as WATCH_ENDPOINT;
use watch::Watch;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Handles `GET /v1/builds/{group}/{id}/events`: streams the events after position `from`, or after `Last-Event-ID`,
/// which takes precedence because a reconnecting browser sends both. While the build waits, the stream also reports
/// changes of its queue position.
pub(crate) async fn stream(
    FromState(api): FromState<Api>,
    names: PathParameters,
    query: QueryParameters,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let key = names.key()?;
    let after = position(&query, &headers)?;
    let filter = filter(&query)?;
    // Before the build is read: one that may not watch costs nothing.
    let watching = caller.watch()?;
    let build = api.client.get(&key).await?;
    if build.state == State::Finished && after >= build.sequence {
        // Only this status keeps a browser from reconnecting.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    if build.state == State::Finished
        && let Some(event) = api.client.archived_last_event(&key).await?
    {
        let wanted = filter.wants(WatchKind::Event(EventKind::Lifecycle));
        let last = wanted.then(|| Ok::<_, Infallible>(event_of(&event)));
        return Ok(Sse::new(stream::iter(last)).into_response());
    }
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    let events = events(ReadAhead { api, key, position: after, filter }.start());
    let answer = Sse::new(events).keep_alive(keep_alive).into_response();
    Ok(answer.map(|body| Body::new(Watching::during(watching, body))))
}

fn position(query: &QueryParameters, headers: &HeaderMap) -> Result<Sequence, Failure> {
    let last_seen = input::header_text(headers, LAST_EVENT_ID).filter(|text| !text.is_empty());
    let position = match last_seen {
        Some(text) => Some(input::number("Last-Event-ID", text)?),
        None => query.number("from")?,
    };
    Ok(Sequence(position.unwrap_or(0)))
}

fn filter(query: &QueryParameters) -> Result<WatchFilter, Failure> {
    Ok(WatchFilter {
        kinds: parsed(query, "kind")?,
        stream: parsed(query, "stream")?.pop(),
        tasks: parsed(query, "task")?,
        build_events: parsed(query, "event")?,
    })
}

fn parsed<T: FromStr<Err: Display>>(query: &QueryParameters, name: &str) -> Result<Vec<T>, Failure> {
    let parse = |text: &str| text.parse().map_err(|error| Failure::invalid(format!("{name}: {error}")));
    query.all(name).map(parse).collect()
}

/// Pulled by the connection. The task that reads the bus ends when the connection closes.
fn events(mut read: mpsc::Receiver<Next>) -> impl Stream<Item = Result<Event, Infallible>> {
    let mut watch = Watch::begin();
    stream::poll_fn(move |cx| {
        read.poll_recv(cx).map(|next| {
            watch.note(next.as_ref());
            next.and_then(sent).map(Ok)
        })
    })
}

/// What the client is sent; `None` ends the stream.
fn sent(next: Next) -> Option<Event> {
    Some(match next {
        Next::Followed(Followed::Event(event)) => event_of(&event),
        Next::Followed(Followed::Queue(place)) => place_of(&place),
        // Sent as a comment, which clients may ignore.
        Next::Followed(Followed::Unplaced(why)) => Event::default().comment(why.replace(['\r', '\n'], " ")),
        // The client reconnects with the last position it received.
        Next::BrokeOff => Event::default().comment("the stream ended early: reconnect"),
        Next::Ended => return None,
    })
}

fn event_of(event: &WatchEvent) -> Event {
    Event::default()
        .id(event.position.to_string())
        .event(event.kind().as_str())
        // JSON escapes line breaks, so this is one line.
        .data(event.to_json().to_string())
}

/// Sent without an id: a reconnecting client resumes after the last stored event.
fn place_of(place: &QueuePlace) -> Event {
    Event::default().event(WatchKind::Queue.as_str()).data(place.to_json().to_string())
}

#[cfg(test)]
mod tests;
