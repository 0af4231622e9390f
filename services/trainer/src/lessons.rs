//! What a finished build teaches.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use bus::Stored;
use model::{BuildId, BuildRecord, Esu, ExecutorType, Group, Millis, Outcome};
use occupancy::{BuildFacts, Dataset};
use serde::Deserialize;

/// A rule uses an executor type when so many of its builds did.
const RULE_SHARE: f64 = 0.05;

/// Enough of a lifecycle message to pass over it: most teach nothing.
#[derive(Deserialize)]
struct Brief<'a> {
    event: &'a str,
    at_ms: Millis,
}

/// Everything that finished builds teach.
#[derive(Default)]
pub(crate) struct Lessons {
    pub(crate) data: Dataset,
    rules: BTreeMap<String, RuleUse>,
    pub(crate) builds: u64,
}

#[derive(Default)]
struct RuleUse {
    builds: u64,
    types: BTreeMap<ExecutorType, u64>,
}

impl Lessons {
    /// Learns from a lifecycle message, if it tells the end of a build since `since`.
    pub(crate) fn take(&mut self, stored: &Stored, since: Millis) {
        let brief: Option<Brief<'_>> = serde_json::from_slice(&stored.payload).ok();
        if brief.is_none_or(|brief| brief.event != "INVOCATION_FINISHED" || brief.at_ms < since) {
            return;
        }
        let Ok(record) = stored.record() else { return };
        self.learn(&record);
    }

    fn learn(&mut self, record: &BuildRecord) {
        let Some(result) = record.result() else { return };
        // What was stopped half-way says nothing of what it takes.
        if !matches!(result.outcome, Outcome::Succeeded | Outcome::Failed) || result.exit_code.is_none() {
            return;
        }
        let build = &record.build;
        let call = build.tool_call();
        let facts = BuildFacts {
            command: &call.command,
            flags: &call.flags,
            targets: &call.targets,
            group: build.group.as_str(),
            priority: build.priority.as_str(),
        };
        // A type that was asked for and not used was all cache hits.
        let asked = build.occupancy.0.keys().map(|kind| (kind.as_str(), result.usage.get(kind).units()));
        self.data.push(&facts, asked, key(&build.group, build.id));
        self.builds += 1;
        for rule in &call.rules {
            let used = self.rules.entry(rule.clone()).or_default();
            used.builds += 1;
            for (kind, _) in result.usage.iter().filter(|(_, amount)| *amount > Esu::ZERO) {
                *used.types.entry(kind.clone()).or_default() += 1;
            }
        }
    }

    /// The executor types that builds with targets of a rule used, by rule.
    pub(crate) fn types_by_rule(&self) -> BTreeMap<String, BTreeSet<ExecutorType>> {
        let types = |used: &RuleUse| {
            let often = |count: u64| count as f64 >= RULE_SHARE * used.builds as f64;
            used.types.iter().filter(|(_, count)| often(**count)).map(|(kind, _)| kind.clone()).collect()
        };
        self.rules.iter().map(|(rule, used)| (rule.clone(), types(used))).collect()
    }
}

/// The same build is always learned from, or always tested on.
fn key(group: &Group, id: BuildId) -> u64 {
    let mut hasher = DefaultHasher::new();
    (group, id).hash(&mut hasher);
    hasher.finish()
}
