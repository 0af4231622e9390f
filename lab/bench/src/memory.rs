//! Peak memory of the processes of a farm.

use std::collections::BTreeMap;

use crate::{error::BenchError, farm::BenchFarm, figures::Figures};

/// Maximum peak memory of a process in MiB.
const LIMIT_MIB: f64 = 512.0;

/// Peak resident memory in MiB, by process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    peak_mib: BTreeMap<String, f64>,
}

impl Memory {
    /// Updates the peaks with those of the processes of `farm`.
    pub(crate) fn note(&mut self, farm: &BenchFarm) {
        let mut processes: Vec<(String, u32)> =
            farm.endpoints.processes.iter().map(|(name, pid)| (name.clone(), *pid)).collect();
        processes.push(("bench (the client)".to_owned(), std::process::id()));
        for (name, pid) in processes {
            if let Some(peak) = status_kib(pid, "VmHWM") {
                let known = self.peak_mib.entry(name).or_default();
                *known = known.max(peak / 1024.0);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peak_mib.is_empty()
    }

    pub(crate) fn figures(&self) -> Figures {
        let (mut peaks, mut figures) = (Figures::default(), Figures::default());
        for (name, peak) in &self.peak_mib {
            peaks.figure(name, &format!("peak memory of {name}"), *peak, "MiB");
        }
        figures.part("peak_mib", peaks);
        figures
    }

    /// Fails if a process exceeded the limit.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let over: Vec<String> = self
            .peak_mib
            .iter()
            .filter(|(_, peak)| **peak > LIMIT_MIB)
            .map(|(name, peak)| format!("{name} used {peak:.0} MiB"))
            .collect();
        if over.is_empty() {
            return Ok(());
        }
        Err(BenchError::plain(format!("peak memory above {LIMIT_MIB:.0} MiB: {}", over.join(", "))))
    }
}

/// Value in KiB of a field of `/proc/PID/status`.
pub(crate) fn status_kib(pid: u32, field: &str) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}
