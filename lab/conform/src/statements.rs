//! All checks, and the statements that they verify.

use serde::Serialize;

use crate::{
    check::{Check, Group, Level},
    groups,
};

/// Returns all checks, ordered by number.
pub(crate) fn checks() -> Vec<Check> {
    let mut checks: Vec<Check> = groups::CHECKS.iter().flat_map(|topic| topic.iter().copied()).collect();
    checks.sort_by_key(|check| check.id);
    checks
}

/// A statement about the server that a check verifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// Number of the statement, from 1.
    pub id: u16,
    pub group: Group,
    pub level: Level,
    /// Text of the statement.
    pub title: &'static str,
}

/// Returns all statements, ordered by number.
pub fn statements() -> Vec<Statement> {
    let statement =
        |check: Check| Statement { id: check.id, group: check.group, level: check.level, title: check.title };
    checks().into_iter().map(statement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_has_one_check() {
        let ids: Vec<u16> = checks().iter().map(|check| check.id).collect();
        assert_eq!(ids, (1..=156).collect::<Vec<_>>());
    }
}
