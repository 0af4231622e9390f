//! Reports of benchmarks, as text and as JSON.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::json;

use crate::{error::BenchError, figures::Figures, memory::Memory};

/// The report of a benchmark: as text, or serialized for `--json`.
#[derive(Debug)]
pub struct BenchReport {
    figures: Figures,
    memory: Memory,
    /// Figures that are worse than expected.
    failures: Vec<String>,
}

impl BenchReport {
    /// A report whose first line describes the machine and `options`.
    pub(crate) fn new(options: &str, figures: Figures, memory: Memory) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map(|(_, name)| name).unwrap_or_default();
        let processors = processors();
        let version = read("/proc/sys/kernel/osrelease");
        let kernel = version.trim();
        let mut all = Figures::default();
        all.lines.push(format!("{processors} x {model}, Linux {kernel}{options}"));
        all.field("machine", json!({ "processors": processors, "model": model, "kernel": kernel }));
        all.append(figures);
        if !memory.is_empty() {
            all.part("memory", memory.figures());
        }
        Self { figures: all, memory, failures: Vec::new() }
    }

    /// The same report, of a run in which these figures are worse than expected.
    pub(crate) fn with_failures(self, failures: Vec<String>) -> Self {
        Self { failures, ..self }
    }

    /// Fails if a figure is worse than expected, or a process of the farm used more memory than it may.
    pub fn check(&self) -> Result<(), BenchError> {
        if !self.failures.is_empty() {
            return Err(BenchError::plain(self.failures.join("\n")));
        }
        self.memory.check()
    }
}

/// Number of processors that this process may use; 0 if it is unknown.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Serialize for BenchReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.figures.fields.serialize(serializer)
    }
}
