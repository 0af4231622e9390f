//! How much an executor admits: a congestion window, as TCP has one.
//!
//! The window is counted in points. It opens as long as it is used and nothing runs short: at first by doubling (slow
//! start), after the first shortage by one action at a time. When something runs short it is cut below what is in use, so
//! that nothing new begins before something has ended.

use model::Resources;

/// Points of an action, whatever it holds, and of each slot that it holds.
const EACH: u32 = 5;
/// Points of an action that holds one slot: the least that a window has.
const ACTION: u32 = EACH + EACH;

/// What a sensor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Signal {
    /// There is enough.
    #[default]
    Green,
    /// It is short, and is getting better already: a cut would come twice.
    Easing,
    /// It is short.
    Red,
}

/// Points of what runs together: 5 for each action, and 5 for each slot that they hold. `held` is what they hold of
/// `capacity`, which is `slots` slots; the scarcer of processors and memory counts. What an action holds is what earlier
/// ones like it were seen to use, where any were: so its cost comes from history.
///
/// Never more than [`Window`]s have that admit all slots: 10 for each of `slots`, as long as no more than that run.
pub fn points(actions: u16, held: &Resources, capacity: &Resources, slots: u16) -> u32 {
    let slots_held = held.share_of(capacity).min(1.0) * f64::from(slots);
    // Thirds and the like come out a hair too large.
    let of_slots = (f64::from(EACH) * slots_held - 1e-6).ceil().max(0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 5 times a u16")]
    let of_slots = of_slots as u32;
    u32::from(actions) * EACH + of_slots
}

/// A congestion window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    size: u32,
    max: u32,
    slow_start: bool,
}

impl Window {
    /// A window for `slots` slots that begins with `start` points and has `max` at most; 0 is all slots for either.
    pub fn new(start: u32, max: u32, slots: u16) -> Self {
        let or_all = |points: u32| if points == 0 { u32::from(slots) * ACTION } else { points };
        let max = or_all(max).max(ACTION);
        let size = or_all(start).clamp(ACTION, max);
        Self { size, max, slow_start: true }
    }

    /// Points that may be in use.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether it is as large as it can be.
    pub fn is_open(&self) -> bool {
        self.size >= self.max
    }

    /// Whether something may begin after which `used` points are in use. When nothing else runs, anything may.
    pub fn admits(&self, used: u32, is_first: bool) -> bool {
        is_first || used <= self.size
    }

    /// Actions of one slot that may begin beside those that use `used` points; one at least where nothing is in use.
    pub fn room(&self, used: u32) -> u32 {
        let room = self.size.saturating_sub(used) / ACTION;
        if used == 0 { room.max(1) } else { room }
    }

    /// What follows from the worst of all `signals`, where up to `used` points were in use since the last time.
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

    /// Whether it is the window that keeps more from beginning, or soon will be.
    fn is_used(&self, used: u32) -> bool {
        u64::from(used) * 4 >= u64::from(self.size) * 3 || self.room(used) == 0
    }
}

#[cfg(test)]
mod tests;
