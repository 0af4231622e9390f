//! Processes with a wrong clock.

use std::{ffi::OsString, fs, path::PathBuf};

use crate::repository;

const LIBRARY: &str = "libfaketimeMT.so.1";

/// Environment variables that make a process see another time of day: its measured durations stay correct.
#[derive(Debug, Clone)]
pub struct WrongClock {
    folder: String,
    offset: String,
}

impl WrongClock {
    /// Creates a clock that is ahead by this many seconds, or behind when negative.
    pub fn ahead_by(seconds: i64) -> Self {
        let Some(folder) = folder() else {
            panic!("{LIBRARY} is not on this machine: run infra/tools/setup.sh, or install libfaketime")
        };
        Self { folder, offset: format!("{seconds:+}s") }
    }

    pub fn env(&self) -> [(&str, &str); 5] {
        [
            // Its name only: a blank in a path would end it.
            ("LD_PRELOAD", LIBRARY),
            ("LD_LIBRARY_PATH", &self.folder),
            ("FAKETIME", &self.offset),
            // The library reads both names.
            ("DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}

/// Folder where the tools script or a distribution installs the library.
fn folder() -> Option<String> {
    let ours = repository().join(".tools/lib");
    let named = ["/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"].map(PathBuf::from);
    let triplets = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let system = triplets.map(|entry| entry.path().join("faketime")).chain(named);
    let found = [ours].into_iter().chain(system).find(|folder| folder.join(LIBRARY).exists())?;
    found.into_os_string().into_string().map_err(|_: OsString| ()).ok()
}
