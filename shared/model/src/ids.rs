//! Ids, quantities and enums that every message uses.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A text that is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} {text:?}: {wanted}")]
pub struct ParseIdError {
    kind: &'static str,
    text: String,
    wanted: &'static str,
}

impl ParseIdError {
    pub(crate) fn new(kind: &'static str, text: &str, wanted: &'static str) -> Self {
        Self { kind, text: shorten(text), wanted }
    }
}

/// Id of a build: a UUID chosen by the publisher, unique inside its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(transparent)]
pub struct BuildId(Uuid);

impl BuildId {
    /// Generates a new id; later ids sort after earlier ones.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for BuildId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseIdError { kind: "build id", text: shorten(text), wanted: "expected a UUID" };
        match Uuid::try_parse(text) {
            Ok(uuid) if !uuid.is_nil() => Ok(Self(uuid)),
            Ok(_) | Err(_) => Err(wrong()),
        }
    }
}

impl Serialize for BuildId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Always written as text: a binary format would otherwise hold sixteen bytes.
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BuildId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Defines a name type whose values are valid as one token of a subject.
macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(#[schemars(regex(pattern = r"^[A-Za-z0-9_-]{1,64}$"))] String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let good = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
                if (1..=64).contains(&text.len()) && text.bytes().all(good) {
                    return Ok(Self(text.to_owned()));
                }
                let wanted = "expected 1 to 64 letters, digits, '-' or '_'";
                Err($crate::ParseIdError::new($kind, text, wanted))
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use token;

token!(
    /// Name of a quota group: 1 to 64 letters, digits, `-` or `_`.
    Group,
    "group"
);
token!(
    /// Id of one worker process: 1 to 64 letters, digits, `-` or `_`. A restarted worker has a new id.
    WorkerId,
    "worker id"
);
token!(
    /// Id of one executor process: 1 to 64 letters, digits, `-` or `_`. A restarted executor has a new id.
    ExecutorId,
    "executor id"
);
token!(
    /// Id of an executor's folder, which outlives the process: 1 to 64 letters, digits, `-` or `_`.
    ExecutorHome,
    "executor home"
);
token!(
    /// Name of a pool of executors with the same capabilities: 1 to 64 letters, digits, `-` or `_`.
    PoolName,
    "pool"
);

/// Name of a task inside its job: 1 to 200 letters, digits or characters of `_./+:=@-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct TaskId(#[schemars(regex(pattern = r"^[A-Za-z0-9_./+:=@-]{1,200}$"))] String);

impl TaskId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TaskId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = |c: u8| c.is_ascii_alphanumeric() || b"_./+:=@-".contains(&c);
        if (1..=200).contains(&text.len()) && text.bytes().all(good) {
            return Ok(Self(text.to_owned()));
        }
        let wanted = "expected 1 to 200 letters, digits or characters of _./+:=@-";
        Err(ParseIdError::new("task id", text, wanted))
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Full name of a build, written `GROUP/ID`: ids are unique inside a group only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildKey {
    /// Quota group of the build.
    pub group: Group,
    /// Id of the build inside its group.
    pub id: BuildId,
}

impl fmt::Display for BuildKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.id)
    }
}

impl FromStr for BuildKey {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseIdError { kind: "build key", text: shorten(text), wanted: "expected GROUP/ID" };
        let (group, id) = text.split_once('/').ok_or_else(wrong)?;
        Ok(Self { group: group.parse()?, id: id.parse()? })
    }
}

/// Priority of a build. The order is strict inside a quota group.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Most urgent: fixing an outage.
    Emergency,
    /// A person waits for the result (default).
    #[default]
    Interactive,
    /// A machine waits for the result: presubmits, merge queues.
    Automated,
    /// Least urgent: no person or machine waits for the result.
    Batch,
}

impl Priority {
    /// All priorities, most urgent first.
    pub const ALL: [Self; 4] = [Self::Emergency, Self::Interactive, Self::Automated, Self::Batch];

    /// Name in messages, which is also the token in subjects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Emergency => "emergency",
            Self::Interactive => "interactive",
            Self::Automated => "automated",
            Self::Batch => "batch",
        }
    }

    /// Whether it starts at once: regardless of the quota of its group, and before all groups' other work.
    pub fn is_emergency(self) -> bool {
        self == Self::Emergency
    }

    /// Rank of the priority, 0 (most urgent) to 3.
    pub fn rank(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Priority {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|p| p.as_str() == text).ok_or_else(|| ParseIdError {
            kind: "priority",
            text: shorten(text),
            wanted: "expected emergency, interactive, automated or batch",
        })
    }
}

/// A position in the event stream (a JetStream stream sequence). Positions start at 1; 0 is before the first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Sequence(pub u64);

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an attempt; the first is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Attempt(pub u32);

impl Attempt {
    pub const FIRST: Self = Self(1);

    /// The number of the following attempt.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A time in milliseconds since the Unix epoch.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// The clock of this machine, which may be wrong by hours: only for values that no other machine reads. Times that
    /// are written for other machines, or compared with theirs, use the clock of the farm: `Bus::now`.
    pub fn of_this_machine() -> Self {
        Self::from(SystemTime::now())
    }

    /// The time `span` after this one.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl From<SystemTime> for Millis {
    fn from(time: SystemTime) -> Self {
        let span = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<Millis> for SystemTime {
    fn from(at: Millis) -> Self {
        UNIX_EPOCH + Duration::from_millis(at.0)
    }
}

/// A workspace: a place on a worker where one build runs at a time. Written `WORKER/SLOT`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Workspace {
    /// Worker that owns the workspace.
    pub worker: WorkerId,
    /// Number of the workspace on its worker, from 0.
    pub slot: u16,
}

impl fmt::Display for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.worker, self.slot)
    }
}

impl FromStr for Workspace {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || ParseIdError { kind: "workspace", text: shorten(text), wanted: "expected WORKER/SLOT" };
        let (worker, slot) = text.split_once('/').ok_or_else(wrong)?;
        Ok(Self { worker: worker.parse()?, slot: slot.parse().map_err(|_| wrong())? })
    }
}
