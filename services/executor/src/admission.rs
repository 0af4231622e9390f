//! The sensors, the congestion window by the settings, and whether reservations are accepted.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use policy::actions::Window;
use settings::ExecutorSettings;
use tokio::sync::watch;

use crate::sensors::Sensor;

/// The sensors, and whether reservations are accepted.
pub(crate) struct Admission {
    pub(crate) sensors: Mutex<Sensors>,
    /// Time between two readings of the sensors.
    pub(crate) every: Duration,
    open: watch::Sender<bool>,
}

pub(crate) struct Sensors {
    pub(crate) all: Vec<Box<dyn Sensor>>,
    pub(crate) read_at: Option<Instant>,
}

impl Admission {
    /// Creates the state before the first reading of the sensors.
    pub(crate) fn new(every: Duration, all: Vec<Box<dyn Sensor>>) -> Self {
        let sensors = Mutex::new(Sensors { all, read_at: None });
        Self { sensors, every, open: watch::Sender::new(true) }
    }

    /// Follows whether reservations are accepted.
    pub(crate) fn open(&self) -> watch::Receiver<bool> {
        self.open.subscribe()
    }

    /// Sets whether reservations are accepted; returns whether that changed.
    pub(crate) fn set_open(&self, is_open: bool) -> bool {
        self.open.send_if_modified(|open| std::mem::replace(open, is_open) != is_open)
    }
}

/// The congestion window according to the settings; `None` if it is disabled.
pub(crate) fn window(settings: &ExecutorSettings) -> Option<Window> {
    settings
        .congestion_window
        .then(|| Window::new(settings.window_start_points, settings.window_points_max, settings.slots))
}
