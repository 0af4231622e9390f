//! Helpers for the tests of several modules.

use model::{Build, BuildId, BuildRequest, Group, Millis, Priority, RequestLimits, TimeLimits};

/// The build that a request of `group` makes, with a new id.
pub(crate) fn build(group: &str, request: BuildRequest) -> Build {
    let times = TimeLimits { timeout_seconds: 60, queue_timeout_seconds: 60, lease_ttl_seconds: 5 };
    let limits = RequestLimits {
        request_bytes_max: 1 << 20,
        times,
        times_max: times,
        attempts: 1,
        attempts_max: 1,
        ..RequestLimits::default()
    };
    let group: Group = group.parse().unwrap();
    let request = BuildRequest { id: Some(BuildId::generate()), ..request };
    request.validate(&group, Some(Priority::Interactive), None, &limits, Millis(1)).unwrap().build
}
