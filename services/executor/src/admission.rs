//! The sensors, the congestion window by the settings, and whether actions are accepted.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use policy::actions::Window;
use settings::ExecutorSettings;

use crate::sensors::Sensor;

/// The sensors, and whether actions are accepted.
pub(crate) struct Admission {
    pub(crate) sensors: Mutex<Sensors>,
    /// Time between two readings of the sensors.
    pub(crate) every: Duration,
    open: AtomicBool,
}

pub(crate) struct Sensors {
    pub(crate) all: Vec<Box<dyn Sensor>>,
    pub(crate) read_at: Option<Instant>,
}

impl Admission {
    /// Creates the state before the first reading of the sensors.
    pub(crate) fn new(every: Duration, all: Vec<Box<dyn Sensor>>) -> Self {
        let sensors = Mutex::new(Sensors { all, read_at: None });
        Self { sensors, every, open: AtomicBool::new(true) }
    }

    /// Sets whether actions are accepted; returns whether that changed.
    pub(crate) fn set_open(&self, is_open: bool) -> bool {
        self.open.swap(is_open, Ordering::Relaxed) != is_open
    }
}

/// The congestion window according to the settings; `None` if it is disabled.
pub(crate) fn window(settings: &ExecutorSettings) -> Option<Window> {
    settings
        .congestion_window
        .then(|| Window::new(settings.window_start_points, settings.window_points_max, settings.slots))
}
