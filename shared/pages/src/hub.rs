//! The pages that readers have open, each with the task that makes it again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::{sync::watch, task::AbortHandle};

/// The pages that readers have open.
#[derive(Default)]
pub(crate) struct Hub(Mutex<HashMap<String, Weak<Shared>>>);

/// A page that readers have open. Its task ends with its last reader.
pub(crate) struct Shared {
    pub(crate) parts: watch::Receiver<Arc<Parts>>,
    task: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The live parts of a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts {
    /// HTML and the number of its version, by name.
    pub(crate) html: BTreeMap<&'static str, (Arc<str>, u64)>,
    pub(crate) version: u64,
    /// Whether nothing changes any more.
    pub(crate) ended: bool,
    /// Whether the last try to make the page again failed.
    pub(crate) is_stale: bool,
}

impl Hub {
    /// Whether a reader has the page with this name open.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.lock().get(name).is_some_and(|shared| shared.strong_count() > 0)
    }

    /// The open page with this name; `start` starts the task of a page that no other reader has open.
    pub(crate) fn join(
        &self,
        name: String,
        start: impl FnOnce(watch::Sender<Arc<Parts>>) -> AbortHandle,
    ) -> Arc<Shared> {
        let mut open = self.0.lock();
        if let Some(shared) = open.get(&name).and_then(Weak::upgrade) {
            return shared;
        }
        open.retain(|_, shared| shared.strong_count() > 0);
        let (sender, parts) = watch::channel(Arc::default());
        let shared = Arc::new(Shared { parts, task: start(sender) });
        open.insert(name, Arc::downgrade(&shared));
        shared
    }
}

impl Parts {
    /// Notes the parts of a new state. Returns whether any changed.
    pub(crate) fn update(&mut self, state: Vec<(&'static str, String)>) -> bool {
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
