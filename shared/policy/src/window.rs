//! Limits how much a machine admits: a congestion window, as in TCP, for the actions of an executor, and for
//! the builds of a worker.
//!
//! The window is counted in points. It starts with a part of all slots and grows while it is used and no resource is
//! short: at first in proportion (slow start), after the first shortage by one slot at a time. When a resource becomes
//! short, the window is cut below the points in use, so that nothing starts before something has ended.

use model::{Resources, WindowState};

/// Points of an action, whatever it holds, and points of each slot that it holds.
const EACH: u32 = 5;
/// Points of an action that holds one slot, or of a build: the minimum size of a window.
const ACTION: u32 = EACH + EACH;
/// Points of a build in the window of its worker, whose workspaces are its slots.
pub const BUILD_POINTS: u32 = ACTION;
/// Part of all slots that a window starts with, one in this many.
const START: u16 = 4;

/// The state that a sensor reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Signal {
    /// The resource is sufficient.
    #[default]
    Green,
    /// The resource is sufficient for what runs, but not for more.
    Hold,
    /// A resource is short but already recovering, so another cut would be one too many.
    Easing,
    /// A resource is short.
    Red,
}

/// Points of running actions: 5 for each action, and 5 for each slot that they hold. `held` is the part that they hold
/// of `capacity`, which is `slots` slots; the scarcer of processors and memory counts. Actions hold what earlier
/// similar actions used, if known, so their cost comes from history.
///
/// At most 10 points for each of `slots` while no more actions than slots run, so a [`Window`] that admits
/// all slots admits them.
pub fn points(actions: u16, held: &Resources, capacity: &Resources, slots: u16) -> u32 {
    let slots_held = held.share_of(capacity).min(1.0) * f64::from(slots);
    // Fractions such as thirds come out slightly too large.
    let of_slots = (f64::from(EACH) * slots_held - 1e-6).ceil().max(0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 5 times a u16")]
    let of_slots = of_slots as u32;
    u32::from(actions) * EACH + of_slots
}

/// Share of an executor's `slots` that its congestion window admits, from 0 to 1.
pub fn window_share(window: &WindowState, slots: u16) -> f64 {
    let all = u32::from(slots.max(1)) * ACTION;
    if window.size == 0 { 1.0 } else { (f64::from(window.size) / f64::from(all)).min(1.0) }
}

/// Number of `slots` that a process counts as having: fewer while a sensor of it is red, because then more load does not
/// open the window; all of them while it only has not grown yet.
pub fn counted_slots(window: &WindowState, slots: u16) -> u64 {
    if window.red.is_empty() || window.size == 0 {
        return u64::from(slots);
    }
    u64::from(window.size / ACTION).clamp(1, u64::from(slots.max(1)))
}

/// How a window changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowRules {
    /// Points at first; 0 means a quarter of all slots.
    pub start: u32,
    /// Points at most; 0 means all slots.
    pub max: u32,
    /// Growth of a step before the first shortage, in percent of the window.
    pub growth_percent: u32,
    /// Part of the points in use by which the window is cut below them, in percent.
    pub cut_percent: u32,
    /// Part of the window that must be in use for it to grow, in percent.
    pub threshold_percent: u32,
    /// Number of green ticks in a row before each step of growth; at least one.
    pub green_ticks: u32,
}

impl Default for WindowRules {
    fn default() -> Self {
        Self { start: 0, max: 0, growth_percent: 100, cut_percent: 25, threshold_percent: 75, green_ticks: 1 }
    }
}

/// A congestion window for the actions of an executor, or for the builds of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    rules: WindowRules,
    size: u32,
    max: u32,
    slow_start: bool,
    /// Ticks since the last step of growth, or since a resource was short.
    green: u32,
}

impl Window {
    /// A window for `slots` slots: executors have slots, workers have workspaces.
    pub fn new(rules: WindowRules, slots: u16) -> Self {
        let of_slots = |points: u32, slots: u16| if points == 0 { u32::from(slots) * ACTION } else { points };
        let max = of_slots(rules.max, slots).max(ACTION);
        let size = of_slots(rules.start, slots.div_ceil(START)).clamp(ACTION, max);
        Self { rules, size, max, slow_start: true, green: 0 }
    }

    /// Number of points that may be in use.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether the window has its maximum size.
    pub fn is_open(&self) -> bool {
        self.size >= self.max
    }

    /// Whether an action may start after which `used` points are in use. If nothing else runs, any action may start.
    pub fn admits(&self, used: u32, is_first: bool) -> bool {
        is_first || used <= self.size
    }

    /// Number of one-slot actions, or of builds, that may start in addition to the `used` points; at least one if
    /// nothing is in use.
    pub fn room(&self, used: u32) -> u32 {
        let room = self.size.saturating_sub(used) / ACTION;
        if used == 0 { room.max(1) } else { room }
    }

    /// Adjusts the window to the worst of all `signals`; `used` is the maximum number of points in use
    /// since the last call.
    pub fn tick(&mut self, used: u32, signals: impl IntoIterator<Item = Signal>) {
        match signals.into_iter().max().unwrap_or_default() {
            Signal::Red => {
                (self.slow_start, self.green) = (false, 0);
                let cut = percent(used, self.rules.cut_percent).max(1);
                self.size = self.size.min(used.saturating_sub(cut)).max(ACTION);
            }
            Signal::Easing => (self.slow_start, self.green) = (false, 0),
            Signal::Hold => self.green = 0,
            Signal::Green if self.is_used(used) => self.grow(),
            Signal::Green => {}
        }
    }

    fn grow(&mut self) {
        self.green += 1;
        if self.green < self.rules.green_ticks {
            return;
        }
        self.green = 0;
        let more = if self.slow_start { percent(self.size, self.rules.growth_percent) } else { ACTION };
        self.size = self.size.saturating_add(more.max(1)).min(self.max);
    }

    /// Whether the window limits the number of actions, or is close to it.
    fn is_used(&self, used: u32) -> bool {
        u64::from(used) * 100 >= u64::from(self.size) * u64::from(self.rules.threshold_percent)
            || self.room(used) == 0
    }
}

fn percent(of: u32, percent: u32) -> u32 {
    u32::try_from(u64::from(of) * u64::from(percent) / 100).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
