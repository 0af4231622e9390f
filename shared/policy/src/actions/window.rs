//! Limits how much an executor admits: a congestion window, as in TCP.
//!
//! The window is counted in points. It grows while it is used and no resource is short: at first by doubling (slow
//! start), after the first shortage by one action at a time. When a resource becomes short, the window is cut below the
//! points in use, so that nothing starts before something has ended.

use model::{Resources, WindowState};

/// Points of an action, whatever it holds, and points of each slot that it holds.
const EACH: u32 = 5;
/// Points of an action that holds one slot: the minimum size of a window.
const ACTION: u32 = EACH + EACH;

/// The state that a sensor reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Signal {
    /// The resource is sufficient.
    #[default]
    Green,
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

/// A congestion window for the actions of an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    size: u32,
    max: u32,
    slow_start: bool,
}

impl Window {
    /// A window for `slots` slots with `start` points at first and at most `max`; 0 means all slots for either.
    pub fn new(start: u32, max: u32, slots: u16) -> Self {
        let or_all = |points: u32| if points == 0 { u32::from(slots) * ACTION } else { points };
        let max = or_all(max).max(ACTION);
        let size = or_all(start).clamp(ACTION, max);
        Self { size, max, slow_start: true }
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

    /// Number of one-slot actions that may start beside the `used` points; at least one if nothing is in use.
    pub fn room(&self, used: u32) -> u32 {
        let room = self.size.saturating_sub(used) / ACTION;
        if used == 0 { room.max(1) } else { room }
    }

    /// Adjusts the window to the worst of all `signals`; `used` is the maximum number of points in use
    /// since the last call.
    pub fn tick(&mut self, used: u32, signals: impl IntoIterator<Item = Signal>) {
        match signals.into_iter().max().unwrap_or_default() {
            Signal::Red => {
                self.slow_start = false;
                let below = used.saturating_sub((used / 4).max(1));
                self.size = self.size.min(below).max(ACTION);
            }
            Signal::Easing => self.slow_start = false,
            Signal::Green if self.is_used(used) => {
                let more = if self.slow_start { self.size } else { ACTION };
                self.size = self.size.saturating_add(more).min(self.max);
            }
            Signal::Green => {}
        }
    }

    /// Whether the window limits the number of actions, or is close to it.
    fn is_used(&self, used: u32) -> bool {
        u64::from(used) * 4 >= u64::from(self.size) * 3 || self.room(used) == 0
    }
}

#[cfg(test)]
mod tests;
