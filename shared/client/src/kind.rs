//! Kinds of information about a build that can be watched.

use std::{fmt, str::FromStr};

use bus::EventKind;

/// Kind of information that can be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchKind {
    /// Stored events of a build.
    Event(EventKind),
    /// Place in the queue.
    Queue,
}

impl WatchKind {
    pub const ALL: [Self; 5] = [
        Self::Event(EventKind::Lifecycle),
        Self::Event(EventKind::Console),
        Self::Event(EventKind::Tool),
        Self::Event(EventKind::Bazel),
        Self::Queue,
    ];

    /// Name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Event(kind) => kind.as_str(),
            Self::Queue => "queue",
        }
    }
}

impl From<EventKind> for WatchKind {
    fn from(kind: EventKind) -> Self {
        Self::Event(kind)
    }
}

impl fmt::Display for WatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is not a kind of information to watch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind {0:?}: expected lifecycle, console, tool, bazel or queue")]
pub struct UnknownKind(String);

impl FromStr for WatchKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == text);
        known.ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::WatchKind;

    #[test]
    fn kinds_have_names() {
        for kind in WatchKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert!("stderr".parse::<WatchKind>().is_err());
    }
}
