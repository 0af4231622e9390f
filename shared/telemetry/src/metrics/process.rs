//! Metrics about the process itself, read from `/proc/self` at each scrape.

use std::sync::{LazyLock, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Unit;

/// Clock ticks per second in `/proc`: the kernel's `USER_HZ`, the same on all platforms of Rust.
const TICKS: f64 = 100.0;

static SERVICE: OnceLock<&'static str> = OnceLock::new();

/// Names the service in `forebay_build_info`.
pub(crate) fn set_service(service: &'static str) {
    // A second call has no effect.
    let _ = SERVICE.set(service);
}

/// Reads the metrics at each scrape.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let out = &mut encoder;
        let info = Family::<[(&str, &str); 2], Gauge>::default();
        let service = SERVICE.get().copied().unwrap_or("unknown");
        info.get_or_create(&[("version", env!("CARGO_PKG_VERSION")), ("service", service)]).set(1);
        encode_metric(out, "forebay_build_info", "Version and service of this process", None, &info)?;

        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if let Some(seconds) = cpu_seconds(&stat) {
            let help = "User and system CPU time spent";
            encode_metric(out, "process_cpu", help, Some(&Unit::Seconds), &ConstCounter::new(seconds))?;
        }
        if let Some(seconds) = *START {
            let help = "Start of the process in seconds since the epoch";
            encode_metric(out, "process_start_time", help, Some(&Unit::Seconds), &ConstGauge::new(seconds))?;
        }
        if let Some(bytes) = resident_bytes() {
            let help = "Resident memory size";
            encode_metric(out, "process_resident_memory", help, Some(&Unit::Bytes), &ConstGauge::new(bytes))?;
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the directory being read.
            let open = i64::try_from(files.count()).unwrap_or(i64::MAX) - 1;
            encode_metric(out, "process_open_fds", "Open file descriptors", None, &ConstGauge::new(open))?;
        }
        if let Some(most) = descriptors_max() {
            encode_metric(
                out,
                "process_max_fds",
                "Limit of open file descriptors",
                None,
                &ConstGauge::new(most),
            )?;
        }
        Ok(())
    }
}

fn encode_metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    metric: &impl EncodeMetric,
) -> std::fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
}

/// Field `number` of `/proc/self/stat`, counted from 1 as in proc(5).
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    // The second field is a name that may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS)
}

static START: LazyLock<Option<f64>> = LazyLock::new(|| {
    let machine = std::fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = machine.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    Some(boot + stat_field(&stat, 22)? / TICKS)
});

fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The soft limit of open files.
fn descriptors_max() -> Option<i64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{START, cpu_seconds, descriptors_max, resident_bytes};

    #[test]
    fn odd_process_names_do_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("7 (x) S"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_start() {
        assert!(resident_bytes().unwrap() > 100_000);
        assert!(descriptors_max().unwrap() > 3);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        let age = now - START.unwrap();
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }
}
