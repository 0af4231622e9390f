//! Training data from finished builds.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
};

use bus::Stored;
use invariant::impossible;
use model::{
    BuildId, BuildRecord, Esu, ExecutorType, Group, LifecycleEvent, Millis, Outcome, RecordHead, ToolCall,
    ToolFacts,
};
use occupancy::{BuildFacts, Dataset};
use tracing::debug;

/// A rule uses an executor type if at least this share of its builds did.
const RULE_SHARE: f64 = 0.05;
/// Minimum number of a rule's builds that used a type other than x86; fewer are not conclusive.
const RULE_BUILDS_MIN: u64 = 20;
/// The notice of a model must fit one message: maximum number of rules in it, and of bytes in a rule's name.
const RULES_PUBLISHED_MAX: usize = 2_000;
const RULE_NAME_MAX: usize = 256;
/// Maximum number of rules counted. Clients choose the names of rules, and may make up any number of them.
const RULES_MAX: usize = 100_000;
/// Maximum number of builds to learn from: each takes about 350 bytes of memory, 700 MB in total.
/// More builds add little.
const BUILDS_MAX: u64 = 2_000_000;
const HOUR_MS: u64 = 3_600_000;

/// All training data from finished builds.
#[derive(Default)]
pub(crate) struct TrainingData {
    pub(crate) data: Dataset,
    rules: BTreeMap<String, RuleUse>,
    pub(crate) builds: u64,
    /// Number of ends of builds in each hour, including those beyond the limit.
    ended: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct RuleUse {
    builds: u64,
    /// Number of builds that used a type other than x86.
    other_types: u64,
    /// Builds by executor type, without x86, which every build is assumed to need.
    types: BTreeMap<ExecutorType, u64>,
}

impl TrainingData {
    /// Adds a lifecycle message, if it is the end of a build since `since`.
    pub(crate) fn add(&mut self, stored: &Stored, since: Millis) {
        // Most messages teach nothing: these are not read completely.
        let head: RecordHead = match stored.read() {
            Ok(head) => head,
            Err(error) => {
                debug!(error = telemetry::error_chain(&error), "ignoring an unreadable event");
                return;
            }
        };
        if head.event != LifecycleEvent::Finished || head.at_ms < since {
            return;
        }
        if !self.count(head.at_ms) {
            return;
        }
        match stored.record() {
            Ok(record) => self.learn(&record),
            Err(error) => debug!(error = telemetry::error_chain(&error), "ignoring an unreadable event"),
        }
    }

    /// Adds the record of a build, if it ended since `since`.
    pub(crate) fn add_record(&mut self, record: &BuildRecord, since: Millis) {
        if record.result().is_some() && record.at_ms >= since && self.count(record.at_ms) {
            self.learn(record);
        }
    }

    /// Counts an end at `at`; returns whether it is within the limit.
    fn count(&mut self, at: Millis) -> bool {
        *self.ended.entry(at.0 / HOUR_MS).or_default() += 1;
        self.builds < BUILDS_MAX
    }

    fn learn(&mut self, record: &BuildRecord) {
        let Some(result) = record.result() else { return };
        // An aborted build has no useful usage.
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
        // A type that was requested and not used had cache hits only.
        let asked = build.occupancy.0.keys().map(|kind| (kind.as_str(), result.usage.get(kind).units()));
        self.data.push(&facts, asked, split_key(&build.group, build.id));
        self.builds += 1;
        let used = result.usage.iter().filter(|(_, amount)| *amount > Esu::ZERO).map(|(kind, _)| kind);
        let used: Vec<&ExecutorType> = used.filter(|kind| **kind != ExecutorType::x86()).collect();
        for rule in rules_of(&call, result.tool.as_deref()) {
            self.learn_rule(rule, &used);
        }
    }

    fn learn_rule(&mut self, rule: &str, used: &[&ExecutorType]) {
        if !self.rules.contains_key(rule) {
            if self.rules.len() >= RULES_MAX || !fits_notice(rule) {
                return;
            }
            self.rules.insert(rule.to_owned(), RuleUse::default());
        }
        let Some(known) = self.rules.get_mut(rule) else {
            impossible!("a known rule has no counts");
            return;
        };
        known.builds += 1;
        known.other_types += u64::from(!used.is_empty());
        for kind in used {
            *known.types.entry((*kind).clone()).or_default() += 1;
        }
    }

    /// The time to learn from when more builds ended than the limit: otherwise the latest ones, which predict the next
    /// ones best, would be omitted.
    pub(crate) fn start_within_limit(&self) -> Option<Millis> {
        let mut builds = 0;
        let mut since = None;
        for (hour, ended) in self.ended.iter().rev() {
            builds += ended;
            if builds > BUILDS_MAX {
                // The last hour is always included.
                return Some(Millis(since.unwrap_or(*hour).saturating_mul(HOUR_MS)));
            }
            since = Some(*hour);
        }
        None
    }

    /// The executor types other than x86 that builds with targets of a rule used, by rule; if there are more rules
    /// than a notice holds, the rules with the most builds.
    pub(crate) fn types_by_rule(&self) -> BTreeMap<String, BTreeSet<ExecutorType>> {
        let mut conclusive: Vec<(&String, &RuleUse)> =
            self.rules.iter().filter(|(_, used)| used.other_types >= RULE_BUILDS_MIN).collect();
        conclusive.sort_by(|(one, used), (other, than)| {
            than.other_types.cmp(&used.other_types).then(one.cmp(other))
        });
        let types = conclusive.into_iter().map(|(rule, used)| (rule.clone(), used.significant_types()));
        types.filter(|(_, types)| !types.is_empty()).take(RULES_PUBLISHED_MAX).collect()
    }
}

impl RuleUse {
    /// The executor types used by a significant share of the builds.
    fn significant_types(&self) -> BTreeSet<ExecutorType> {
        let share = RULE_SHARE * self.builds as f64;
        self.types.iter().filter(|(_, count)| **count as f64 >= share).map(|(kind, _)| kind.clone()).collect()
    }
}

/// The rules of the build's targets: those that the tool reported, else those that the request or earlier builds name.
fn rules_of<'a>(call: &'a ToolCall, facts: Option<&'a ToolFacts>) -> BTreeSet<&'a String> {
    match facts {
        Some(facts) if !facts.targets.is_empty() => {
            facts.targets.values().flat_map(|target| &target.rules).collect()
        }
        Some(_) | None => call.rules.iter().collect(),
    }
}

/// Whether a rule's name is within its limit in a notice: JSON writes some characters with six bytes.
fn fits_notice(rule: &str) -> bool {
    rule.len() <= RULE_NAME_MAX && !rule.contains(|c: char| c.is_control() || matches!(c, '"' | '\\'))
}

/// A stable key, so that the same build is always used for training, or always for testing.
fn split_key(group: &Group, id: BuildId) -> u64 {
    let mut hasher = DefaultHasher::new();
    (group, id).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
