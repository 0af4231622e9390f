//! Limit of open files of the process.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Maximum limit that a process requests: some programs iterate over all possible descriptors.
const WANTED: u64 = 65_536;

/// Limits of open files of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Limit in force now (soft limit).
    pub soft: u64,
    /// Limit up to which it may be raised (hard limit).
    pub hard: u64,
}

/// Reads the limits of this process.
pub fn descriptors() -> io::Result<Descriptors> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(Descriptors { soft, hard })
}

/// Raises the limit of this process to the hard limit, but at most 65,536. Programs that it starts inherit it.
pub fn raise_descriptors() -> io::Result<Descriptors> {
    let Descriptors { soft, hard } = descriptors()?;
    let wanted = hard.min(WANTED).max(soft);
    if wanted > soft {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(Descriptors { soft: wanted, hard })
}
