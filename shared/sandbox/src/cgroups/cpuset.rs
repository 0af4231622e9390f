//! The control group that binds processes to processors and memory, so that none of them can use others.

use std::fs;
use std::path::Path;

use shim::Cores;

use super::Version;
use crate::error::SandboxError;

/// Binds the processes of a group below `parent`. No process can enter a group of version 1 before that.
pub(super) fn bind(version: Version, parent: &Path, group: &Path, cores: &Cores) -> Result<(), SandboxError> {
    let nodes = match version {
        // The group has no memory at first.
        Version::One if cores.memory_nodes.is_empty() => {
            let file = parent.join("cpuset.mems");
            let nodes = fs::read_to_string(&file);
            nodes.map_err(|source| SandboxError::file("reading", &file, source))?.trim().to_owned()
        }
        // An empty list means the memory of the parent.
        Version::One | Version::Two => list(&cores.memory_nodes),
    };
    for (file, text) in [("cpuset.mems", nodes), ("cpuset.cpus", list(&cores.processors))] {
        let file = group.join(file);
        fs::write(&file, text).map_err(|source| SandboxError::file("writing", file, source))?;
    }
    Ok(())
}

fn list(numbers: &[u16]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u16::to_string).collect();
    // The kernel ignores a write of no bytes.
    numbers.join(",") + "\n"
}
