//! The controller of one group and executor type (section 2.3 of the paper).

use model::{Esu, ExecutorType, Governed};

use super::{
    ControlSettings, GroupState,
    share::{Claim, Share},
};

/// The fraction of its room that a group with an empty queue may fill with its next builds, before the controller has
/// observed any of them. With a larger fraction, a returning group overshoots when builds use more than estimated.
const AT_ONCE: f64 = 0.5;

/// Inputs for one group and type, in ESU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    quota: f64,
    pv: f64,
    backlog: f64,
    in_progress: f64,
    peak: f64,
    ended: f64,
    waiting: f64,
    head: Option<f64>,
}

impl Sample {
    pub(super) fn of(state: &GroupState, kind: &ExecutorType) -> Self {
        let units = |amount: Esu| amount.or_zero().units();
        let in_progress = units(state.in_progress.get(kind));
        let head = state.head.as_ref().and_then(|head| head.0.get(kind)).map(|amount| units(*amount));
        Self {
            quota: units(state.quota.get(kind)),
            pv: units(state.pv.get(kind)),
            backlog: units(state.backlog.get(kind)),
            in_progress,
            peak: units(state.peak.get(kind)).max(in_progress),
            ended: units(state.ended.get(kind)),
            waiting: units(state.waiting.get(kind)).max(head.unwrap_or(0.0)),
            head,
        }
    }

    /// Whether builds are so short that each slot was reused several times in a tick: then the use does not lag behind
    /// starts, and the work in progress is the peak, with gaps.
    fn is_short(&self) -> bool {
        self.peak > 0.0 && self.ended >= 2.0 * self.peak
    }

    /// ESU that the group has in progress without another build.
    fn held(&self) -> f64 {
        if self.is_short() { self.peak } else { self.in_progress }
    }
}

/// A sample and the values derived from it and the last decision, in ESU.
#[derive(Debug, Clone, Copy)]
pub(super) struct DerivedSample {
    now: Sample,
    last: Option<Governed>,
    seconds: f64,
    /// Estimates of builds in progress, as far as they show in the use.
    seen: f64,
    /// The use, plus actions that wait, or builds that were started but do not show in it yet. Without the latter, the controller would
    /// continue to start builds until the first ones show, and then have far too many.
    expected: f64,
    /// Estimates of builds that replaced ended ones and do not show yet.
    renewed: f64,
}

impl DerivedSample {
    pub(super) fn new(
        now: Sample,
        last: Option<&Governed>,
        settings: &ControlSettings,
        seconds: f64,
    ) -> Self {
        let decay = if settings.lag_seconds > 0.0 { (-seconds / settings.lag_seconds).exp() } else { 0.0 };
        // At a first decision, no more of the running builds is known to show than the measured use.
        let before = last.map_or(now.in_progress.min(now.pv), |last| last.seen.units());
        let seen = before * decay + now.in_progress * (1.0 - decay);
        let renewed =
            last.map_or(0.0, |last| last.renewed.units()) * decay + now.ended.min(now.peak) * decay.sqrt();
        let unseen = if now.is_short() { 0.0 } else { (now.in_progress - seen).max(0.0) };
        // The actions of builds that do not show yet may be among those that wait.
        let expected = now.pv + unseen.max(now.backlog);
        Self { now, last: last.copied(), seconds, seen, expected, renewed }
    }

    /// The same without the assumption that the use rises slowly after a start: actions show within seconds, so the use
    /// is not expected to exceed the estimates, unless it does or actions wait.
    pub(super) fn within_estimates(self) -> Self {
        let now = &self.now;
        let unseen = if now.is_short() { 0.0 } else { (now.in_progress - self.seen).max(0.0) };
        let of_builds = now.pv.max((now.pv + unseen).min(now.in_progress));
        Self { expected: of_builds.max(now.pv + now.backlog), ..self }
    }

    /// The use expected before another build starts. A build that replaced an ended one hardly matters for
    /// a large group, but in a small one it is most of the use. With it, however, the use is not expected
    /// to exceed the estimates.
    fn expected_before_next(&self) -> f64 {
        self.expected.max((self.expected + self.renewed).min(self.now.in_progress))
    }

    pub(super) fn claim(&self) -> Claim {
        Claim {
            quota: self.now.quota,
            need: self.expected + self.now.waiting,
            wish: self.expected + 2.0 * self.now.waiting,
            borrowed: self.last.map_or(0.0, |last| last.borrowed.units()),
            head: self.now.head.unwrap_or(0.0),
        }
    }

    /// Whether a decision about it is needed at all.
    pub(super) fn is_of_interest(&self) -> bool {
        let now = &self.now;
        now.head.is_some() || now.quota + now.pv + now.backlog + now.peak + now.waiting > 0.0
    }
}

/// Computes the decision for one group and type.
pub(super) fn control(derived: &DerivedSample, share: &Share, settings: &ControlSettings) -> Governed {
    let now = &derived.now;
    let sp = share.own + share.borrowed;
    let integral = integrate(derived, sp, settings);
    // An early tick starts only its fraction; a late tick starts no more than usual.
    let tick_fraction = (derived.seconds / settings.tick_seconds).min(1.0);
    let head = now.head.map(|head| head.min(share.limit));
    // Builds are indivisible: up to a quarter of another build is close enough, if that is negligible for the group.
    let slack = (0.05 * sp).min(0.25 * head.unwrap_or(0.0));
    let output = tick_fraction * pid(derived, sp, integral, settings);
    let ending = (now.ended * settings.tick_seconds / derived.seconds).min(now.in_progress);
    let (base, level) = level(derived, sp, output, settings);
    let fits = |head: &f64| derived.expected_before_next() + head <= sp + slack;
    let target = head.filter(fits).map_or(level, |head| level.max(now.held() + head));
    let wanted = target - base + ending;
    let mv = if sp > 0.0 && wanted > 0.0 { wanted + slack } else { wanted.min(0.0) };
    let mv = Esu::clamped(mv);
    let (base, ending) = (Esu::clamped(base), Esu::clamped(ending));
    Governed {
        quota: Esu::clamped(share.own),
        limit: Esu::clamped(share.limit),
        pv: Esu::clamped(now.pv),
        sp: Esu::clamped(sp),
        mv,
        in_progress: base,
        ending,
        target: if mv > Esu::ZERO { base - ending + mv } else { Esu::ZERO },
        waiting: Esu::clamped(now.waiting),
        borrowed: Esu::clamped(share.borrowed),
        integral: Esu::clamped(integral),
        seen: Esu::clamped(derived.seen),
        renewed: Esu::clamped(derived.renewed),
    }
}

/// The integral term: it accumulates while builds wait and the use is near the set point, and is
/// reset when nothing waits.
fn integrate(derived: &DerivedSample, sp: f64, settings: &ControlSettings) -> f64 {
    if derived.now.waiting <= 0.0 {
        return 0.0;
    }
    let error = sp - derived.expected;
    let before = derived.last.map_or(0.0, |last| last.integral.units());
    let near = error.abs() <= settings.integrate_within * sp;
    let seconds = derived.seconds.min(settings.tick_seconds);
    let grown = if near { before + settings.ki * error * seconds } else { before };
    grown.clamp(-settings.integral_max * sp, settings.integral_max * sp)
}

/// ESU to add to the builds in progress in a tick.
fn pid(derived: &DerivedSample, sp: f64, integral: f64, settings: &ControlSettings) -> f64 {
    let rise = derived.last.map_or(0.0, |last| (derived.now.pv - last.pv.units()) / derived.seconds);
    let error = sp - derived.expected;
    // A rising use reduces the output. A falling use must not start builds while it is above the set point.
    let brake = if error > 0.0 { settings.kd * rise } else { (settings.kd * rise).max(0.0) };
    settings.kp * error + integral - if derived.now.is_short() { 0.0 } else { brake }
}

/// The estimates in progress to start from, and the level to reach.
///
/// While there is room, the starting point is the peak since the last decision: gaps between short builds must not
/// reduce their number. For a group with an empty queue, the peak may come from a short burst, which says little about
/// the sustained level: then the level is at most the set point, and at least half of the room is filled.
fn level(derived: &DerivedSample, sp: f64, output: f64, settings: &ControlSettings) -> (f64, f64) {
    let now = &derived.now;
    let base = if output >= 0.0 { now.peak } else { now.in_progress };
    let mut level = base + output;
    if now.waiting <= 0.0 {
        level = level.min(sp.max(now.in_progress + output));
        level = level.max(now.in_progress + AT_ONCE * (sp - derived.expected));
    }
    (base, level.min(settings.overcommit_max * sp))
}
