//! Names of build events, as in the JSON form of their ids in the Build Event Protocol.

use std::{fmt, str::FromStr};

macro_rules! names {
    ($($(#[$about:meta])* $variant:ident = $name:literal,)+) => {
        /// What a build event is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventName {
            $($(#[$about])* $variant,)+
        }

        impl EventName {
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

names! {
    Progress = "progress",
    Started = "started",
    Pattern = "pattern",
    TargetConfigured = "targetConfigured",
    TargetCompleted = "targetCompleted",
    TargetSummary = "targetSummary",
    ActionCompleted = "actionCompleted",
    TestResult = "testResult",
    TestSummary = "testSummary",
    NamedSet = "namedSet",
    OptionsParsed = "optionsParsed",
    WorkspaceStatus = "workspaceStatus",
    Configuration = "configuration",
    BuildMetadata = "buildMetadata",
    BuildMetrics = "buildMetrics",
    BuildFinished = "buildFinished",
    /// The tool has sent all of its events.
    StreamFinished = "streamFinished",
    InvocationAttemptStarted = "invocationAttemptStarted",
    InvocationAttemptFinished = "invocationAttemptFinished",
    BuildEnqueued = "buildEnqueued",
    ConsoleOutput = "consoleOutput",
    BuckEvent = "buckEvent",
    /// Every other event, and an unreadable one.
    Other = "other",
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no build event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown build event {0:?}: expected one of {names}", names = all_names())]
pub struct UnknownEventName(String);

fn all_names() -> String {
    EventName::ALL.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}

impl FromStr for EventName {
    type Err = UnknownEventName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.iter().copied().find(|name| name.as_str() == text);
        known.ok_or_else(|| UnknownEventName(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::EventName;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in EventName::ALL {
            assert_eq!(name.as_str().parse(), Ok(*name));
        }
        let unknown = "targetcompleted".parse::<EventName>().unwrap_err().to_string();
        assert!(unknown.contains("targetCompleted"), "{unknown}");
    }
}
