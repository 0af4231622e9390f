//! Lifecycle messages in the form that the index needs.

use std::fmt;

use model::{
    BuildKey, BuildRequirements, Esu, ExecutorType, Millis, Occupancy, Priority, Sequence, Workspace,
};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEvent {
    pub key: BuildKey,
    /// Position of the message.
    pub sequence: Sequence,
    /// Effect on the index.
    pub change: Change,
}

/// Effect of a lifecycle message on the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The build waits in its queue.
    Enqueued {
        priority: Priority,
        /// Its order among builds of its group and priority, below 2^48.
        rank: u64,
        /// Whether this is its first BUILD_ENQUEUED.
        first: bool,
        /// When its time in the queue expires.
        expires_at: Millis,
        /// Further properties that dispatch needs.
        traits: Traits,
    },
    /// The build is running.
    Started {
        started_at: Millis,
        /// When its run time limit expires.
        deadline: Millis,
        /// The workspace that it runs in.
        workspace: Workspace,
        /// Further properties that dispatch needs.
        traits: Traits,
    },
    /// The build has ended.
    Finished {
        ended_at: Millis,
        /// The workspace that it ran in, if it ran.
        workspace: Option<Workspace>,
        /// Whether this is the build's only message: it was rejected.
        only: bool,
    },
}

/// Properties of a build that dispatch needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traits {
    /// Whether it requests a warm workspace.
    pub warm: bool,
    /// Whether it is expected to run actions on executors.
    pub sends_actions: bool,
    /// Expected occupancy by executor type.
    pub occupancy: Occupancy,
    /// Expected run time in milliseconds, if there is an estimate.
    pub expected_ms: Option<u64>,
    /// Properties that its worker must offer.
    pub requirements: BuildRequirements,
}

impl Traits {
    /// The default traits, which take no memory in an entry: 1 ESU of x86, no warm workspace,
    /// no actions, no estimated run time and no requirements.
    pub fn usual() -> Self {
        let occupancy = Occupancy::of_each([ExecutorType::x86()], Esu::ONE);
        Self { occupancy, ..Self::default() }
    }

    /// The text form in a build's entry; empty for the default traits, and for a build without any executor type (a
    /// record of an older version).
    pub(crate) fn to_text(&self) -> String {
        let occupancy = &self.occupancy;
        let one_x86 = occupancy.0.len() == 1 && occupancy.get(&ExecutorType::x86()) == Esu::ONE;
        let mut text = String::new();
        if self.warm || self.sends_actions || !(one_x86 || occupancy.is_empty()) {
            let usual = Self::usual().occupancy;
            let occupancy = if occupancy.is_empty() { &usual } else { occupancy };
            let amount =
                |(kind, amount): (&ExecutorType, Esu)| format!("{kind}:{}", amount.or_zero().micros());
            let amounts: Vec<String> = occupancy.iter().map(amount).collect();
            let used = match (self.warm, self.sends_actions) {
                (false, false) => "-",
                (true, false) => "w",
                (false, true) => "a",
                (true, true) => "b",
            };
            text = format!("{used} {}", amounts.join(","));
        }
        if let Some(ms) = self.expected_ms {
            let space = if text.is_empty() { "" } else { " " };
            text = format!("{text}{space}~{ms}");
        }
        for (name, value) in self.requirements.iter() {
            let space = if text.is_empty() { "" } else { " " };
            text = format!("{text}{space}@{}={}", encoded(name), encoded(value));
        }
        text
    }

    /// Parses the trailing fields of a build's entry.
    pub(crate) fn from_fields<'a>(fields: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut traits = Self::usual();
        for field in fields {
            if let Some(ms) = field.strip_prefix('~') {
                traits.expected_ms = Some(ms.parse().ok()?);
            } else if let Some(property) = field.strip_prefix('@') {
                let (name, value) = property.split_once('=')?;
                traits.requirements.0.insert(decoded(name)?, decoded(value)?);
            } else if field.contains(':') {
                let amount = |part: &str| {
                    let (kind, micros) = part.split_once(':')?;
                    Some((kind.parse().ok()?, Esu::from_micros(micros.parse().ok()?)))
                };
                traits.occupancy = field.split(',').map(amount).collect::<Option<Occupancy>>()?;
            } else {
                traits.warm = matches!(field, "w" | "b");
                traits.sends_actions = matches!(field, "a" | "b");
            }
        }
        Some(traits)
    }
}

/// Text of a requirement inside an entry, without the characters that separate its parts.
fn encoded(text: &str) -> impl fmt::Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

fn decoded(text: &str) -> Option<String> {
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

/// Range of positions within a priority: at a million builds per second it lasts for nine years. Two bits of priority
/// above 48 bits of position fit the 53 bits that a sorted set's double stores exactly.
const RANKS: u64 = 1 << 48;

/// The score of a waiting build: strict priority, then its order within the priority.
pub(crate) fn score(priority: Priority, rank: u64) -> u64 {
    u64::from(priority.rank()) * RANKS + rank % RANKS
}

/// The priority in a score; `None` if no waiting build has this score.
pub(crate) fn priority_of(score: u64) -> Option<Priority> {
    let rank = score / RANKS;
    Priority::ALL.into_iter().find(|priority| u64::from(priority.rank()) == rank)
}

impl IndexEvent {
    /// Appends the nine arguments that the script expects for each event.
    pub(crate) fn write(&self, invocation: &mut redis::ScriptInvocation<'_>) {
        let BuildKey { group, id } = &self.key;
        let id = id.to_string();
        match &self.change {
            Change::Enqueued { priority, rank, first, expires_at, traits } => {
                invocation.arg("E").arg(self.sequence.0).arg(group.as_str()).arg(id);
                invocation.arg(score(*priority, *rank)).arg(expires_at.0).arg(u8::from(*first)).arg("");
                invocation.arg(traits.to_text());
            }
            Change::Started { started_at, deadline, workspace, traits } => {
                invocation.arg("S").arg(self.sequence.0).arg(group.as_str()).arg(id);
                invocation.arg(0).arg(started_at.0).arg(deadline.0).arg(workspace.to_string());
                invocation.arg(traits.to_text());
            }
            Change::Finished { ended_at, workspace, only } => {
                let workspace = workspace.as_ref().map(ToString::to_string).unwrap_or_default();
                invocation.arg("F").arg(self.sequence.0).arg(group.as_str()).arg(id);
                invocation.arg(0).arg(ended_at.0).arg(u8::from(*only)).arg(workspace).arg("");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_more_urgent_build_comes_first_however_young() {
        assert!(score(Priority::Emergency, RANKS - 1) < score(Priority::Interactive, 1));
        assert!(score(Priority::Batch, 1) < score(Priority::Batch, 2));
        for priority in Priority::ALL {
            assert_eq!(priority_of(score(priority, 7)), Some(priority));
        }
        assert_eq!(priority_of(4 * RANKS), None);
    }

    #[test]
    fn traits_are_read_as_they_were_written() {
        let kind = |name: &str| name.parse().unwrap();
        let occupancy = Occupancy::from_iter([(kind("gpu"), Esu::from_micros(1)), (kind("x86"), Esu::MAX)]);
        let owned =
            [("os", "debian 12"), ("a=b@~:", "%, \u{e9}")].map(|(name, value)| (name.into(), value.into()));
        let requirements = BuildRequirements(owned.into());
        for traits in [
            Traits::usual(),
            Traits { warm: true, ..Traits::usual() },
            Traits { sends_actions: true, ..Traits::usual() },
            Traits { warm: true, sends_actions: true, ..Traits::usual() },
            Traits { expected_ms: Some(0), ..Traits::usual() },
            Traits { requirements: requirements.clone(), ..Traits::usual() },
            Traits { occupancy, expected_ms: Some(u64::MAX), requirements, ..Traits::usual() },
        ] {
            assert_eq!(Traits::from_fields(traits.to_text().split_whitespace()), Some(traits));
        }
        assert_eq!(Traits::usual().to_text(), "", "the default takes no memory");
    }

    #[test]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the round trip is the point"
    )]
    fn scores_are_exact_as_doubles() {
        let last = score(Priority::Batch, RANKS - 1);
        assert_eq!(last as f64 as u64, last);
    }
}
