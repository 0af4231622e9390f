//! The limits of a build: which apply, and what exceeding one means.

use std::path::Path;

use model::{BuildLimits, BuildRecord, Reason, ReasonCode};
use sandbox::{CpuLimits, WorkspaceBounds};
use sensors::machine_memory;
use settings::WorkerSettings;
use shim::{Cause, Limit, Over};

/// Mount point of the kernel's process information.
const PROC: &str = "/proc";
/// Most that a build may write into its image where the memory of the machine is unknown.
const WRITABLE_BYTES: u64 = 1 << 30;

/// The limits of the build and of its workspace together. After attempts that ran out of memory, the build gets more.
pub(crate) fn of(record: &BuildRecord, settings: &WorkerSettings) -> BuildLimits {
    let mut limits = record.build.limits;
    if let Some(factor) = settings.out_of_memory_factor
        && record.queue.retry.as_ref().is_some_and(|retry| retry.reason.code == ReasonCode::OutOfMemory)
    {
        let attempts = i32::try_from(record.attempt.0).unwrap_or(i32::MAX).saturating_sub(1);
        let grown = limits.memory_bytes.map(|bytes| grown(bytes, factor.powi(attempts)));
        limits.memory_bytes = grown.into_iter().chain(most_memory(record, settings)).min();
    }
    limits.least(settings.limits)
}

/// The most memory that the build may ever have: that of its group, and of its workspace.
fn most_memory(record: &BuildRecord, settings: &WorkerSettings) -> Option<u64> {
    BuildLimits::of_group(&settings.group_limits, &record.build.group).least(settings.limits).memory_bytes
}

fn grown(bytes: u64, factor: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast from f64 saturates")]
    let grown = (bytes as f64 * factor) as u64;
    grown
}

/// Whether an attempt that ran out of memory is followed by one with more.
pub(crate) fn may_have_more(record: &BuildRecord, limits: &BuildLimits, settings: &WorkerSettings) -> bool {
    let most = most_memory(record, settings).unwrap_or(u64::MAX);
    settings.out_of_memory_factor.is_some()
        && record.build.limits.memory_bytes.is_some()
        && limits.memory_bytes.is_some_and(|bytes| bytes < most)
        && record.attempt < record.build.max_attempts
}

/// The limits that control groups and the shim enforce.
pub(crate) fn bounds(limits: &BuildLimits, settings: &WorkerSettings) -> WorkspaceBounds {
    WorkspaceBounds {
        memory_bytes: limits.memory_bytes,
        processes: limits.processes,
        cpu: CpuLimits { millis: limits.cpu_millis, weight: settings.cpu_weight },
    }
}

/// Most that a build with these limits may write into its image, in bytes of memory: without a limit, half of the machine's, as
/// Linux has it for file systems in memory.
pub(crate) fn writable_bytes(limits: &BuildLimits) -> u64 {
    let of_machine = || machine_memory(Path::new(PROC)).map_or(WRITABLE_BYTES, |bytes| bytes / 2);
    limits.memory_bytes.unwrap_or_else(of_machine)
}

/// Why a build failed that exceeded a limit.
pub(crate) fn over(cause: Cause) -> Option<Reason> {
    match cause {
        Cause::OutOfMemory => Some(out_of_memory("")),
        Cause::OverLimit(Over { limit: Limit::Memory, allowed, used }) => {
            Some(out_of_memory(&format!(": {used} bytes of {allowed}")))
        }
        Cause::OverLimit(Over { limit: Limit::Processes, allowed, .. }) => Some(Reason {
            code: ReasonCode::TooManyProcesses,
            message: format!(
                "the build had more processes and threads than the {allowed} that it may have (processes of its limits \
                 or of its group in build_limits, or workspace_processes_max)"
            ),
        }),
        Cause::OverLimit(_) | Cause::Ended | Cause::Killed | Cause::Deadline | Cause::OutputTooLarge(..) => {
            None
        }
    }
}

/// Why a build failed whose largest process had more memory than `allowed`, which ended before that was noticed.
pub(crate) fn too_much_memory(allowed: u64, peak: u64) -> Option<Reason> {
    (peak > allowed).then(|| out_of_memory(&format!(": {peak} bytes of {allowed}")))
}

fn out_of_memory(more: &str) -> Reason {
    Reason {
        code: ReasonCode::OutOfMemory,
        message: format!(
            "the build needed more memory than it may use (memory_bytes of its limits or of its group in build_limits, or \
             workspace_memory_bytes){more}"
        ),
    }
}

/// Why a build failed that printed more than `allowed` bytes.
pub(crate) fn too_much_output(allowed: u64) -> Reason {
    Reason {
        code: ReasonCode::TooMuchOutput,
        message: format!(
            "the build printed more than {allowed} bytes (output_bytes of its limits, or of its group in build_limits)"
        ),
    }
}

/// Why a build failed whose files were larger than `allowed` bytes.
pub(crate) fn too_much_disk(used: u64, allowed: u64) -> Reason {
    Reason {
        code: ReasonCode::TooMuchDisk,
        message: format!(
            "the files of the build had {used} bytes, and it may have {allowed} (disk_bytes of its limits or of its \
             group in build_limits, or workspace_disk_bytes)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use model::{Attempt, BuildRequest, Retry};
    use settings::Settings;

    use super::*;
    use crate::testing;

    #[test]
    fn a_build_that_ran_out_of_memory_gets_more_up_to_the_limit_of_its_group() {
        let memory = |bytes| BuildLimits { memory_bytes: Some(bytes), ..BuildLimits::default() };
        let settings = Settings {
            out_of_memory_factor: 2.0,
            build_limits: [("ci".to_owned(), memory(300)), ("*".to_owned(), memory(900))].into(),
            ..Settings::default()
        };
        let settings = settings.worker();
        let request =
            BuildRequest { command: vec!["true".into()], limits: memory(100), ..Default::default() };
        let mut record = BuildRecord::enqueued(testing::build("ci", request));
        let reason = Reason { code: ReasonCode::OutOfMemory, message: String::new() };
        for (attempt, wanted) in [(2, 200), (3, 300), (4, 300)] {
            record.attempt = Attempt(attempt);
            record.queue.retry =
                Some(Retry { reason: reason.clone(), worker: "w".parse().unwrap(), invocation: None });
            assert_eq!(of(&record, &settings).memory_bytes, Some(wanted), "attempt {attempt}");
        }
        assert!(!may_have_more(&record, &memory(300), &settings));
    }
}
