//! The rule of section 3.4.1 of the thesis.

use super::{Estimate, Pasts, Source, past::KEPT};

/// Minimum number of runs of a label set, and of an environment, to be used.
const LEAST: usize = 2;

/// The median of the most precise key with enough data: one run of the submitter, two of the labels, or two of the
/// environment that took less than the limit.
pub(super) fn answer(pasts: &Pasts<'_>, limit_ms: u64) -> Option<Estimate> {
    let by = |source| move |ms| Estimate { ms, source };
    let submitter = || pasts.submitter.median(KEPT).map(by(Source::Submitter));
    let labels = || {
        let known = pasts.labels.len() >= LEAST;
        known.then(|| pasts.labels.median(KEPT)).flatten().map(by(Source::Labels))
    };
    let environment = || pasts.environment.median_below(limit_ms, LEAST).map(by(Source::Environment));
    submitter().or_else(labels).or_else(environment)
}
