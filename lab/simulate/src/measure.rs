//! Metrics of a simulated quota scenario.

use model::Group;
use serde::{Deserialize, Serialize};

use crate::{Load, QuotaScenario, farm::Recorded, series::GroupSeries, statistics};

/// Number of seconds over which usage is averaged before it is compared with the set point.
const WINDOW: usize = 30;

/// Number of seconds that a group must stay near its set point to count as settled. A build that ends later
/// does not unsettle it.
const HOLD: usize = 60;

/// Number of seconds into a phase after which the governor has seen its load.
const SETTLED_SP: usize = 10;

/// Metrics of a whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuotaMetrics {
    /// Metrics of each group in each phase.
    pub phases: Vec<GroupPhase>,
    /// Largest overshoot of all groups and phases, as a share of the set point.
    pub overshoot_max: f64,
    /// Largest absolute steady-state error of all groups and phases, as a share of the set point.
    pub steady_error_max: f64,
    /// Longest settling time in seconds; `None` when a group never settled.
    pub settling_seconds_max: Option<u32>,
    /// Longest time in seconds until a lender had its quota again; `None` when a lender never had.
    pub give_back_seconds_max: Option<u32>,
    /// Largest total usage of all groups, as a share of all quotas: a mean over 30 s.
    pub total_max: f64,
    /// Number of builds that started.
    pub started: u64,
    /// Number of builds that finished. The builds between the two still ran at the end: no build is ever stopped.
    pub finished: u64,
}

/// Metrics of a group in a phase. Those about the set point are `None` unless the group was hungry
/// for the whole phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupPhase {
    /// Index of the phase, from 0.
    pub phase: usize,
    pub group: Group,
    /// Load of the group in this phase.
    pub load: Load,
    /// Mean usage in the last half of the phase, in ESU.
    pub pv: f64,
    /// Mean set point in the last half of the phase, in ESU.
    pub sp: f64,
    /// Largest excess of the 30 s mean usage over the set point, as a share of the set point; at least 0. Counted
    /// only once usage was within the set point: builds that still run on capacity borrowed before are not overshoot.
    pub overshoot: Option<f64>,
    /// Mean usage in the last half of the phase relative to the mean set point: a share, negative if below.
    pub steady_error: Option<f64>,
    /// Second of the phase from which the 30 s mean usage stays within 5 % of the set point for at least a minute.
    pub settling_seconds: Option<u32>,
    /// Seconds until a group that was idle before, and whose quota others had borrowed, uses 95 % of its quota.
    pub give_back_seconds: Option<u32>,
    /// Seconds until the usage of a group that had borrowed more is within 5 % of its lower set point.
    pub drain_seconds: Option<u32>,
    /// Whether others had borrowed quota that the group now wants back.
    pub was_lent: bool,
}

/// The seconds that a phase covers.
#[derive(Clone, Copy)]
struct Span {
    from: usize,
    to: usize,
}

pub(crate) fn measure(scenario: &QuotaScenario, recorded: &Recorded) -> QuotaMetrics {
    let mut phases = Vec::new();
    let mut from = 0;
    for (at, phase) in scenario.phases.iter().enumerate() {
        let to = from + usize::try_from(phase.seconds).unwrap_or(usize::MAX);
        for (index, (series, load)) in recorded.groups.iter().zip(&phase.loads).enumerate() {
            let before = at.checked_sub(1).and_then(|before| scenario.phases.get(before)?.loads.get(index));
            let lent = before == Some(&Load::Idle) && others_borrowed(&recorded.groups, index, from);
            phases.push(group_phase(at, series, *load, Span { from, to }, lent));
        }
        from = to;
    }
    let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let quotas: f64 = scenario.groups.iter().map(|group| group.quota_esu).sum();
    let total: Vec<f64> = (0..from).map(|at| sum_at(&recorded.groups, at)).collect();
    let hungry = || phases.iter().filter(|phase| phase.overshoot.is_some());
    let lenders = || phases.iter().filter(|phase| phase.was_lent);
    QuotaMetrics {
        overshoot_max: largest(&mut phases.iter().filter_map(|phase| phase.overshoot)),
        steady_error_max: largest(&mut phases.iter().filter_map(|phase| phase.steady_error).map(f64::abs)),
        settling_seconds_max: hungry().map(|phase| phase.settling_seconds).try_fold(0, longer),
        give_back_seconds_max: lenders().map(|phase| phase.give_back_seconds).try_fold(0, longer),
        total_max: largest(&mut (0..from).map(|at| trailing(&total, 0, at, WINDOW))) / quotas.max(1e-6),
        started: recorded.started,
        finished: recorded.finished,
        phases,
    }
}

fn longer(longest: u32, seconds: Option<u32>) -> Option<u32> {
    seconds.map(|seconds| longest.max(seconds))
}

fn sum_at(groups: &[GroupSeries], at: usize) -> f64 {
    groups.iter().filter_map(|series| series.pv.get(at)).sum()
}

/// Returns whether a group other than `index` had borrowed just before second `at`.
fn others_borrowed(groups: &[GroupSeries], index: usize, at: usize) -> bool {
    let Some(before) = at.checked_sub(1) else { return false };
    let borrowed = |series: &GroupSeries| series.borrowed.get(before).is_some_and(|esu| *esu > 0.0);
    groups.iter().enumerate().any(|(other, series)| other != index && borrowed(series))
}

fn group_phase(phase: usize, series: &GroupSeries, load: Load, span: Span, was_lent: bool) -> GroupPhase {
    let is_hungry = load == Load::Hungry;
    let last = Span { from: span.to - (span.to - span.from) / 2, to: span.to };
    let (pv, sp) = (mean(&series.pv, last), mean(&series.sp, last));
    let was_lent = was_lent && is_hungry;
    let mut result = GroupPhase {
        phase,
        group: series.group.clone(),
        load,
        pv,
        sp,
        overshoot: None,
        steady_error: None,
        settling_seconds: None,
        give_back_seconds: None,
        drain_seconds: None,
        was_lent,
    };
    if is_hungry {
        result.overshoot = Some(overshoot(series, span));
        result.steady_error = (sp > 0.0).then(|| (pv - sp) / sp);
        result.settling_seconds = settling(series, span);
        result.give_back_seconds =
            if was_lent { first(span, |at| value_at(&series.pv, at) >= 0.95 * series.quota) } else { None };
        let had_more = span.from > 0
            && value_at(&series.borrowed, span.from - 1)
                > value_at(&series.borrowed, span.from + SETTLED_SP) + 1.0;
        result.drain_seconds = if had_more {
            first(span, |at| {
                at > span.from + SETTLED_SP && value_at(&series.pv, at) <= 1.05 * value_at(&series.sp, at)
            })
        } else {
            None
        };
    }
    result
}

fn overshoot(series: &GroupSeries, span: Span) -> f64 {
    let mut worst: f64 = 0.0;
    let mut was_within = value_at(&series.pv, span.from) <= value_at(&series.sp, span.from + SETTLED_SP);
    for at in span.from..span.to {
        let pv = trailing(&series.pv, span.from, at, WINDOW);
        let sp = trailing(&series.sp, span.from, at, WINDOW);
        // Early in a phase the window is short, and the set point that fell at its first tick still counts.
        was_within |= at >= span.from + WINDOW && pv <= sp;
        if was_within && sp > 0.0 {
            worst = worst.max((pv - sp) / sp);
        }
    }
    worst
}

fn settling(series: &GroupSeries, span: Span) -> Option<u32> {
    let is_outside = |at: usize| {
        let pv = trailing(&series.pv, span.from, at, WINDOW);
        let sp = trailing(&series.sp, span.from, at, WINDOW);
        (pv - sp).abs() > 0.05 * sp
    };
    let mut held = 0;
    for at in span.from..span.to {
        held = if is_outside(at) { 0 } else { held + 1 };
        if held == HOLD {
            return u32::try_from(at + 1 - HOLD - span.from).ok();
        }
    }
    None
}

/// Returns the seconds of `span` until `is_so` holds.
fn first(span: Span, is_so: impl Fn(usize) -> bool) -> Option<u32> {
    (span.from..span.to).find(|at| is_so(*at)).and_then(|at| u32::try_from(at - span.from).ok())
}

fn value_at(values: &[f64], at: usize) -> f64 {
    values.get(at).copied().unwrap_or(0.0)
}

/// Mean of the `window` values up to `at`, using only values from `from` on.
fn trailing(values: &[f64], from: usize, at: usize, window: usize) -> f64 {
    mean(values, Span { from: from.max((at + 1).saturating_sub(window)), to: at + 1 })
}

fn mean(values: &[f64], span: Span) -> f64 {
    statistics::mean(values.get(span.from..span.to).unwrap_or_default().iter().copied())
}
