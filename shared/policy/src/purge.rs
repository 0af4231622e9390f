//! Which results of the action cache a purge deletes.

use std::fmt;

use model::{Provenance, PurgeReply, PurgeRequest};

/// Maximum number of results that a reply lists.
const LISTED_MAX: usize = 1000;

/// A purge that has a condition.
#[derive(Debug, Clone)]
pub struct Purge {
    asked: PurgeRequest,
    reply: PurgeReply,
}

/// A purge without a condition, which would delete everything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a purge needs a condition: executor, action or since_ms")]
pub struct NoCondition;

impl Purge {
    /// Begins a purge with these conditions.
    ///
    /// # Errors
    ///
    /// Fails if it has no condition.
    pub fn new(asked: PurgeRequest) -> Result<Self, NoCondition> {
        let PurgeRequest { executor, action, since_ms, dry_run: _ } = &asked;
        if executor.is_none() && action.is_none() && since_ms.is_none() {
            return Err(NoCondition);
        }
        Ok(Self { asked, reply: PurgeReply::default() })
    }

    /// Whether to delete the next result, which has this provenance.
    pub fn deletes(&mut self, provenance: Option<&Provenance>) -> bool {
        self.reply.examined += 1;
        let Some(provenance) = provenance else {
            self.reply.without_provenance += 1;
            return false;
        };
        if !selects(&self.asked, provenance) {
            return false;
        }
        self.reply.selected += 1;
        if self.reply.results.len() < LISTED_MAX {
            self.reply.results.push(provenance.clone());
        }
        !self.asked.dry_run
    }

    /// What it did, when this many results were deleted.
    pub fn reply(self, deleted: u64) -> PurgeReply {
        PurgeReply { deleted, ..self.reply }
    }
}

/// Its conditions, as the audit record has them.
impl fmt::Display for Purge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PurgeRequest { executor, action, since_ms, dry_run: _ } = &self.asked;
        let executor = executor.as_ref().map(|id| format!("executor {id}"));
        let action = action.map(|action| format!("action {action}"));
        let since = since_ms.map(|since| format!("since_ms {}", since.0));
        f.write_str(&[executor, action, since].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

fn selects(asked: &PurgeRequest, found: &Provenance) -> bool {
    let is_executor = |id: &String| !id.is_empty() && (*id == found.executor || *id == found.home);
    asked.executor.as_ref().is_none_or(is_executor)
        && asked.action.as_ref().is_none_or(|action| *action == found.action)
        && asked.since_ms.is_none_or(|since| found.at_ms >= since)
}

#[cfg(test)]
mod tests {
    use model::{DigestFunction, Millis};
    use proptest::prelude::*;

    use super::*;

    fn of(executor: u8, action: u8, at: u64) -> Provenance {
        let action = DigestFunction::Sha256.digest(&[action]);
        let json = serde_json::json!({
            "action": action, "executor": format!("e{executor}"), "home": format!("h{executor}"), "at_ms": at
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_purge_without_condition_is_refused() {
        assert_eq!(Purge::new(PurgeRequest::default()).unwrap_err(), NoCondition);
        assert!(Purge::new(PurgeRequest { dry_run: true, ..PurgeRequest::default() }).is_err());
    }

    #[test]
    fn an_empty_executor_is_not_that_of_results_of_clients() {
        let asked = PurgeRequest { executor: Some(String::new()), ..PurgeRequest::default() };
        let mut of_client = of(1, 1, 1);
        of_client.executor.clear();
        of_client.home.clear();
        assert!(!Purge::new(asked).unwrap().deletes(Some(&of_client)));
    }

    proptest! {
        #[test]
        fn what_is_selected_meets_all_conditions(
            entries in proptest::collection::vec(proptest::option::of((0..3_u8, 0..3_u8, 0..5_u64)), 0..40),
            executor in proptest::option::of((0..3_u8, any::<bool>())), action in proptest::option::of(0..3_u8),
            since in proptest::option::of(0..5_u64), dry_run in any::<bool>(),
        ) {
            let asked = PurgeRequest {
                executor: executor.map(|(id, by_home)| format!("{}{id}", if by_home { "h" } else { "e" })),
                action: action.map(|action| DigestFunction::Sha256.digest(&[action])),
                since_ms: since.map(Millis),
                dry_run,
            };
            let Ok(mut purge) = Purge::new(asked) else { return Ok(()) };
            let mut selected = 0;
            for entry in &entries {
                let expected = entry.is_some_and(|(by, of, at)| {
                    executor.is_none_or(|(id, _)| id == by)
                        && action.is_none_or(|action| action == of)
                        && since.is_none_or(|since| at >= since)
                });
                selected += u64::from(expected);
                let provenance = entry.map(|(by, action, at)| of(by, action, at));
                prop_assert_eq!(purge.deletes(provenance.as_ref()), expected && !dry_run);
            }
            let reply = purge.reply(0);
            prop_assert_eq!(reply.selected, selected);
            prop_assert_eq!(reply.examined, entries.len() as u64);
            prop_assert_eq!(reply.without_provenance, entries.iter().filter(|it| it.is_none()).count() as u64);
        }
    }
}
