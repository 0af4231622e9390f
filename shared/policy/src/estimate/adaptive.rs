//! The rule that was best lately, of several.
//!
//! No single rule is best for all work: who repeats the very same command is best told by what that took, whose work
//! changes from day to day by its latest runs, who is new to a label set by what others with it needed. So each rule is
//! tried on all work, in thought, and the one that did best lately on work with the same labels answers. While little is
//! known of these, how it did on all work counts. A rule that has nothing to say answers as the thesis's, so that all are
//! judged by the same work and none gains by being silent.

use std::time::Duration;

use super::{
    Estimate, Pasts, Source,
    past::{KEPT, Past},
    thesis,
};

/// Of the score of a rule, how much is left after one more piece of work with these labels: some 50 count.
pub(super) const MEMORY_OF_LABELS: f64 = 0.98;
/// The same for all work: some 1000 count.
pub(super) const MEMORY_OF_ALL: f64 = 0.999;
/// As so many pieces of work with these labels counts how a rule did on all work.
const PRIOR: f64 = 50.0;
/// A relative error that is as bad as any larger one.
const WORST: f64 = 0.5;
/// Runs that are the latest.
const LATEST: usize = 3;
/// Runs of others with these labels that count as one of the submitter's own, when both are mixed.
const SHRINK: f64 = 1.0;

/// A way to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// As the thesis does.
    Thesis,
    /// The submitter's latest runs with these labels.
    LatestOfSubmitter,
    /// All runs with these labels, whoever submitted them.
    Labels,
    /// The submitter's runs, drawn towards those of all with these labels the more the fewer they are.
    Mixed,
    /// Where the submitter's runs lie closest together.
    DensestOfSubmitter,
    /// Where the runs with these labels lie closest together.
    DensestOfLabels,
    /// The runs of the very command.
    Command,
    /// Its latest runs.
    LatestOfCommand,
    /// The runs of the very command, and by how much the submitter's differ from those of all with these labels.
    CommandOfSubmitter,
}

const RULES: [Rule; 9] = [
    Rule::Thesis,
    Rule::LatestOfSubmitter,
    Rule::Labels,
    Rule::Mixed,
    Rule::DensestOfSubmitter,
    Rule::DensestOfLabels,
    Rule::Command,
    Rule::LatestOfCommand,
    Rule::CommandOfSubmitter,
];

/// How well each rule did, in their order: 1 is perfect.
pub(super) type Judged = [f64; RULES.len()];

/// How well each rule did lately: sums that fade.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scores {
    sums: Judged,
    weight: f64,
}

impl Scores {
    /// One more piece of work was judged; what was before counts `memory` of what it did.
    pub(super) fn add(&mut self, judged: &Judged, memory: f64) {
        for (sum, score) in self.sums.iter_mut().zip(judged) {
            *sum = *sum * memory + score;
        }
        self.weight = self.weight * memory + 1.0;
    }

    /// The best rule by these scores, of all work, and those of the work with the same labels. The thesis's until there
    /// is a better one.
    pub(super) fn best(&self, of_labels: Option<&Self>) -> Rule {
        let nothing = Self::default();
        let local = of_labels.unwrap_or(&nothing);
        let mut best = (Rule::Thesis, f64::NEG_INFINITY);
        for ((rule, sum), all) in RULES.into_iter().zip(local.sums).zip(self.sums) {
            let score = sum + PRIOR * all / self.weight.max(1.0);
            if score > best.1 {
                best = (rule, score);
            }
        }
        best.0
    }
}

impl Pasts<'_> {
    /// How well each rule would have done on a piece of work that took so long; `None` while even the thesis's has nothing
    /// to say.
    pub(super) fn judge(&self, took_ms: u32) -> Option<Judged> {
        let thesis = thesis::answer(self, u64::MAX)?;
        let took = f64::from(took_ms.max(1));
        Some(RULES.map(|rule| {
            let answer = by_rule(rule, self).unwrap_or(thesis);
            let error = (answer.ms as f64 - took).abs() / took;
            1.0 - (error / WORST).min(1.0)
        }))
    }
}

/// What `rule` answers, or the thesis's if it has nothing to say. No more than the limit.
pub(super) fn answer(pasts: &Pasts<'_>, limit_ms: u64, rule: Rule) -> Option<Estimate> {
    by_rule(rule, pasts).or_else(|| thesis::answer(pasts, limit_ms))
}

fn by_rule(rule: Rule, pasts: &Pasts<'_>) -> Option<Estimate> {
    let of = |ms: Option<u64>, source| ms.map(|ms| Estimate { ms, source });
    match rule {
        Rule::Thesis => None,
        Rule::LatestOfSubmitter => of(pasts.submitter.median(LATEST), Source::Submitter),
        Rule::Labels => of(at_least(2, pasts.labels)?.median(KEPT), Source::Labels),
        Rule::Mixed => of(mixed(pasts), Source::Submitter),
        Rule::DensestOfSubmitter => of(pasts.submitter.densest(), Source::Submitter),
        Rule::DensestOfLabels => of(at_least(2, pasts.labels)?.densest(), Source::Labels),
        Rule::Command => of(pasts.command.median(KEPT), Source::Command),
        Rule::LatestOfCommand => of(pasts.command.median(LATEST), Source::Command),
        Rule::CommandOfSubmitter => of(command_of_submitter(pasts), Source::Command),
    }
}

fn at_least(least: usize, past: &Past) -> Option<&Past> {
    (past.len() >= least).then_some(past)
}

/// The geometric mean of the submitter's median and that of all with these labels, weighted by how many runs the first
/// rests on.
fn mixed(pasts: &Pasts<'_>) -> Option<u64> {
    let own = pasts.submitter.median(KEPT)?.max(1) as f64;
    let all = at_least(2, pasts.labels)?.median(KEPT)?.max(1) as f64;
    let weight = pasts.submitter.len() as f64;
    let ln = (weight * own.ln() + SHRINK * all.ln()) / (weight + SHRINK);
    whole(ln.exp())
}

/// The median of the command, times that of the submitter by that of all with these labels.
fn command_of_submitter(pasts: &Pasts<'_>) -> Option<u64> {
    let command = at_least(2, pasts.command)?.median(KEPT)? as f64;
    let own = at_least(2, pasts.submitter)?.median(KEPT)? as f64;
    let all = at_least(2, pasts.labels)?.median(KEPT)?.max(1) as f64;
    whole(command * own / all)
}

/// A number of milliseconds without its fraction.
fn whole(ms: f64) -> Option<u64> {
    u64::try_from(Duration::try_from_secs_f64(ms / 1e3).ok()?.as_millis()).ok()
}
