//! The controller of one group and executor type (section 2.3 of the paper).

use model::{Esu, ExecutorType, Governed};

use super::{
    GovernorSettings, GroupState,
    share::{Claim, Share},
};

/// Of the room that a group with an empty queue has, how much it may fill with the next builds that come, before the
/// controller has seen any of them. With more, a group that returns overshoots when builds use more than estimated.
const AT_ONCE: f64 = 0.5;

/// What is known of one group and type. ESU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    quota: f64,
    pv: f64,
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
            in_progress,
            peak: units(state.peak.get(kind)).max(in_progress),
            ended: units(state.ended.get(kind)),
            waiting: units(state.waiting.get(kind)).max(head.unwrap_or(0.0)),
            head,
        }
    }

    /// Whether builds are so short that each place was taken several times in a tick: then use does not lag starts, and
    /// what is in progress is the peak, with gaps.
    fn is_short(&self) -> bool {
        self.peak > 0.0 && self.ended >= 2.0 * self.peak
    }

    /// What the group has in progress without another build.
    fn held(&self) -> f64 {
        if self.is_short() { self.peak } else { self.in_progress }
    }
}

/// A sample, and what follows from it and the last decision alone. ESU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    now: Sample,
    last: Option<Governed>,
    seconds: f64,
    /// Estimates of what is in progress, as far as it shows in the use.
    seen: f64,
    /// The use, and what is started but does not show in it yet. Without this the controller goes on starting builds
    /// until the first ones show, and then has far too many.
    expected: f64,
    /// Estimates of what took the place of builds that ended, and does not show yet.
    renewed: f64,
}

impl Moment {
    pub(super) fn new(
        now: Sample,
        last: Option<&Governed>,
        settings: &GovernorSettings,
        seconds: f64,
    ) -> Self {
        let decay = if settings.lag_seconds > 0.0 { (-seconds / settings.lag_seconds).exp() } else { 0.0 };
        // At a first decision, of what runs already, no more is known to show than what is used.
        let before = last.map_or(now.in_progress.min(now.pv), |last| last.seen.units());
        let seen = before * decay + now.in_progress * (1.0 - decay);
        let renewed =
            last.map_or(0.0, |last| last.renewed.units()) * decay + now.ended.min(now.peak) * decay.sqrt();
        let unseen = if now.is_short() { 0.0 } else { (now.in_progress - seen).max(0.0) };
        let expected = now.pv + unseen;
        Self { now, last: last.copied(), seconds, seen, expected, renewed }
    }

    /// The use that is to be expected before another build starts. A build that took the place of one that ended hardly
    /// moves a large group, but in a small one it is most of the use; with it, though, the use is not expected to pass the
    /// estimates.
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

    /// Whether there is anything to say about it.
    pub(super) fn is_of_interest(&self) -> bool {
        let now = &self.now;
        now.head.is_some() || now.quota + now.pv + now.peak + now.waiting > 0.0
    }
}

/// The decision.
pub(super) fn control(moment: &Moment, share: &Share, settings: &GovernorSettings) -> Governed {
    let now = &moment.now;
    let sp = share.own + share.borrowed;
    let integral = integrate(moment, sp, settings);
    // A tick that comes early starts only its part; one that comes late no more than usual.
    let pace = (moment.seconds / settings.tick_seconds).min(1.0);
    let head = now.head.map(|head| head.min(share.limit));
    // Builds are whole: a quarter of one more is near enough, as long as it is next to nothing for the group.
    let slack = (0.05 * sp).min(0.25 * head.unwrap_or(0.0));
    let output = pace * pid(moment, sp, integral, settings);
    let ending = (now.ended * settings.tick_seconds / moment.seconds).min(now.in_progress);
    let (base, level) = level(moment, sp, output, settings);
    let fits = |head: &f64| moment.expected_before_next() + head <= sp + slack;
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
        seen: Esu::clamped(moment.seen),
        renewed: Esu::clamped(moment.renewed),
    }
}

/// The integral term: it grows while builds wait and the use is near the set point, and is lost when nothing waits.
fn integrate(moment: &Moment, sp: f64, settings: &GovernorSettings) -> f64 {
    if moment.now.waiting <= 0.0 {
        return 0.0;
    }
    let error = sp - moment.expected;
    let before = moment.last.map_or(0.0, |last| last.integral.units());
    let near = error.abs() <= settings.integrate_within * sp;
    let seconds = moment.seconds.min(settings.tick_seconds);
    let grown = if near { before + settings.ki * error * seconds } else { before };
    grown.clamp(-settings.integral_max * sp, settings.integral_max * sp)
}

/// What to add to what is in progress, in a tick.
fn pid(moment: &Moment, sp: f64, integral: f64, settings: &GovernorSettings) -> f64 {
    let rise = moment.last.map_or(0.0, |last| (moment.now.pv - last.pv.units()) / moment.seconds);
    let error = sp - moment.expected;
    // A use that rises brakes. One that falls is no reason to start builds while it is still above the set point.
    let brake = if error > 0.0 { settings.kd * rise } else { (settings.kd * rise).max(0.0) };
    settings.kp * error + integral - if moment.now.is_short() { 0.0 } else { brake }
}

/// Which estimates in progress to start from, and the level to go to.
///
/// While there is room, the start is the peak since the last decision: the gaps between short builds are no reason to
/// have fewer of them. A group whose queue is empty may have had its peak in a short burst, which says little about
/// what it may have in progress for long: from there it goes to its set point at most, and to half of its room at least.
fn level(moment: &Moment, sp: f64, output: f64, settings: &GovernorSettings) -> (f64, f64) {
    let now = &moment.now;
    let base = if output >= 0.0 { now.peak } else { now.in_progress };
    let mut level = base + output;
    if now.waiting <= 0.0 {
        level = level.min(sp.max(now.in_progress + output));
        level = level.max(now.in_progress + AT_ONCE * (sp - moment.expected));
    }
    (base, level.min(settings.overcommit_max * sp))
}
