//! Live pages: the parts of a page that change, as server-sent events.
//!
//! All readers of a page share one task, which makes the page again when the bus says that something changed, at most a few
//! times a second. A reader who is slow receives the newest state of each part and none of those between.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::response::{
    IntoResponse as _, Response,
    sse::{Event, KeepAlive, Sse},
};
use bus::{LiveBuild, Signals};
use futures::{FutureExt as _, Stream, stream};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    site::{Asked, MakeView, Site},
    view::Changes,
};

/// Minimum time between two states of a page.
const PAUSE: Duration = Duration::from_millis(500);
/// Maximum time between two states of a page: an event may be lost.
const REPAIR: Duration = Duration::from_secs(10);
/// Pause after a page could not be made.
const RETRY: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The pages that readers have open.
#[derive(Default)]
pub(crate) struct Hub(Mutex<HashMap<String, Weak<Shared>>>);

/// A page that readers have open. Its task ends with its last reader.
struct Shared {
    parts: watch::Receiver<Arc<Parts>>,
    task: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The live parts of a page.
#[derive(Debug, Clone, Default)]
struct Parts {
    /// HTML and the number of its version, by name.
    html: BTreeMap<&'static str, (Arc<str>, u64)>,
    version: u64,
    /// Whether nothing changes any more.
    ended: bool,
}

/// Sends the changes of a page. Readers with the same `name` share them.
pub(crate) fn changes(site: Site, name: String, make: MakeView, asked: Asked) -> Response {
    let stop = site.api.stop.clone();
    let shared = site.hub.clone().join(site, name, make, asked);
    let events = futures::StreamExt::take_until(events(shared), stop.cancelled_owned());
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

impl Hub {
    fn join(&self, site: Site, name: String, make: MakeView, asked: Asked) -> Arc<Shared> {
        let mut open = self.0.lock();
        if let Some(shared) = open.get(&name).and_then(Weak::upgrade) {
            return shared;
        }
        open.retain(|_, shared| shared.strong_count() > 0);
        let (sender, parts) = watch::channel(Arc::default());
        let task = tokio::spawn(follow(site, make, asked, sender)).abort_handle();
        let shared = Arc::new(Shared { parts, task });
        open.insert(name, Arc::downgrade(&shared));
        shared
    }
}

/// What one reader has received so far.
struct Reader {
    shared: Arc<Shared>,
    parts: watch::Receiver<Arc<Parts>>,
    received: u64,
    ended: bool,
}

fn events(shared: Arc<Shared>) -> impl Stream<Item = Result<Event, Infallible>> {
    let parts = shared.parts.clone();
    let reader = Reader { shared, parts, received: 0, ended: false };
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

impl Parts {
    /// Notes the parts of a new state. Returns whether any changed.
    fn update(&mut self, state: Vec<(&'static str, String)>) -> bool {
        let version = self.version + 1;
        for (name, html) in state {
            let is_new = self.html.get(name).is_none_or(|(old, _)| timeless(old) != timeless(&html));
            if is_new {
                self.html.insert(name, (html.into(), version));
                self.version = version;
            }
        }
        self.version == version
    }
}

/// HTML without the text of its times: browsers count these on by themselves.
fn timeless(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    for (number, part) in html.split("<time").enumerate() {
        let shown =
            if number == 0 { part } else { part.split_once("</time>").map_or(part, |(_, rest)| rest) };
        if number > 0 {
            // Where the time is from, without what it says now.
            text.push_str(part.split_once('>').map_or("", |(head, _)| head));
        }
        text.push_str(shown);
    }
    text
}

/// What says that a page may have changed.
enum Source {
    Build(LiveBuild),
    Builds(Signals),
    /// Only time.
    Time,
}

/// Makes a page again and again until nothing changes any more.
async fn follow(site: Site, make: MakeView, asked: Asked, sender: watch::Sender<Arc<Parts>>) {
    let mut parts = Parts::default();
    let mut source = None;
    loop {
        let made = Instant::now();
        let changes = match make(site.clone(), asked.clone()).await {
            Ok(view) => {
                let changes = view.changes.clone();
                parts.ended = changes == Changes::Never;
                if parts.update(view.live()) || parts.ended {
                    sender.send_replace(Arc::new(parts.clone()));
                }
                changes
            }
            Err(failure) => {
                let (status, why) = failure.parts();
                tracing::debug!(%status, why, "cannot make a live page again, retrying");
                sleep(RETRY).await;
                continue;
            }
        };
        if parts.ended {
            return;
        }
        match &mut source {
            Some(source) => wait(source, &changes).await,
            // What changes before the subscription is seen in the next state.
            None => source = Some(subscribe(&site, &changes).await),
        }
        sleep_until(made + PAUSE).await;
        if let Some(source) = &mut source {
            source.skip_waiting();
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

/// Waits until something may have changed.
async fn wait(source: &mut Source, changes: &Changes) {
    let most = match changes {
        Changes::Build { again, .. } | Changes::Every(again) => *again,
        Changes::Never | Changes::Builds => REPAIR,
    };
    // Whether it was a signal or the time, the page is made again.
    let _ = timeout(most, source.next()).await;
}

impl Source {
    async fn next(&mut self) {
        let is_open = match self {
            Self::Build(events) => events.next().await.is_some(),
            Self::Builds(signals) => signals.next().await.is_some(),
            Self::Time => false,
        };
        if !is_open {
            *self = Self::Time;
            std::future::pending::<()>().await;
        }
    }

    /// Skips what has come already: the next state of the page has it.
    fn skip_waiting(&mut self) {
        if !matches!(self, Self::Time) {
            while self.next().now_or_never().is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Parts, timeless};

    #[test]
    fn only_what_changed_has_a_new_version() {
        let mut parts = Parts::default();
        let state = |a: &str, b: &str| vec![("a", a.to_owned()), ("b", b.to_owned())];
        assert!(parts.update(state("1", "2")));
        assert!(!parts.update(state("1", "2")));
        assert!(parts.update(state("1", "3")));
        let versions: Vec<u64> = parts.html.values().map(|(_, version)| *version).collect();
        assert_eq!((versions, parts.version), (vec![1, 2], 2));
    }

    #[test]
    fn a_time_that_goes_on_is_no_change() {
        let at = |date: &str, text: &str| format!("<p>since <time datetime=\"{date}\">{text}</time>!</p>");
        assert_eq!(timeless(&at("1", "2 s")), timeless(&at("1", "3 s")));
        assert_ne!(timeless(&at("1", "2 s")), timeless(&at("2", "2 s")));
        assert_eq!(timeless("<p>no time"), "<p>no time");
    }
}
