//! The control group that distributes processor time.

use std::fs;
use std::path::PathBuf;

use parking_lot::Mutex;

use super::Version;
use crate::error::SandboxError;

/// Period of the limit in microseconds.
const PERIOD: u64 = 100_000;
/// More processors than any machine has: the kernel refuses numbers that are much larger.
const QUOTA_MOST: u64 = 1_000_000 * PERIOD;
/// The weight of a group without one, in both versions: version 1 counts 1024 shares for it.
const WEIGHT: u32 = 100;
const SHARES: u64 = 1024;

/// Limits on processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuLimits {
    /// Processors at a time, in thousandths.
    pub millis: Option<u64>,
    /// Share while others want the processors too: 1 to 10,000; absent means 100.
    pub weight: Option<u32>,
}

#[derive(Debug)]
pub(super) struct Processors {
    version: Version,
    folder: PathBuf,
    /// The limits that were written; absent if that is not certain.
    written: Mutex<Option<CpuLimits>>,
}

impl Processors {
    pub(super) fn new(version: Version, folder: PathBuf) -> Result<Self, SandboxError> {
        let processors = Self { version, folder, written: Mutex::default() };
        // A predecessor may have left limits.
        processors.begin(CpuLimits::default())?;
        Ok(processors)
    }

    pub(super) fn begin(&self, limits: CpuLimits) -> Result<(), SandboxError> {
        let mut written = self.written.lock();
        if *written == Some(limits) {
            return Ok(());
        }
        *written = None;
        let quota = limits.millis.map(|millis| millis.saturating_mul(PERIOD / 1000).min(QUOTA_MOST));
        let weight = u64::from(limits.weight.unwrap_or(WEIGHT));
        match self.version {
            Version::One => {
                self.write("cpu.cfs_period_us", &PERIOD.to_string())?;
                self.write("cpu.cfs_quota_us", &quota.map_or("-1".to_owned(), |quota| quota.to_string()))?;
                self.write("cpu.shares", &(weight * SHARES / u64::from(WEIGHT)).max(2).to_string())?;
            }
            Version::Two => {
                let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
                self.write("cpu.max", &format!("{quota} {PERIOD}"))?;
                self.write("cpu.weight", &weight.to_string())?;
            }
        }
        *written = Some(limits);
        Ok(())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), SandboxError> {
        let file = self.folder.join(file);
        fs::write(&file, text).map_err(|source| SandboxError::file("writing", file, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_get_a_quota_and_a_weight() {
        let limits = CpuLimits { millis: Some(1500), weight: Some(50) };
        for (version, wanted) in [
            (Version::One, [("cpu.cfs_quota_us", "150000"), ("cpu.shares", "512")]),
            (Version::Two, [("cpu.max", "150000 100000"), ("cpu.weight", "50")]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let processors = Processors::new(version, folder.path().to_owned()).unwrap();
            let read = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
            assert!(["-1", "max 100000"].contains(&read(wanted[0].0).as_str()));
            processors.begin(limits).unwrap();
            for (file, text) in wanted {
                assert_eq!(read(file), text);
            }
        }
    }
}
