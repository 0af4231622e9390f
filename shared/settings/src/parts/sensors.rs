use std::{path::PathBuf, time::Duration};

use crate::Settings;

/// Sensors of executors and workers, and their congestion windows.
#[derive(Debug, Clone)]
pub struct SensorSettings {
    pub congestion_window: bool,
    pub window: WindowSettings,
    /// Time between two readings of the sensors.
    pub tick: Duration,
    pub load_max: f64,
    pub memory_left_percent: u8,
    pub disk_left_percent: u8,
    pub throttled_percent_max: u32,
    pub cpu_pressure_percent_max: u32,
    pub memory_pressure_percent_max: u32,
    pub io_pressure_percent_max: u32,
    pub command: Vec<String>,
    pub file: Option<PathBuf>,
    /// Maximum of the numbers of `command` and `file`.
    pub max: f64,
    /// Time between two runs of `command`.
    pub every: Duration,
}

/// How a congestion window changes, in points and percent.
#[derive(Debug, Clone, Copy)]
pub struct WindowSettings {
    pub start_points: u32,
    pub points_max: u32,
    pub growth_percent: u32,
    pub cut_percent: u32,
    pub threshold_percent: u32,
}

impl Settings {
    pub(super) fn sensors(&self) -> SensorSettings {
        SensorSettings {
            congestion_window: self.congestion_window,
            window: WindowSettings {
                start_points: self.window_start_points,
                points_max: self.window_points_max,
                growth_percent: self.window_growth_percent,
                cut_percent: self.window_cut_percent,
                threshold_percent: self.window_threshold_percent,
            },
            tick: Duration::from_millis(self.window_tick_ms),
            load_max: self.load_max,
            memory_left_percent: self.memory_left_percent,
            disk_left_percent: self.disk_left_percent,
            throttled_percent_max: self.throttled_percent_max,
            cpu_pressure_percent_max: self.cpu_pressure_percent_max,
            memory_pressure_percent_max: self.memory_pressure_percent_max,
            io_pressure_percent_max: self.io_pressure_percent_max,
            command: self.sensor_command.clone(),
            file: self.sensor_file.clone(),
            max: self.sensor_max,
            every: Duration::from_secs(self.sensor_seconds),
        }
    }

    /// Folders of the lock of the machine: the first that can be used counts.
    pub(super) fn machine_locks(&self) -> Vec<PathBuf> {
        if self.machine_lock.as_os_str().is_empty() {
            vec![PathBuf::from("/run/lock/forebay"), self.data.join("machine-lock")]
        } else {
            vec![self.machine_lock.clone()]
        }
    }
}
