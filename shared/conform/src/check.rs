//! What a check is, and the list of all.

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{context::Cx, groups, stop::Judged};

/// What a statement is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Group {
    /// Capabilities and what holds for every call.
    A,
    /// Byte streams.
    B,
    /// The unary calls of the content-addressable store.
    C,
    /// Splitting and splicing.
    D,
    /// The action cache.
    E,
    /// Which actions are accepted.
    F,
    /// Operations and their streams.
    G,
    /// What executors do, and outputs.
    H,
    /// Log streams, remote assets, build events.
    I,
}

impl Group {
    /// Its title.
    pub fn title(self) -> &'static str {
        match self {
            Self::A => "Capabilities and general",
            Self::B => "ByteStream",
            Self::C => "CAS",
            Self::D => "SplitBlob and SpliceBlob",
            Self::E => "Action cache",
            Self::F => "Execute: what is accepted",
            Self::G => "Operations",
            Self::H => "Executors and outputs",
            Self::I => "Log streams, remote assets, build events",
        }
    }
}

/// How binding a statement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The specification demands it.
    Must,
    /// The specification advises it.
    Should,
    /// The specification allows or describes it.
    May,
    /// A real client needs it.
    Practical,
}

/// What the server must say it can do for the check to make sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// A content-addressable store.
    Store,
    /// An action cache that may be written.
    Cache,
    /// Execution.
    Execution,
}

/// When it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// From the start, beside the others, outside their bound.
    Long,
    /// With the others.
    Usual,
    /// Alone, when the others are done.
    Alone,
    /// At the end.
    Last,
}

/// One check.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) id: u16,
    pub(crate) group: Group,
    pub(crate) level: Level,
    pub(crate) needs: Needs,
    pub(crate) phase: Phase,
    /// Whether it runs once for each digest function.
    pub(crate) each_function: bool,
    pub(crate) title: &'static str,
    pub(crate) run: for<'a> fn(&'a Cx) -> BoxFuture<'a, Judged>,
}

impl Check {
    pub(crate) const fn at(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    pub(crate) const fn each_function(self) -> Self {
        Self { each_function: true, ..self }
    }
}

/// A check: number, group, level, what it needs, title, function.
macro_rules! check {
    ($id:literal, $group:ident, $level:ident, $needs:ident, $title:literal, $run:path) => {
        $crate::check::Check {
            id: $id,
            group: $crate::check::Group::$group,
            level: $crate::check::Level::$level,
            needs: $crate::check::Needs::$needs,
            phase: $crate::check::Phase::Usual,
            each_function: false,
            title: $title,
            run: |cx| Box::pin($run(cx)),
        }
    };
}

pub(crate) use check;

/// All checks in the order of their numbers.
pub(crate) fn all() -> Vec<Check> {
    let mut all: Vec<Check> = groups::CHECKS.iter().flat_map(|checks| checks.iter().copied()).collect();
    all.sort_by_key(|check| check.id);
    all
}

/// A statement that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// Its number.
    pub id: u16,
    /// What it is about.
    pub group: Group,
    /// How binding it is.
    pub level: Level,
    /// What it says.
    pub title: &'static str,
}

/// Every statement that is checked, in order.
pub fn statements() -> Vec<Statement> {
    let statement =
        |check: Check| Statement { id: check.id, group: check.group, level: check.level, title: check.title };
    all().into_iter().map(statement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_has_one_check() {
        let ids: Vec<u16> = all().iter().map(|check| check.id).collect();
        assert_eq!(ids, (1..=156).collect::<Vec<_>>());
    }
}
