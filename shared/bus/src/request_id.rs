//! The `Nats-Msg-Id` of a build request that a client publishes.

use std::{fmt, str::FromStr};

use model::{BuildId, BuildKey, Group, ParseIdError};

/// The `Nats-Msg-Id` of a published build: `GROUP/ID`, or the bare id.
///
/// nats-server compares message ids over the whole stream, for at least 100 ms. Only an id that names its group cannot
/// be mistaken for a repeat of another group's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestId {
    /// The id with its group.
    Keyed(BuildKey),
    /// The id alone, without a group.
    Bare(BuildId),
}

impl RequestId {
    pub fn id(&self) -> BuildId {
        match self {
            Self::Keyed(key) => key.id,
            Self::Bare(id) => *id,
        }
    }

    /// The group named in the id, if any.
    pub fn group(&self) -> Option<&Group> {
        match self {
            Self::Keyed(key) => Some(&key.group),
            Self::Bare(_) => None,
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keyed(key) => key.fmt(f),
            Self::Bare(id) => id.fmt(f),
        }
    }
}

impl FromStr for RequestId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains('/') { text.parse().map(Self::Keyed) } else { text.parse().map(Self::Bare) }
    }
}

#[cfg(test)]
mod tests {
    use super::RequestId;

    #[test]
    fn both_forms_are_read_and_written() {
        let id = "0193a5c8-7d2e-7000-8000-000000000001";
        let bare: RequestId = id.parse().unwrap();
        assert_eq!((bare.to_string(), bare.group()), (id.to_owned(), None));
        let text = format!("ci/{id}");
        let keyed: RequestId = text.parse().unwrap();
        assert_eq!((keyed.to_string(), keyed.id()), (text, bare.id()));
        assert_eq!(keyed.group().unwrap().as_str(), "ci");
        for wrong in ["", "/", "ci/", "a.b/x", &format!("/{id}"), &format!("a/b/{id}")] {
            assert!(wrong.parse::<RequestId>().is_err(), "{wrong}");
        }
    }
}
