//! Processes with a wrong clock.

use std::{ffi::OsString, fs, path::PathBuf};

use crate::repository;

const LIBRARY: &str = "libfaketimeMT.so.1";

/// Environment variables that make a process see another time of day: its measured durations stay correct.
#[derive(Debug, Clone)]
pub struct WrongClock {
    library: String,
    offset: String,
}

impl WrongClock {
    /// Creates a clock that is ahead by this many seconds, or behind when negative.
    pub fn ahead_by(seconds: i64) -> Self {
        let Some(library) = library() else {
            panic!("{LIBRARY} is not on this machine: run infra/tools/setup.sh, or install libfaketime")
        };
        Self { library, offset: format!("{seconds:+}s") }
    }

    pub fn env(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME", &self.offset),
            // The library reads both names.
            ("DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}

/// Path where the tools script or a distribution installs the library.
fn library() -> Option<String> {
    let ours = repository().join(".tools/lib").join(LIBRARY);
    let named = ["/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"].map(PathBuf::from);
    let triplets = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let system = triplets.map(|entry| entry.path().join("faketime")).chain(named);
    let found =
        [ours].into_iter().chain(system.map(|folder| folder.join(LIBRARY))).find(|path| path.exists())?;
    found.into_os_string().into_string().map_err(|_: OsString| ()).ok()
}
