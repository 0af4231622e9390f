//! The streams that are archived.

/// A stream that is archived, each with its own cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogStream {
    /// Records and events of builds.
    Events,
    /// Records of executions of actions.
    Actions,
}

impl LogStream {
    /// All streams, in the order of declaration.
    pub const ALL: [Self; 2] = [Self::Events, Self::Actions];

    /// Name of the stream on the bus, and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Events => bus::stream::EVENTS,
            Self::Actions => bus::stream::ACTIONS,
        }
    }

    /// Matches all its messages.
    pub fn filter(self) -> &'static str {
        match self {
            Self::Events => bus::EventSubject::ALL,
            Self::Actions => bus::ActionSubject::ALL,
        }
    }
}
