//! Processor time of the shim itself, measured by its worker.

use std::fs;
use std::time::Duration;

use crate::server::own_cpu;

/// A process and all its descendants; `None` if the system does not list them.
pub(crate) fn process_ids(first: u32) -> Option<Vec<u32>> {
    let mut found = vec![first];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        // Each of them has one thread.
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        next += 1;
    }
    Some(found)
}

/// User and system time of these processes, without that of their children; `None` unless all are alive.
pub(crate) fn cpu(pids: &[u32]) -> Option<Duration> {
    if pids.is_empty() { None } else { pids.iter().map(|pid| own_cpu(*pid)).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_used_what_the_system_says() {
        let own = std::process::id();
        let began = cpu(&[own]).unwrap();
        while cpu(&[own]).unwrap() < began + Duration::from_millis(20) {}
        assert_eq!((cpu(&[]), cpu(&[own, u32::MAX])), (None, None));
        assert!(process_ids(own).unwrap().contains(&own));
    }
}
