//! Resource limits of an action, and the messages about exceeded limits.

use std::time::Duration;

use bus::millis;
use invariant::Present as _;
use model::TaskLimits;
use policy::actions::limits::Limit;
use sandbox::{Cause, Ended, Over, Stream};

/// The limits of an action that asks for `asked`: never more than `most`, which the settings allow. If its client sets
/// no memory limit, memory is limited by the action's size: see [`crate::memory`].
pub(crate) fn effective(asked: TaskLimits, timeout: Duration, most: &TaskLimits) -> TaskLimits {
    let (wall_ms, memory_bytes) = (Some(millis(timeout)), asked.memory_bytes);
    TaskLimits { wall_ms, memory_bytes, ..asked.least(*most) }
}

/// A limit that a command exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExceededLimit {
    pub(crate) limit: Limit,
    /// The limit, in its unit.
    pub(crate) allowed: u64,
    /// Usage when the excess was detected, in the unit of the limit.
    pub(crate) used: u64,
    /// The output stream, for the output limit.
    stream: Option<Stream>,
}

impl ExceededLimit {
    /// The limit that ended the command; `None` if no limit did.
    pub(crate) fn find(ended: &Ended, limits: &TaskLimits) -> Option<Self> {
        let broken = |limit, used, stream| {
            let allowed = Limit::of(limit, limits).present("a limit was exceeded, but is not set");
            Some(Self { limit, allowed, used, stream })
        };
        match ended.cause {
            Cause::Ended | Cause::Killed | Cause::OutOfMemory => None,
            // The kill may come within the millisecond that was still allowed.
            Cause::Deadline => {
                let over = limits.wall_ms.map_or(0, |allowed| allowed.saturating_add(1));
                broken(Limit::Wall, millis(ended.wall).max(over), None)
            }
            Cause::OutputTooLarge(stream, written) => broken(Limit::Output, written, Some(stream)),
            Cause::OverLimit(Over { limit, allowed, used }) => {
                let limit = match limit {
                    sandbox::Limit::Cpu => Limit::Cpu,
                    sandbox::Limit::Memory => Limit::Memory,
                    sandbox::Limit::Processes => Limit::Processes,
                    sandbox::Limit::Disk => Limit::Disk,
                    sandbox::Limit::Files => Limit::Files,
                };
                Some(Self { limit, allowed, used, stream: None })
            }
        }
    }
}

impl std::fmt::Display for ExceededLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, allowed, used, stream } = *self;
        let property = limit.property().unwrap_or("timeout");
        match (limit, stream) {
            (Limit::Wall, _) => {
                let seconds = |millis: u64| millis as f64 / 1000.0;
                let (used, allowed) = (seconds(used), seconds(allowed));
                write!(
                    f,
                    "the command was killed after {used:.1} s: its time limit ({property}) is {allowed} s"
                )
            }
            (_, Some(stream)) => {
                let to = if stream == Stream::Stdout { "stdout" } else { "stderr" };
                write!(
                    f,
                    "the command wrote {used} bytes to {to}, more than its limit ({property}) of {allowed}"
                )
            }
            (_, None) => {
                let unit = limit.unit();
                write!(f, "the command used {used} {unit}, more than its limit ({property}) of {allowed}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn ended(cause: Cause) -> Ended {
        let now = SystemTime::now();
        Ended {
            exit_code: 137,
            signal: None,
            cause,
            wall: Duration::from_millis(1530),
            cpu: Duration::ZERO,
            peak_memory_bytes: 0,
            switches: sandbox::Switches::default(),
            started_at: now,
            ended_at: now,
            stdout_bytes: 0,
            stderr_bytes: 0,
        }
    }

    #[test]
    fn the_stricter_of_what_is_asked_for_and_what_the_settings_allow_holds() {
        let most = TaskLimits {
            cpu_ms: Some(2000),
            files: Some(7),
            memory_bytes: Some(5),
            output_bytes: Some(100),
            ..TaskLimits::default()
        };
        let asked = TaskLimits {
            cpu_ms: Some(3000),
            files: Some(3),
            disk_bytes: Some(9),
            memory_bytes: Some(4),
            ..TaskLimits::default()
        };
        let wanted = TaskLimits {
            cpu_ms: Some(2000),
            wall_ms: Some(1000),
            memory_bytes: Some(4),
            processes: None,
            files: Some(3),
            disk_bytes: Some(9),
            output_bytes: Some(100),
        };
        assert_eq!(effective(asked, Duration::from_secs(1), &most), wanted);
        // The limit from the settings is only a size here: an action that exceeds it is retried with more memory.
        assert_eq!(effective(TaskLimits::default(), Duration::MAX, &most).memory_bytes, None);
    }

    #[test]
    fn what_is_told_names_the_limit_and_what_was_allowed_and_used() {
        let limits = TaskLimits { wall_ms: Some(1000), output_bytes: Some(10), ..TaskLimits::default() };
        let text = |cause| ExceededLimit::find(&ended(cause), &limits).map(|broken| broken.to_string());
        let over = Over { limit: sandbox::Limit::Cpu, allowed: 1000, used: 1034 };
        let told = [
            (
                Cause::OverLimit(over),
                "the command used 1034 ms of processor time, more than its limit (limit-cpu-ms) of 1000",
            ),
            (
                Cause::OutputTooLarge(Stream::Stderr, 12),
                "the command wrote 12 bytes to stderr, more than its limit (limit-output-bytes) of 10",
            ),
            (Cause::Deadline, "the command was killed after 1.5 s: its time limit (timeout) is 1 s"),
        ];
        for (cause, wanted) in told {
            assert_eq!(text(cause).unwrap(), wanted);
        }
        assert_eq!(text(Cause::OutOfMemory), None);
    }
}
