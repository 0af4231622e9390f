//! Definition of a check.

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::{context::Cx, stop::Judged};

/// The area that a statement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Group {
    /// Capabilities and rules that apply to every call.
    A,
    /// Reads and writes of byte streams.
    B,
    /// Unary calls of the content-addressable store (CAS).
    C,
    /// Splitting and splicing of blobs.
    D,
    E,
    /// Rules for accepting actions.
    F,
    /// Operations and their event streams.
    G,
    /// Behaviour of executors, and outputs of actions.
    H,
    /// Log streams, remote assets, build events.
    I,
}

impl Group {
    pub fn title(self) -> &'static str {
        match self {
            Self::A => "Capabilities and general",
            Self::B => "ByteStream",
            Self::C => "CAS",
            Self::D => "SplitBlob and SpliceBlob",
            Self::E => "Action cache",
            Self::F => "Execute: accepted actions",
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
    /// The specification requires it.
    Must,
    /// The specification recommends it.
    Should,
    /// The specification allows or describes it.
    May,
    /// A real client needs it.
    Practical,
}

/// Capability that the server must announce for the check to apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// A content-addressable store (CAS).
    Store,
    /// A writable action cache.
    Cache,
    Execution,
}

/// When a check runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// From the start, in parallel with the others and outside their limit of parallel checks.
    Long,
    /// In parallel with the others.
    Usual,
    /// On its own, after all usual checks.
    Alone,
    /// At the end of the run.
    Last,
}

/// One check of the server.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    pub(crate) id: u16,
    pub(crate) group: Group,
    pub(crate) level: Level,
    pub(crate) needs: Needs,
    pub(crate) phase: Phase,
    /// Whether the check runs once per digest function.
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

/// Defines a check: number, group, level, needs, title, function.
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
