//! Whether others use the processors: machines of the same host (steal time), and processes of this one.

use super::{
    Finding, SAMPLE, UNREADABLE,
    files::Reading,
    machine::{Counters, Machine, Ticks},
    unknown,
};

/// Percentage of steal time above which times are disturbed.
const STEAL_PERCENT_MAX: f64 = 1.0;
/// Percentage of time in which a process waited for a processor, above which times are disturbed.
const WAITS_PERCENT_MAX: f64 = 1.0;
/// Number of busy processors above which times are disturbed.
const BUSY_MAX: f64 = 0.2;
/// Load average above which times are disturbed, for kernels that do not measure waits.
const LOAD_MAX: f64 = 0.5;

/// What happened between two readings, in ticks.
fn between(before: &Counters, after: &Counters) -> Option<Ticks> {
    let (before, after) = (before.ticks.known()?, after.ticks.known()?);
    let ticks = Ticks {
        busy: after.busy.saturating_sub(before.busy),
        steal: after.steal.saturating_sub(before.steal),
        all: after.all.saturating_sub(before.all),
    };
    (ticks.all > 0).then_some(ticks)
}

fn share(part: u64, all: u64) -> f64 {
    part as f64 / all.max(1) as f64
}

/// Judges the time in which the host ran something else instead of this machine.
pub(super) fn steal(before: &Counters, after: &Counters) -> Finding {
    const CHECK: &str = "steal";
    const ADVICE: &str = "measure on a physical machine, or on a host without other machines";
    let since_start = match &after.ticks {
        Reading::Known(ticks) => 100.0 * share(ticks.steal, ticks.all),
        Reading::Missing => return unknown(CHECK, "/proc/stat does not exist", UNREADABLE),
        Reading::Unreadable(why) => return unknown(CHECK, why, UNREADABLE),
    };
    let long = format!("{since_start:.2} % since the start of the machine");
    let Some(ticks) = between(before, after) else {
        return unknown(CHECK, &format!("no sample; {long}"), "try again");
    };
    let now = 100.0 * share(ticks.steal, ticks.all);
    let found = format!("{now:.1} % in {} s, {long}", SAMPLE.as_secs());
    if now > STEAL_PERCENT_MAX {
        Finding::fail(CHECK, found, ADVICE)
    } else if since_start > STEAL_PERCENT_MAX {
        Finding::warn(CHECK, found, ADVICE)
    } else {
        Finding::ok(CHECK, found)
    }
}

/// Judges the use of the processors by all processes of this machine.
pub(super) fn load(machine: &Machine, before: &Counters, after: &Counters) -> Finding {
    const CHECK: &str = "load";
    let processors = machine.processors.len();
    let busy = between(before, after).map(|ticks| share(ticks.busy, ticks.all) * processors as f64);
    let busy = busy.filter(|_| processors > 0);
    let (waits, average) = (after.pressure.known(), after.load.known());
    let found: Vec<String> = [
        busy.map(|busy| format!("{busy:.1} of {processors} processors busy for {} s", SAMPLE.as_secs())),
        waits.map(|waits| format!("processes waited for a processor in {waits:.1} % of 10 s")),
        average.map(|average| format!("load average {average:.2}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if found.is_empty() {
        return unknown(
            CHECK,
            "neither /proc/stat, /proc/pressure/cpu nor /proc/loadavg can be read",
            UNREADABLE,
        );
    }
    let is_loaded = busy.is_some_and(|busy| busy > BUSY_MAX)
        || waits.map_or_else(
            || average.is_some_and(|average| *average > LOAD_MAX),
            |waits| *waits > WAITS_PERCENT_MAX,
        );
    if is_loaded {
        let advice = "end or move other processes: top; let a measured task be alone: exclusive: \"true\" in its platform";
        return Finding::fail(CHECK, found.join(", "), advice);
    }
    Finding::ok(CHECK, found.join(", "))
}
