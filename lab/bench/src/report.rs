//! Report of `forebay bench builds`, and formatting of reports.

use std::fmt;

use serde::Serialize;

/// The report that `--json` prints.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BuildsReport {
    machine: Machine,
    workspaces: u16,
    /// Rate of builds of `/bin/true` relative to bare spawns of it; 1 means no overhead.
    finish_to_spawn_ratio: Option<f64>,
    finishes_per_s: Option<f64>,
    spawns_per_s: Option<f64>,
    spawns_per_s_before_and_after: Option<[f64; 2]>,
    pub(crate) creates_per_s: Option<f64>,
    pub(crate) creates_per_s_sync_always: Option<f64>,
    pub(crate) gets_per_s: Option<f64>,
    pub(crate) start_latency_ms: Option<Percentiles>,
    pub(crate) queue: Option<QueueReport>,
}

/// The machine of the measurement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    processors: usize,
    model: String,
    kernel: String,
}

/// Percentiles in the unit of the field that has them.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Dispatch rates with a long queue and with a short one.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct QueueReport {
    pub(crate) queued: u64,
    pub(crate) finishes_per_s_deep: f64,
    pub(crate) finishes_per_s_at_1000: f64,
    pub(crate) deep_to_1000_ratio: f64,
    pub(crate) redis_bytes_per_build: f64,
    pub(crate) rounds: usize,
}

impl BuildsReport {
    pub(crate) fn new(workspaces: u16) -> Self {
        Self {
            machine: Machine::here(),
            workspaces,
            finish_to_spawn_ratio: None,
            finishes_per_s: None,
            spawns_per_s: None,
            spawns_per_s_before_and_after: None,
            creates_per_s: None,
            creates_per_s_sync_always: None,
            gets_per_s: None,
            start_latency_ms: None,
            queue: None,
        }
    }

    pub(crate) fn floor(&mut self, before: f64, after: f64, finishes: f64) {
        let spawns = f64::midpoint(before, after);
        self.spawns_per_s = Some(spawns);
        self.spawns_per_s_before_and_after = Some([before, after]);
        self.finishes_per_s = Some(finishes);
        self.finish_to_spawn_ratio = Some(finishes / spawns);
    }
}

impl Machine {
    /// Reads the properties of this machine.
    pub(crate) fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processors: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            model: model.map(|(_, name)| name.to_owned()).unwrap_or_default(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}, Linux {}", self.processors, self.model, self.kernel)
    }
}

/// Writes one figure on a separate line, if it was measured.
pub(crate) fn line(f: &mut fmt::Formatter<'_>, name: &str, value: Option<f64>, unit: &str) -> fmt::Result {
    match value {
        Some(value) if value < 10.0 => writeln!(f, "{name:<46} {value:>10.2} {unit}"),
        Some(value) => writeln!(f, "{name:<46} {value:>10.0} {unit}"),
        None => Ok(()),
    }
}

impl fmt::Display for BuildsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} workspaces", self.machine, self.workspaces)?;
        let mut line = |name: &str, value: Option<f64>, unit: &str| line(f, name, value, unit);
        line("bare spawns of /bin/true, two threads", self.spawns_per_s, "/s")?;
        line("builds of /bin/true while creating more", self.finishes_per_s, "/s")?;
        line("builds to bare spawns", self.finish_to_spawn_ratio, "")?;
        line("create, acknowledged", self.creates_per_s, "/s")?;
        line("create, with sync_interval: always", self.creates_per_s_sync_always, "/s")?;
        line("get", self.gets_per_s, "/s")?;
        line("create to process start, p50", self.start_latency_ms.map(|p| p.p50), "ms")?;
        line("create to process start, p99", self.start_latency_ms.map(|p| p.p99), "ms")?;
        if let Some(queue) = &self.queue {
            line(&format!("builds/s with {} queued", queue.queued), Some(queue.finishes_per_s_deep), "/s")?;
            line("builds/s with 1,000 queued", Some(queue.finishes_per_s_at_1000), "/s")?;
            line("long to short queue", Some(queue.deep_to_1000_ratio), "")?;
            line("Redis memory of a queued build", Some(queue.redis_bytes_per_build), "B")?;
        }
        Ok(())
    }
}
