//! The control group that limits and counts memory.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::{Version, number_in};
use crate::error::SandboxError;

#[derive(Debug)]
pub(super) struct Memory {
    version: Version,
    folder: PathBuf,
    /// Version 2 resets the peak per descriptor, so it is read and reset through this one.
    peak: Option<File>,
    before: Mutex<Before>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Before {
    limit: Option<u64>,
    /// Whether the limit may not apply, because it could not be written.
    unsure: bool,
    kills: u64,
    /// Whether the peak was reset.
    reset: bool,
}

impl Memory {
    pub(super) fn new(version: Version, folder: PathBuf) -> Result<Self, SandboxError> {
        let peak = match version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        // Version 2 has this file since Linux 5.19. Without it the peak comes from the slot's process.
        let peak = File::options().read(true).write(true).open(folder.join(peak)).ok();
        let memory = Self { version, folder, peak, before: Mutex::default() };
        // A predecessor may have left a limit.
        memory.limit(None)?;
        Ok(memory)
    }

    pub(super) fn begin(&self, limit: Option<u64>) -> Result<(), SandboxError> {
        let mut before = self.before.lock();
        if before.unsure || before.limit != limit {
            before.unsure = true;
            self.limit(limit)?;
            before.limit = limit;
            before.unsure = false;
        }
        before.reset = self.peak.as_ref().is_some_and(|mut peak| peak.write(b"0").is_ok());
        before.kills = self.kills();
        Ok(())
    }

    pub(super) fn end(&self) -> (Option<u64>, bool) {
        let before = *self.before.lock();
        let peak = self.peak.as_ref().filter(|_| before.reset).and_then(|peak| {
            let mut text = [0; 32];
            let length = peak.read_at(&mut text, 0).ok()?;
            std::str::from_utf8(text.get(..length)?).ok()?.trim().parse().ok()
        });
        (peak, self.kills() > before.kills)
    }

    fn limit(&self, bytes: Option<u64>) -> Result<(), SandboxError> {
        let write = |file: &str, text: String| fs::write(self.folder.join(file), text);
        let text = |none: &str| bytes.map_or(none.to_owned(), |bytes| bytes.to_string());
        let (file, done) = match self.version {
            Version::One => {
                // The limit of memory and swap may never be below that of memory, so it is raised first. A kernel
                // that does not count swap has no such file.
                let _ = write("memory.memsw.limit_in_bytes", "-1".to_owned());
                let done = write("memory.limit_in_bytes", text("-1"));
                // As above, the file may not exist.
                let _ = write("memory.memsw.limit_in_bytes", text("-1"));
                ("memory.limit_in_bytes", done)
            }
            Version::Two => {
                // A kernel that does not count swap has no such file.
                let _ = write("memory.swap.max", bytes.map_or("max", |_| "0").to_owned());
                ("memory.max", write("memory.max", text("max")))
            }
        };
        done.map_err(|source| SandboxError::file("writing", self.folder.join(file), source))
    }

    /// Number of processes of this group that were ever killed because memory ran out.
    fn kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        // A kernel that does not count kills reports none.
        number_in(&self.folder.join(file), "oom_kill ").unwrap_or_default()
    }
}
