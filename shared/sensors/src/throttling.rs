//! How often control groups reach their limit of processor time.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use policy::Signal;

use crate::{Kind, Lagging, Reading, Sensor, SensorInput};

/// Time over which the share is measured.
const OVER: Duration = Duration::from_secs(10);
/// Number of periods below which the share says nothing.
const PERIODS: u64 = 20;

/// Periods of the limit since the group was created, and those in which it was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Periods {
    all: u64,
    throttled: u64,
}

pub(crate) struct Throttling {
    groups: Vec<Group>,
    most: u32,
}

struct Group {
    folder: PathBuf,
    seen: VecDeque<(Instant, Periods)>,
    lagging: Lagging,
}

impl Throttling {
    pub(crate) fn new(groups: Vec<PathBuf>, most: u32) -> Self {
        let group = |folder| Group { folder, seen: VecDeque::new(), lagging: Lagging::default() };
        Self { groups: groups.into_iter().map(group).collect(), most }
    }
}

impl Group {
    /// Percentage of the periods of the last seconds in which the limit was reached.
    fn percent(&mut self, now: Instant) -> f64 {
        let Some(periods) = read(&self.folder) else { return 0.0 };
        self.seen.push_back((now, periods));
        while self.seen.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= OVER) {
            self.seen.pop_front();
        }
        let first = self.seen.front().map_or(periods, |(_, first)| *first);
        let all = periods.all.saturating_sub(first.all);
        if all < PERIODS {
            return 0.0;
        }
        periods.throttled.saturating_sub(first.throttled) as f64 / all as f64 * 100.0
    }
}

fn read(group: &Path) -> Option<Periods> {
    let text = fs::read_to_string(group.join("cpu.stat")).ok()?;
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(Periods { all: of("nr_periods ")?, throttled: of("nr_throttled ")? })
}

impl Sensor for Throttling {
    fn name(&self) -> &'static str {
        "throttling"
    }

    fn kind(&self) -> Kind {
        Kind::Congestion
    }

    fn read(&mut self, _: SensorInput) -> Reading {
        let now = Instant::now();
        for group in &mut self.groups {
            let percent = group.percent(now);
            let signal = group.lagging.signal(percent, f64::from(self.most));
            if signal != Signal::Green {
                let why = format!(
                    "the control group {} reached its processor limit in {percent:.0} % of its periods, above the \
                     maximum of {} %",
                    group.folder.display(),
                    self.most
                );
                return Reading { signal, why };
            }
        }
        Reading::green()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_red_while_most_periods_reach_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let mut sensor = Throttling::new(vec![folder.path().to_owned()], 80);
        let mut read = |all: u64, throttled: u64| {
            let text =
                format!("usage_usec 5\nnr_periods {all}\nnr_throttled {throttled}\nthrottled_usec 1\n");
            fs::write(folder.path().join("cpu.stat"), text).unwrap();
            sensor.read(SensorInput::default()).signal
        };
        assert_eq!(read(1000, 900), Signal::Green);
        assert_eq!(read(1010, 910), Signal::Green);
        assert_eq!(read(1100, 1000), Signal::Red);
        assert_eq!(read(1110, 1000), Signal::Easing);
        assert_eq!(read(1300, 1000), Signal::Green);
        fs::remove_file(folder.path().join("cpu.stat")).unwrap();
        assert_eq!(sensor.read(SensorInput::default()), Reading::green());
    }
}
