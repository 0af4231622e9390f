//! `forebay doctor --measure`: whether times measured on this machine can be compared. It reads files of the kernel, and no
//! farm is needed for it.

mod files;
mod frequency_checks;
mod load_checks;
mod machine;
mod memory_checks;
#[cfg(test)]
mod tests;
mod topology_checks;

use std::{path::Path, time::Duration};

use files::Files;
use machine::{Counters, Machine};

use super::{Finding, Status};

/// Time over which steal time, load and thermal throttling are observed.
const SAMPLE: Duration = Duration::from_secs(1);

/// Reads this machine, observes it for [`SAMPLE`], and judges what was found.
pub(super) async fn run() -> Vec<Finding> {
    let files = Files::below(Path::new("/"));
    let machine = Machine::read(&files);
    let before = Counters::read(&files);
    tokio::time::sleep(SAMPLE).await;
    let after = Counters::read(&files);
    judge(&machine, &before, &after, executor::binds_cores())
}

/// All findings about a machine whose counters were read twice, and a summary of them. `binds`: an executor can keep
/// commands on the processors of their slot.
fn judge(machine: &Machine, before: &Counters, after: &Counters, binds: bool) -> Vec<Finding> {
    let mut findings = vec![
        topology_checks::virtualisation(machine),
        frequency_checks::governor(machine),
        frequency_checks::turbo(machine),
        frequency_checks::throttling(machine, before, after),
        topology_checks::smt(machine),
        topology_checks::cores(machine),
        topology_checks::caches(machine),
        topology_checks::isolated(machine),
        topology_checks::binding(binds),
        memory_checks::huge_pages(machine),
        memory_checks::khugepaged(machine),
        memory_checks::swap(machine),
        memory_checks::aslr(machine),
        load_checks::steal(before, after),
        load_checks::load(machine, before, after),
        slots(),
    ];
    findings.push(summary(&findings));
    findings
}

/// Names the benchmark that finds out how many measurements can run at a time.
fn slots() -> Finding {
    let advice = "forebay bench stability --only parallel measures it (measure_slots)";
    let found = "number of measurements that can run at a time: not measured here";
    Finding { advice: Some(advice.to_owned()), ..Finding::ok("slots", found) }
}

/// Whether times can be compared, with the names of all checks that found a disturbance.
fn summary(findings: &[Finding]) -> Finding {
    const CHECK: &str = "summary";
    let of = |status| {
        let found = findings.iter().filter(|finding| finding.status == status);
        found.map(|finding| finding.check).collect::<Vec<_>>().join(", ")
    };
    let (disturbing, limited) = (of(Status::Fail), of(Status::Warn));
    if !disturbing.is_empty() {
        return Finding::fail(
            CHECK,
            format!("times of different runs cannot be compared: {disturbing}"),
            "fix these; until then compare only medians of many runs made in turn (`measure` of a job)",
        );
    }
    if !limited.is_empty() {
        let found = format!("times can be compared within limits: {limited}");
        return Finding::warn(CHECK, found, "see these lines");
    }
    Finding::ok(CHECK, "times can be compared")
}

/// A finding about what cannot be read. It is a warning, because it may disturb.
fn unknown(check: &'static str, why: &str, advice: &str) -> Finding {
    Finding::warn(check, format!("unknown: {why}"), advice)
}

/// Advice for a file that exists, but cannot be read.
const UNREADABLE: &str = "try again as root; in a container, run this on its host";
