//! What callers use of this process, against the limits of their access rules.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use bus::millis;
use http_body::Body;
use http_body_util::BodyExt as _;
use listener::Usage;
use model::Millis;
use parking_lot::Mutex;
use policy::limits::{CallerLimits, CallerUse, Exceeded};

/// Number of callers above which those that use nothing are forgotten.
const CALLERS_MAX: usize = 10_000;

/// What all callers use. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Uses(Arc<Mutex<HashMap<String, Arc<Use>>>>);

/// What one caller uses.
#[derive(Debug)]
pub(crate) struct Use {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: CallerLimits,
    used: CallerUse,
}

/// An open watch, until it is dropped.
#[derive(Debug)]
pub struct Watching(Arc<Use>);

impl Watching {
    /// The body of an answer, which keeps the watch open until it was sent or its client has left.
    pub fn during<B: Body>(watching: Option<Self>, body: B) -> impl Body<Data = B::Data, Error = B::Error> {
        body.map_frame(move |frame| {
            let _open = &watching;
            frame
        })
    }
}

/// A connection of a caller, until it is dropped.
#[derive(Debug)]
struct Connected(Arc<Use>);

/// Milliseconds since this process first asked.
fn now() -> Millis {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // Above zero: a bucket is full at first.
    Millis(millis(BEGAN.elapsed()).saturating_add(1))
}

impl Uses {
    /// What a caller uses. Callers without a name are distinguished by their address.
    pub(crate) fn of(&self, name: &str, address: Option<IpAddr>, limits: CallerLimits) -> Arc<Use> {
        let key = match (name, address) {
            ("", Some(address)) => format!("address:{address}"),
            (name, _) => name.to_owned(),
        };
        let mut all = self.0.lock();
        if all.len() >= CALLERS_MAX && !all.contains_key(&key) {
            let now = now();
            // One that a call holds may be about to be used.
            all.retain(|_, one| Arc::strong_count(one) > 1 || !one.is_idle(now));
        }
        let new = || Arc::new(Use { state: Mutex::new(State { limits, used: CallerUse::default() }) });
        let found = Arc::clone(all.entry(key).or_insert_with(new));
        drop(all);
        // The rules may have changed.
        found.state.lock().limits = limits;
        found
    }
}

impl Use {
    fn change<T>(&self, change: impl FnOnce(&mut CallerUse, &CallerLimits) -> T) -> T {
        let mut state = self.state.lock();
        let State { limits, used } = &mut *state;
        change(used, limits)
    }

    fn is_idle(&self, now: Millis) -> bool {
        self.change(|used, limits| used.is_idle(limits, now))
    }

    /// Counts a call, and its connection if that is new.
    pub(crate) fn call(self: &Arc<Self>, connection: Option<&Usage>) -> Result<(), Exceeded> {
        if let Some(connection) = connection {
            let begin = || {
                self.change(CallerUse::begin_connection)?;
                Ok::<_, Exceeded>(Connected(Arc::clone(self)))
            };
            connection.keep_once(Arc::as_ptr(self).addr(), begin)?;
        }
        self.change(|used, limits| used.call(limits, now()))
    }

    pub(crate) fn build(&self) -> Result<(), Exceeded> {
        self.change(|used, limits| used.build(limits, now()))
    }

    pub(crate) fn watch(self: &Arc<Self>) -> Result<Watching, Exceeded> {
        self.change(CallerUse::begin_watch)?;
        Ok(Watching(Arc::clone(self)))
    }

    /// Counts uploaded bytes. Returns for how long no more are accepted.
    pub(crate) fn upload(&self, bytes: u64) -> Duration {
        self.change(|used, limits| used.upload(limits, bytes, now()))
    }

    /// Whether uploads are limited.
    pub(crate) fn limits_uploads(&self) -> bool {
        self.state.lock().limits.upload.is_some()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.change(|used, _| used.end_watch());
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.change(|used, _| used.end_connection());
    }
}
