//! The limits of services, and the form in which a sandbox enforces limits.

use std::time::Duration;

use model::TaskLimits;
use sandbox::Limits;

/// The limits that a sandbox enforces by itself; it gets those of time and output separately.
pub fn sandbox_limits(limits: &TaskLimits) -> Limits {
    Limits {
        cpu: limits.cpu_ms.map(Duration::from_millis),
        memory_bytes: limits.memory_bytes,
        processes: limits.processes,
        files: limits.files,
        disk_bytes: limits.disk_bytes,
    }
}

/// The limits of a service: never more than is allowed. Its time is limited only if it asks for that.
pub(crate) fn of_service(asked: TaskLimits, allowed: TaskLimits) -> TaskLimits {
    TaskLimits { wall_ms: asked.wall_ms, ..asked.least(allowed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_no_more_than_is_allowed_and_any_time() {
        let asked = TaskLimits { cpu_ms: Some(9), files: Some(2), ..TaskLimits::default() };
        let allowed =
            TaskLimits { cpu_ms: Some(5), wall_ms: Some(1), disk_bytes: Some(7), ..TaskLimits::default() };
        let wanted =
            TaskLimits { cpu_ms: Some(5), files: Some(2), disk_bytes: Some(7), ..TaskLimits::default() };
        assert_eq!(of_service(asked, allowed), wanted);
        let timed = TaskLimits { wall_ms: Some(3), ..TaskLimits::default() };
        assert_eq!(of_service(timed, TaskLimits::default()).wall_ms, Some(3));
    }
}
