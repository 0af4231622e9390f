//! How many files the process may have open.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A process asks for no more than these: some programs walk through all that they may have.
const WANTED: u64 = 65_536;

/// How many files a process may have open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Now.
    pub soft: u64,
    /// After it has asked for more.
    pub hard: u64,
}

/// How many files this process may have open.
pub fn descriptors() -> io::Result<Descriptors> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(Descriptors { soft, hard })
}

/// Raises the limit of this process to what it may ask for, up to 65,536. Programs that it starts inherit it.
pub fn raise_descriptors() -> io::Result<Descriptors> {
    let Descriptors { soft, hard } = descriptors()?;
    let wanted = hard.min(WANTED).max(soft);
    if wanted > soft {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    Ok(Descriptors { soft: wanted, hard })
}
