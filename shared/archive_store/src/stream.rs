//! The streams that are archived.

/// A stream that is archived, each with its own cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// Records and events of builds.
    Events,
    /// Records of executions of actions.
    Actions,
    /// Build events of tools outside of builds.
    Bazel,
    /// Who did what to the farm.
    Audit,
}

impl LogStream {
    /// All streams, in the order of declaration.
    pub const ALL: [Self; 4] = [Self::Events, Self::Actions, Self::Bazel, Self::Audit];

    /// Name of the stream on the bus, and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Events => bus::stream::EVENTS,
            Self::Actions => bus::stream::ACTIONS,
            Self::Bazel => bus::stream::BAZEL,
            Self::Audit => bus::stream::AUDIT,
        }
    }

    /// Matches all its messages.
    pub fn filter(self) -> &'static str {
        match self {
            Self::Events => bus::EventSubject::ALL,
            Self::Actions => bus::ActionSubject::ALL,
            Self::Bazel => bus::BazelSubject::EVENTS,
            Self::Audit => bus::AuditSubject::ALL,
        }
    }
}
