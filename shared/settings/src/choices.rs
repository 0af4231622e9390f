//! Settings with a few named values.

use std::str::FromStr;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, IntoDeserializer as _},
};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    /// One JSON object per line.
    Json,
}

/// Treatment of builds whose group has no quota, once any group has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupsWithoutQuota {
    /// They use the quota named `default`; without it, they only borrow unused quota.
    Default,
    /// Their builds are rejected.
    Refuse,
}

/// How actions, or builds, are separated from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxKind {
    Bubblewrap,
    /// They run without a sandbox, on machines that do not support it.
    None,
}

/// Whether the slots of an executor share the processors of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotCores {
    /// Each slot may use all processors.
    Shared,
    /// Each slot owns physical cores, of which it uses one thread each.
    Own,
    /// Each slot owns physical cores with all of their threads.
    OwnWithSiblings,
}

/// How builds are separated from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildSandbox {
    /// By bubblewrap where the machine supports it.
    Auto,
    Bubblewrap,
    None,
}

/// What sandboxed builds reach over the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildNetwork {
    /// All that the machine reaches.
    Host,
    /// Only processes of the same workspace, over a loopback interface of its own.
    Loopback,
    /// Nothing: sockets of the internet protocols cannot be created.
    None,
}

impl BuildNetwork {
    /// All, from the least to the most isolated.
    pub const ALL: [Self; 3] = [Self::Host, Self::Loopback, Self::None];

    /// The name in settings and requirements.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Loopback => "loopback",
            Self::None => "none",
        }
    }
}

impl SandboxKind {
    /// The name in settings and requirements.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bubblewrap",
            Self::None => "none",
        }
    }
}

impl FromStr for SandboxKind {
    type Err = de::value::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::deserialize(text.into_deserializer())
    }
}

/// Deserialises a named value. The error lists the names, which that of `config` does not.
pub(crate) fn named<'de, D: Deserializer<'de>, T: de::DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    T::deserialize(text.as_str().into_deserializer())
        .map_err(|error: de::value::Error| de::Error::custom(error))
}
