//! The memory of this process.

/// Maximum growth of the memory, in bytes: some hundred inputs of 64 KiB and what is made of them.
const GROWTH_MAX: u64 = 768 << 20;

/// Peak of the memory of this process.
pub(crate) struct Resident(u64);

impl Resident {
    pub(crate) fn now() -> Self {
        Self(peak())
    }

    /// Whether more was used since then than inputs of this size need.
    pub(crate) fn has_grown(&self) -> bool {
        peak().saturating_sub(self.0) > GROWTH_MAX
    }
}

/// The peak in bytes; 0 where it is not known.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() << 10
}
