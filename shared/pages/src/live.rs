//! Live pages: the parts of a page that change, as server-sent events.
//!
//! All readers of a page share one task, which makes the page again when the bus says that something changed, at most a few
//! times a second. A reader who is slow receives the newest state of each part and none of those between.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use axum::response::{
    IntoResponse as _, Response,
    sse::{Event, KeepAlive, Sse},
};
use bus::{EventKind, EventSubject, LiveBuild, LiveEvent, Signals};
use futures::{FutureExt as _, Stream, stream};
use http_api::Failure;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    hub::{Parts, Shared},
    site::{Asked, MakeView, Scope, Site},
    view::{Changes, View},
};

/// Minimum time between two states of a page.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum time between two states of a page: an event may be lost.
const REPAIR: Duration = Duration::from_secs(10);
/// Pause after a page could not be made.
const RETRY: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(8);
/// Time limit for making a page again, after which it is stale.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends the changes of a page. Readers with the same `name` share them.
///
/// # Errors
///
/// Fails if there is no such page, after which a browser does not try again.
pub(crate) async fn changes(
    site: Site,
    name: String,
    make: MakeView,
    asked: Asked,
) -> Result<Response, Failure> {
    let first = if site.hub.has(&name) { None } else { Some(make(site.clone(), asked.clone()).await?) };
    let stop = site.api.stop.clone();
    let hub = site.hub.clone();
    let shared =
        hub.join(name, |sender| tokio::spawn(follow(site, make, asked, first, sender)).abort_handle());
    let events = futures::StreamExt::take_until(events(shared), stop.cancelled_owned());
    // An event, not a comment: the script must see that the server lives. The page may be stale all the same.
    let heartbeat =
        KeepAlive::new().interval(KEEP_ALIVE).event(Event::default().event("heartbeat").data("{}"));
    Ok(Sse::new(events).keep_alive(heartbeat).into_response())
}

/// What one reader has received so far.
struct Reader {
    shared: Arc<Shared>,
    parts: watch::Receiver<Arc<Parts>>,
    received: u64,
    ended: bool,
    /// Whether the reader knows that the page is stale.
    is_stale: bool,
}

fn events(shared: Arc<Shared>) -> impl Stream<Item = Result<Event, Infallible>> {
    let parts = shared.parts.clone();
    let reader = Reader { shared, parts, received: 0, ended: false, is_stale: false };
    stream::unfold(reader, async |mut reader| Some((Ok(reader.next().await?), reader)))
}

impl Reader {
    /// The parts that changed, as a JSON object of HTML by name; then the end, after which the browser does not reconnect.
    async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        loop {
            let parts = self.parts.borrow_and_update().clone();
            if parts.is_stale != self.is_stale {
                self.is_stale = parts.is_stale;
                return Some(
                    Event::default().event(if self.is_stale { "stale" } else { "alive" }).data("{}"),
                );
            }
            let new: BTreeMap<&str, &str> = parts
                .html
                .iter()
                .filter(|(_, (_, version))| *version > self.received)
                .map(|(name, (html, _))| (*name, html.as_ref()))
                .collect();
            self.received = parts.version;
            if !new.is_empty() {
                return Some(Event::default().data(serde_json::json!(new).to_string()));
            }
            if parts.ended {
                self.ended = true;
                return Some(Event::default().event("end").data("{}"));
            }
            // The task lives as long as `shared`.
            if self.parts.changed().await.is_err() {
                tracing::debug!(readers = Arc::strong_count(&self.shared), "a live page ended early");
                return None;
            }
        }
    }
}

/// What says that a page may have changed.
enum Source {
    Build(LiveBuild),
    Builds(Signals),
    /// Only the time that has passed.
    Time,
}

/// Makes a page again and again until nothing changes any more.
async fn follow(
    site: Site,
    make: MakeView,
    asked: Asked,
    mut first: Option<View>,
    sender: watch::Sender<Arc<Parts>>,
) {
    let mut parts = Parts::default();
    let mut source: Option<Source> = None;
    let mut scope = Scope::Live;
    loop {
        let began = Instant::now();
        let answer = match first.take() {
            Some(view) => Ok(Ok(view)),
            None => timeout(PATIENCE, make(site.clone(), Asked { scope, ..asked.clone() })).await,
        };
        let Ok(Ok(view)) = answer else {
            parts.is_stale = true;
            sender.send_replace(Arc::new(parts.clone()));
            sleep(RETRY).await;
            continue;
        };
        let changes = view.changes.clone();
        let is_over = changes == Changes::Never;
        if is_over && scope == Scope::Output {
            // The other parts have their last state, too.
            scope = Scope::Live;
            continue;
        }
        parts.ended = is_over;
        let was_stale = std::mem::take(&mut parts.is_stale);
        if parts.update(view.live()) || parts.ended || was_stale {
            sender.send_replace(Arc::new(parts.clone()));
        }
        if parts.ended {
            return;
        }
        if let Some(source) = &mut source {
            scope = wait(source, &changes).await;
            sleep_until(began + PAUSE).await;
            if source.skip_waiting() == Scope::Live {
                scope = Scope::Live;
            }
        } else {
            // What changes before the subscription is seen in the next state.
            source = Some(subscribe(&site, &changes).await);
            sleep_until(began + PAUSE).await;
        }
    }
}

async fn subscribe(site: &Site, changes: &Changes) -> Source {
    let subscribed = match changes {
        Changes::Build { key, .. } => site.client().live_build(key).await.map(Source::Build),
        Changes::Builds => site.client().bus().builds_changed().await.map(Source::Builds).map_err(Into::into),
        Changes::Never | Changes::Every(_) => Ok(Source::Time),
    };
    subscribed.unwrap_or_else(|error| {
        tracing::debug!(
            error = telemetry::error_chain(&error),
            "cannot listen to changes, reading again instead"
        );
        Source::Time
    })
}

/// Waits until something may have changed, and returns what.
async fn wait(source: &mut Source, changes: &Changes) -> Scope {
    let most = match changes {
        Changes::Build { again, .. } | Changes::Every(again) => *again,
        Changes::Never | Changes::Builds => REPAIR,
    };
    timeout(most, source.next()).await.unwrap_or(Scope::Live)
}

impl Source {
    /// Waits for the next signal, and returns what it says to have changed.
    async fn next(&mut self) -> Scope {
        let changed = match self {
            Self::Build(events) => events.next().await.map(|event| match event {
                LiveEvent::Stored(stored, _) if is_output(&stored.subject) => Scope::Output,
                LiveEvent::Stored(..) | LiveEvent::Unreadable => Scope::Live,
            }),
            Self::Builds(signals) => signals.next().await.map(|()| Scope::Live),
            Self::Time => None,
        };
        if let Some(changed) = changed {
            return changed;
        }
        *self = Self::Time;
        std::future::pending().await
    }

    /// Skips what has come already, and returns what it says to have changed: the next state of the page has it.
    fn skip_waiting(&mut self) -> Scope {
        let mut changed = Scope::Output;
        while let Some(scope) = self.next().now_or_never() {
            if scope == Scope::Live {
                changed = Scope::Live;
            }
        }
        changed
    }
}

fn is_output(subject: &str) -> bool {
    subject.parse::<EventSubject>().is_ok_and(|subject| subject.kind == EventKind::Console)
}
