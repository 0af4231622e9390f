//! Processes whose clock is wrong.

use std::{ffi::OsString, fs, path::PathBuf};

use crate::repository;

const LIBRARY: &str = "libfaketimeMT.so.1";

/// The variables that make a process see another time of day: its own durations stay right.
#[derive(Debug, Clone)]
pub struct WrongClock {
    library: String,
    offset: String,
}

impl WrongClock {
    /// A clock that is so many seconds ahead, or behind when that is negative.
    pub fn ahead_by(seconds: i64) -> Self {
        let Some(library) = library() else {
            panic!("{LIBRARY} is not on this machine: run infra/tools/setup.sh, or install libfaketime")
        };
        Self { library, offset: format!("{seconds:+}s") }
    }

    /// The variables.
    pub fn env(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", &self.library),
            ("FAKETIME", &self.offset),
            // By both of its names.
            ("DONT_FAKE_MONOTONIC", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }
}

/// Where the tools script put it, or where distributions do.
fn library() -> Option<String> {
    let ours = repository().join(".tools/lib").join(LIBRARY);
    let named = ["/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"].map(PathBuf::from);
    let triplets = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let system = triplets.map(|entry| entry.path().join("faketime")).chain(named);
    let found =
        [ours].into_iter().chain(system.map(|folder| folder.join(LIBRARY))).find(|path| path.exists())?;
    found.into_os_string().into_string().map_err(|_: OsString| ()).ok()
}
