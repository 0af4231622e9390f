//! How many builds this worker admits: its congestion window, its sensors, and the memory that builds will need.

use model::WindowState;
use policy::{BUILD_POINTS, Signal, Window};
use sensors::Readings;

/// What limits the number of builds.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Absent if it is off.
    window: Option<Window>,
    /// Maximum number of builds since the sensors were last read.
    peak: u32,
    /// What red sensors report, as sentences.
    red: Vec<String>,
    /// Whether nothing may start.
    stop: bool,
    memory: Option<MemoryRoom>,
    /// Builds that the kernel killed for lack of memory since the sensors were last read.
    killed: u32,
}

/// Room for builds by their expected memory, when it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryRoom {
    /// Number of builds that ran then.
    pub(crate) running: u32,
    /// Number of further builds that fit.
    pub(crate) room: u32,
}

impl MemoryRoom {
    fn with(self, running: u32) -> u32 {
        self.room.saturating_add(self.running).saturating_sub(running)
    }
}

impl Admission {
    pub(crate) fn new(window: Option<Window>) -> Self {
        Self { window, ..Self::default() }
    }

    /// Number of builds that may start while `running` builds run; at least one while none runs, unless an operator or
    /// the disk stops all.
    pub(crate) fn room(&self, running: u32) -> u32 {
        if self.stop {
            return 0;
        }
        let window =
            self.window.as_ref().map_or(u32::MAX, |window| window.room(running.saturating_mul(BUILD_POINTS)));
        let memory = self.memory.map_or(u32::MAX, |memory| memory.with(running));
        let room = window.min(memory);
        if running == 0 { room.max(1) } else { room }
    }

    /// Notes that `running` builds run now.
    pub(crate) fn note_running(&mut self, running: u32) {
        self.peak = self.peak.max(running);
    }

    /// Notes that the kernel killed a build for lack of memory: the window is cut.
    pub(crate) fn note_killed(&mut self) {
        self.killed = self.killed.saturating_add(1);
    }

    /// Applies what the sensors read while `running` builds ran.
    pub(crate) fn apply(&mut self, readings: Readings, memory: Option<MemoryRoom>, running: u32) {
        let Readings { mut signals, red, stop, by_name: _ } = readings;
        (self.red, self.stop, self.memory) = (red, stop, memory);
        if memory.is_some_and(|memory| memory.room == 0) {
            signals.push(Signal::Hold);
        }
        if std::mem::take(&mut self.killed) > 0 {
            signals.push(Signal::Red);
            self.red.push("the kernel killed a build for lack of memory".to_owned());
        }
        let peak = std::mem::replace(&mut self.peak, running).max(running);
        if let Some(window) = &mut self.window {
            window.tick(peak.saturating_mul(BUILD_POINTS), signals);
        }
    }

    /// Why nothing starts, if a sensor is the reason.
    pub(crate) fn closed_because(&self, running: u32) -> Option<String> {
        (!self.red.is_empty() && self.room(running) == 0).then(|| self.red.join("; "))
    }

    /// Whether the sensors must be read although nothing runs.
    pub(crate) fn is_short(&self) -> bool {
        self.stop || !self.red.is_empty()
    }

    /// The state for heartbeats and metrics.
    pub(crate) fn state(&self, running: u32) -> WindowState {
        let size = self.window.as_ref().map_or(0, Window::size);
        WindowState { size, used: running.saturating_mul(BUILD_POINTS), red: self.red.clone() }
    }
}

#[cfg(test)]
mod tests {
    use policy::WindowRules;

    use super::*;

    fn admission(workspaces: u16) -> Admission {
        Admission::new(Some(Window::new(WindowRules::default(), workspaces)))
    }

    fn readings(signal: Signal) -> Readings {
        let red = if signal == Signal::Green { Vec::new() } else { vec!["no memory is left".to_owned()] };
        Readings { signals: vec![signal], red, ..Readings::default() }
    }

    #[test]
    fn the_window_grows_while_it_is_used_and_is_cut_below_the_running_builds() {
        let mut admission = admission(8);
        assert_eq!((admission.room(0), admission.room(2)), (2, 0));
        admission.apply(readings(Signal::Green), None, 2);
        assert_eq!((admission.room(2), admission.closed_because(4)), (2, None));
        admission.apply(readings(Signal::Red), None, 4);
        assert_eq!((admission.state(4).size, admission.room(3)), (30, 0));
        assert_eq!(admission.closed_because(4).unwrap(), "no memory is left");
        assert!(admission.is_short());
    }

    #[test]
    fn builds_that_will_grow_leave_no_room_and_hold_the_window() {
        let mut admission = admission(8);
        admission.apply(readings(Signal::Green), Some(MemoryRoom { running: 2, room: 1 }), 2);
        assert_eq!(admission.room(2), 1);
        admission.apply(readings(Signal::Green), Some(MemoryRoom { running: 3, room: 0 }), 3);
        assert_eq!((admission.state(3).size, admission.room(3)), (40, 0));
        // The memory of a build that ended is free, also before the next reading.
        assert_eq!(admission.room(2), 1);
    }

    #[test]
    fn a_killed_build_counts_as_a_red_sensor_once() {
        let mut admission = admission(8);
        admission.apply(readings(Signal::Green), None, 2);
        admission.note_killed();
        admission.apply(readings(Signal::Green), None, 4);
        assert_eq!((admission.state(4).size, admission.is_short()), (30, true));
        admission.apply(readings(Signal::Green), None, 3);
        assert!(!admission.is_short());
    }

    #[test]
    fn one_build_may_always_start_unless_all_is_stopped() {
        let mut admission = admission(4);
        admission.apply(readings(Signal::Red), Some(MemoryRoom { running: 0, room: 0 }), 0);
        assert_eq!((admission.room(0), admission.closed_because(0)), (1, None));
        admission.apply(Readings { stop: true, ..readings(Signal::Red) }, None, 0);
        assert_eq!(admission.room(0), 0);
        assert!(admission.closed_because(0).is_some());
    }
}
