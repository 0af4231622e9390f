//! The sensors, and whether actions are accepted.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sensors::Sensors;

/// The sensors, and whether actions are accepted.
pub(crate) struct Admission {
    pub(crate) sensors: Mutex<Sensors>,
    /// Time between two readings of the sensors.
    pub(crate) every: Duration,
    open: AtomicBool,
}

impl Admission {
    /// Creates the state before the first reading of the sensors.
    pub(crate) fn new(every: Duration, sensors: Sensors) -> Self {
        Self { sensors: Mutex::new(sensors), every, open: AtomicBool::new(true) }
    }

    /// Sets whether actions are accepted; returns whether that changed.
    pub(crate) fn set_open(&self, is_open: bool) -> bool {
        self.open.swap(is_open, Ordering::Relaxed) != is_open
    }
}
