//! The adaptive rule: the best recent rule out of several.
//!
//! No single rule is best for all work: repetitions of exactly the same command are best estimated from that command,
//! work that changes from day to day from its latest runs, and a submitter's first work with a label set from the runs
//! of others with these labels. So each rule is evaluated on all work, and the one that was best recently for work with
//! the same labels is used. While there is little data for these labels, the scores for all work count. A rule without
//! an estimate is scored as the thesis's rule, so that all are judged by the same work and none gains by abstaining.

use std::time::Duration;

use super::{
    Estimate, Pasts, Source,
    past::{KEPT, Past},
    thesis,
};

/// Decay of the scores for labels with each further piece of work: some 50 count.
pub(super) const MEMORY_OF_LABELS: f64 = 0.98;
/// Decay of the scores for all work: some 1000 count.
pub(super) const MEMORY_OF_ALL: f64 = 0.999;
/// Weight of the scores for all work, as a number of pieces of work with these labels.
const PRIOR: f64 = 50.0;
/// Maximum relative error; larger errors count the same.
const WORST: f64 = 0.5;
/// Number of latest runs used by some rules.
const LATEST: usize = 3;
/// Weight of all runs with these labels, as a number of the submitter's runs, when both are mixed.
const SHRINK: f64 = 1.0;

/// A rule for an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The rule of the thesis.
    Thesis,
    /// Median of the submitter's latest runs with these labels.
    LatestOfSubmitter,
    /// Median of all runs with these labels, from any submitter.
    Labels,
    /// The submitter's runs, drawn towards all runs with these labels, more strongly the fewer there are.
    Mixed,
    /// The densest range of the submitter's runs.
    DensestOfSubmitter,
    /// The densest range of the runs with these labels.
    DensestOfLabels,
    /// Median of the runs of exactly this command.
    Command,
    /// Median of the latest runs of exactly this command.
    LatestOfCommand,
    /// The runs of exactly this command, times the ratio of the submitter's runs to all runs with these labels.
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

/// Score of each rule, in the order of `RULES`: 1 is perfect.
pub(super) type Judged = [f64; RULES.len()];

/// Recent scores of the rules, as decaying sums.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scores {
    sums: Judged,
    weight: f64,
}

impl Scores {
    /// Adds the scores of a further piece of work; previous scores are multiplied by `memory`.
    pub(super) fn add(&mut self, judged: &Judged, memory: f64) {
        for (sum, score) in self.sums.iter_mut().zip(judged) {
            *sum = *sum * memory + score;
        }
        self.weight = self.weight * memory + 1.0;
    }

    /// The best rule by these scores, which are of all work, and by the scores of work with the same labels. The
    /// thesis's rule until another one is better.
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
    /// Score of each rule for a piece of work that took `took_ms`; `None` while even the thesis's rule has no estimate.
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

/// The estimate of `rule`, or the thesis's estimate if it has none. At most the limit.
pub(super) fn answer(pasts: &Pasts<'_>, limit_ms: u64, rule: Rule) -> Option<Estimate> {
    by_rule(rule, pasts).or_else(|| thesis::answer(pasts, limit_ms))
}

fn by_rule(rule: Rule, pasts: &Pasts<'_>) -> Option<Estimate> {
    let estimate_from = |ms: Option<u64>, source| ms.map(|ms| Estimate { ms, source });
    match rule {
        Rule::Thesis => None,
        Rule::LatestOfSubmitter => estimate_from(pasts.submitter.median(LATEST), Source::Submitter),
        Rule::Labels => estimate_from(at_least(2, pasts.labels)?.median(KEPT), Source::Labels),
        Rule::Mixed => estimate_from(mixed(pasts), Source::Submitter),
        Rule::DensestOfSubmitter => estimate_from(pasts.submitter.densest(), Source::Submitter),
        Rule::DensestOfLabels => estimate_from(at_least(2, pasts.labels)?.densest(), Source::Labels),
        Rule::Command => estimate_from(pasts.command.median(KEPT), Source::Command),
        Rule::LatestOfCommand => estimate_from(pasts.command.median(LATEST), Source::Command),
        Rule::CommandOfSubmitter => estimate_from(command_of_submitter(pasts), Source::Command),
    }
}

fn at_least(least: usize, past: &Past) -> Option<&Past> {
    (past.len() >= least).then_some(past)
}

/// The geometric mean of the submitter's median and that of all runs with these labels, weighted by the number
/// of the submitter's runs.
fn mixed(pasts: &Pasts<'_>) -> Option<u64> {
    let own = pasts.submitter.median(KEPT)?.max(1) as f64;
    let all = at_least(2, pasts.labels)?.median(KEPT)?.max(1) as f64;
    let weight = pasts.submitter.len() as f64;
    let ln = (weight * own.ln() + SHRINK * all.ln()) / (weight + SHRINK);
    whole(ln.exp())
}

/// The median of the command, times the submitter's median divided by that of all runs with these labels.
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
