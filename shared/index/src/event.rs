//! A lifecycle message, as the index sees it.

use model::{BuildKey, Millis, Priority, Sequence, Workspace};

/// One lifecycle message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEvent {
    /// The build.
    pub key: BuildKey,
    /// The message's position.
    pub sequence: Sequence,
    /// What it means here.
    pub change: Change,
}

/// What a lifecycle message means to the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The build waits.
    Enqueued {
        /// Its priority.
        priority: Priority,
        /// The position of its first BUILD_ENQUEUED, which is its place in the queue.
        place: Sequence,
        /// When it has waited too long.
        expires_at: Millis,
    },
    /// The build runs.
    Started {
        /// Since when.
        started_at: Millis,
        /// When it has run too long.
        deadline: Millis,
        /// Where.
        workspace: Workspace,
    },
    /// The build has its result.
    Finished {
        /// Where it ran, if it did.
        workspace: Option<Workspace>,
        /// Whether this is all there ever was (it was refused).
        only: bool,
    },
}

/// Room for positions: at a million builds a second it lasts for nine years. Two bits of priority above 48 of place
/// fit the 53 bits that a sorted set's double keeps exactly.
const PLACES: u64 = 1 << 48;

/// The score of a waiting build: strict priority, then age.
pub(crate) fn score(priority: Priority, place: Sequence) -> u64 {
    u64::from(priority.rank()) * PLACES + place.0 % PLACES
}

impl IndexEvent {
    /// The eight arguments of the script.
    pub(crate) fn write(&self, invocation: &mut redis::ScriptInvocation<'_>) {
        let BuildKey { group, id } = &self.key;
        let id = id.to_string();
        match &self.change {
            Change::Enqueued { priority, place, expires_at } => {
                let first = u8::from(*place == self.sequence);
                invocation.arg("E").arg(self.sequence.0).arg(group.as_str()).arg(id);
                invocation.arg(score(*priority, *place)).arg(expires_at.0).arg(first).arg("");
            }
            Change::Started { started_at, deadline, workspace } => {
                invocation.arg("S").arg(self.sequence.0).arg(group.as_str()).arg(id);
                invocation.arg(0).arg(started_at.0).arg(deadline.0).arg(workspace.to_string());
            }
            Change::Finished { workspace, only } => {
                let workspace = workspace.as_ref().map(ToString::to_string).unwrap_or_default();
                invocation.arg("F").arg(self.sequence.0).arg(group.as_str()).arg(id);
                invocation.arg(0).arg(0).arg(u8::from(*only)).arg(workspace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_more_urgent_build_comes_first_however_young() {
        assert!(score(Priority::Emergency, Sequence(PLACES - 1)) < score(Priority::Interactive, Sequence(1)));
        assert!(score(Priority::Batch, Sequence(1)) < score(Priority::Batch, Sequence(2)));
    }

    #[test]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the round trip is the point"
    )]
    fn scores_are_exact_as_doubles() {
        let last = score(Priority::Batch, Sequence(PLACES - 1));
        assert_eq!(last as f64 as u64, last);
    }
}
