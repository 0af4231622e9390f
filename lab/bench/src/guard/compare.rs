//! Compares measured figures with expected ones.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::statistics::median_and_worst;

/// Part by which a figure may be worse than expected. The medians of a run scatter by less.
const TOLERANCE: f64 = 0.15;
/// The same for processor time: two machines of the same kind differed by up to a quarter, because wake-ups cost more on
/// one of them and spawns do not.
const PROCESSOR_TOLERANCE: f64 = 0.25;
/// Number of processes that a failure names.
const NAMED: usize = 3;

/// A figure that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GuardedFigure {
    ThroughputRatio,
    ProcessorRatio,
    StoredMessages,
    Messages,
    RedisCommands,
}

impl GuardedFigure {
    const ALL: [Self; 5] = [
        Self::ThroughputRatio,
        Self::ProcessorRatio,
        Self::StoredMessages,
        Self::Messages,
        Self::RedisCommands,
    ];

    /// Its field in the file.
    fn name(self) -> &'static str {
        match self {
            Self::ThroughputRatio => "throughput_ratio",
            Self::ProcessorRatio => "processor_ratio",
            Self::StoredMessages => "stored_messages",
            Self::Messages => "messages",
            Self::RedisCommands => "redis_commands",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::ThroughputRatio => "rate relative to bare spawns",
            Self::ProcessorRatio => "processor time of services and servers in bare spawns",
            Self::StoredMessages => "messages that JetStream stores",
            Self::Messages => "messages through nats-server",
            Self::RedisCommands => "Redis commands",
        }
    }

    fn is_better_if_higher(self) -> bool {
        self == Self::ThroughputRatio
    }

    fn tolerance(self) -> f64 {
        if self == Self::ProcessorRatio { PROCESSOR_TOLERANCE } else { TOLERANCE }
    }

    /// The worst value that passes.
    fn limit(self, expected: f64) -> f64 {
        let sign = if self.is_better_if_higher() { -1.0 } else { 1.0 };
        expected * (1.0 + sign * self.tolerance())
    }

    /// Whether a measured value passes. A value that is not a number fails.
    fn allows(self, expected: f64, measured: f64) -> bool {
        let limit = self.limit(expected);
        if self.is_better_if_higher() { measured >= limit } else { measured <= limit }
    }
}

impl fmt::Display for GuardedFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The figures of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaseFigures {
    /// `None` if others used the processors, so that only the stored messages can be compared.
    pub(crate) throughput_ratio: Option<f64>,
    pub(crate) processor_ratio: f64,
    pub(crate) stored_messages: f64,
    pub(crate) messages: f64,
    pub(crate) redis_commands: f64,
    /// Processor time in bare spawns by process. It is not compared, but explains a failure.
    pub(crate) processes: BTreeMap<String, f64>,
}

impl CaseFigures {
    /// The figure, unless others used the processors: then the services work in smaller batches, and each action costs up
    /// to a quarter more.
    fn get(&self, figure: GuardedFigure) -> Option<f64> {
        let undisturbed = |value| self.throughput_ratio.map(|_| value);
        match figure {
            GuardedFigure::ThroughputRatio => self.throughput_ratio,
            GuardedFigure::ProcessorRatio => undisturbed(self.processor_ratio),
            GuardedFigure::StoredMessages => Some(self.stored_messages),
            GuardedFigure::Messages => undisturbed(self.messages),
            GuardedFigure::RedisCommands => undisturbed(self.redis_commands),
        }
    }
}

/// The worse one of each figure of both.
pub(crate) fn worst(one: &CaseFigures, other: &CaseFigures) -> CaseFigures {
    let lower = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b);
    let mut processes = other.processes.clone();
    for (name, time) in &one.processes {
        let known = processes.entry(name.clone()).or_default();
        *known = known.max(*time);
    }
    CaseFigures {
        throughput_ratio: lower(one.throughput_ratio, other.throughput_ratio),
        processor_ratio: one.processor_ratio.max(other.processor_ratio),
        stored_messages: one.stored_messages.max(other.stored_messages),
        messages: one.messages.max(other.messages),
        redis_commands: one.redis_commands.max(other.redis_commands),
        processes,
    }
}

/// The median of each figure.
pub(crate) fn median(of: &[CaseFigures]) -> CaseFigures {
    let middle = |mut values: Vec<f64>| (median_and_worst(&mut values).0 * 1000.0).round() / 1000.0;
    let median = |get: &dyn Fn(&CaseFigures) -> f64| middle(of.iter().map(get).collect());
    let rates: Vec<f64> = of.iter().filter_map(|figures| figures.throughput_ratio).collect();
    let names = of.iter().flat_map(|figures| figures.processes.keys());
    let time = |name: &str, figures: &CaseFigures| figures.processes.get(name).copied().unwrap_or_default();
    CaseFigures {
        throughput_ratio: (!rates.is_empty()).then(|| middle(rates)),
        processor_ratio: median(&|figures| figures.processor_ratio),
        stored_messages: median(&|figures| figures.stored_messages),
        messages: median(&|figures| figures.messages),
        redis_commands: median(&|figures| figures.redis_commands),
        processes: names.map(|name| (name.clone(), median(&|figures| time(name, figures)))).collect(),
    }
}

/// A figure of a case, as expected and as measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) figure: GuardedFigure,
    expected: Option<f64>,
    /// The values of the attempts in which the figure could be measured.
    measured: Vec<f64>,
    /// Processes with their expected and measured time, the one that grew most first.
    grown: Vec<(String, f64, f64)>,
}

/// Compares each figure with those of all attempts.
pub(crate) fn judge(expected: &CaseFigures, attempts: &[CaseFigures]) -> Vec<Verdict> {
    let verdict = |figure: GuardedFigure| Verdict {
        figure,
        expected: expected.get(figure),
        measured: attempts.iter().filter_map(|attempt| attempt.get(figure)).collect(),
        grown: attempts.last().map(|attempt| grown(expected, attempt)).unwrap_or_default(),
    };
    GuardedFigure::ALL.into_iter().map(verdict).collect()
}

fn grown(expected: &CaseFigures, measured: &CaseFigures) -> Vec<(String, f64, f64)> {
    let times = measured
        .processes
        .iter()
        .map(|(name, time)| (name.clone(), expected.processes.get(name).copied().unwrap_or_default(), *time));
    let mut grown: Vec<_> = times.filter(|(_, before, now)| now > before).collect();
    grown.sort_by(|(_, before, now), (_, other_before, other_now)| {
        (other_now - other_before).total_cmp(&(now - before))
    });
    grown.truncate(NAMED);
    grown
}

impl Verdict {
    /// Whether the figure passed in one attempt, or could not be compared.
    pub(crate) fn passed(&self) -> bool {
        let Some(expected) = self.compared() else { return true };
        self.measured.iter().any(|measured| self.figure.allows(expected, *measured))
    }

    /// The expected value, if there is one to compare with and one that is compared.
    fn compared(&self) -> Option<f64> {
        self.expected.filter(|_| !self.measured.is_empty())
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "expected": self.expected,
            "limit": self.expected.map(|expected| self.figure.limit(expected)),
            "measured": self.measured,
            "compared": self.compared().is_some(),
            "passed": self.passed(),
        })
    }

    /// What failed, and what to do.
    pub(crate) fn failure(&self, file: &str, command: &str) -> String {
        let grown: Vec<String> =
            self.grown.iter().map(|(name, before, now)| format!("{name} {before:.2} to {now:.2}")).collect();
        let processes = if grown.is_empty() {
            String::new()
        } else {
            format!(" Processes whose processor time in bare spawns grew: {}.", grown.join(", "))
        };
        format!(
            "{self}.{processes} Find the cause with `{command}`, which prints the cost by process, message and Redis \
             command. If the cost is intended, or the machine is another one, write {file} with `make bench-baseline` \
             and commit it"
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(expected) = self.compared() else {
            let which = if self.expected.is_some() { "now" } else { "when the expected figures were" };
            let (figure, meaning) = (self.figure, self.figure.meaning());
            return write!(f, "{figure} ({meaning}): not compared, since it could not be measured {which}");
        };
        let measured: Vec<String> = self.measured.iter().map(|value| format!("{value:.3}")).collect();
        let worst = if self.figure.is_better_if_higher() { "minimum" } else { "maximum" };
        write!(
            f,
            "{} ({}): {} measured, {:.3} expected, {:.3} is the {worst}: {}",
            self.figure,
            self.figure.meaning(),
            measured.join(", "),
            expected,
            self.figure.limit(expected),
            if self.passed() { "passed" } else { "FAILED" },
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn figures(throughput_ratio: f64, cost: f64) -> CaseFigures {
        CaseFigures {
            throughput_ratio: Some(throughput_ratio),
            processor_ratio: cost,
            stored_messages: cost,
            messages: cost,
            redis_commands: cost,
            processes: BTreeMap::from([("executor".to_owned(), cost), ("gateway".to_owned(), 1.0)]),
        }
    }

    fn failed(verdicts: &[Verdict]) -> Vec<GuardedFigure> {
        verdicts.iter().filter(|verdict| !verdict.passed()).map(|verdict| verdict.figure).collect()
    }

    #[test]
    fn a_lower_rate_and_a_higher_cost_fail() {
        let expected = figures(0.3, 2.0);
        assert_eq!(failed(&judge(&expected, &[figures(0.26, 2.4)])), GuardedFigure::ALL.split_at(2).1);
        assert_eq!(failed(&judge(&expected, &[figures(0.26, 2.6)])), GuardedFigure::ALL.split_at(1).1);
        assert_eq!(failed(&judge(&expected, &[figures(0.2, 2.0)])), [GuardedFigure::ThroughputRatio]);
        assert_eq!(failed(&judge(&expected, &[figures(0.26, 2.29)])), []);
        assert_eq!(failed(&judge(&expected, &[figures(3.0, 0.2)])), []);
        assert_eq!(failed(&judge(&expected, &[figures(f64::NAN, f64::NAN)])), GuardedFigure::ALL);
    }

    #[test]
    fn what_others_disturbed_is_not_compared() {
        let disturbed = |cost| CaseFigures { throughput_ratio: None, ..figures(0.0, cost) };
        assert_eq!(failed(&judge(&figures(0.3, 1.0), &[disturbed(1.0)])), []);
        assert_eq!(failed(&judge(&disturbed(1.0), &[figures(0.001, 1.0)])), []);
        assert_eq!(failed(&judge(&disturbed(1.0), &[disturbed(2.0)])), [GuardedFigure::StoredMessages]);
        // One attempt that could be measured decides.
        let slow = [disturbed(1.0), figures(0.1, 1.0)];
        assert_eq!(failed(&judge(&figures(0.3, 1.0), &slow)), [GuardedFigure::ThroughputRatio]);
        let text = judge(&figures(0.3, 1.0), &[disturbed(1.0)]).first().map(ToString::to_string);
        assert!(text.is_some_and(|text| text.ends_with("not compared, since it could not be measured now")));
        assert_eq!(median(&[disturbed(1.0), figures(0.2, 1.0)]).throughput_ratio, Some(0.2));
        assert_eq!(median(&[disturbed(1.0)]).throughput_ratio, None);
    }

    #[test]
    fn a_failure_names_the_figure_its_values_and_what_to_do() {
        let verdicts = judge(&figures(0.3, 1.0), &[figures(0.2, 2.0), figures(0.1, 3.0)]);
        let text = verdicts.first().map(|verdict| verdict.failure("b.json", "forebay bench x"));
        assert_eq!(
            text.as_deref(),
            Some(
                "throughput_ratio (rate relative to bare spawns): 0.200, 0.100 measured, 0.300 expected, 0.255 is the \
                 minimum: FAILED. Processes whose processor time in bare spawns grew: executor 1.00 to 3.00. Find the \
                 cause with `forebay bench x`, which prints the cost by process, message and Redis command. If the \
                 cost is intended, or the machine is another one, write b.json with `make bench-baseline` and commit it"
            )
        );
    }

    #[test]
    fn the_worse_of_two_machines_is_expected() {
        let (one, other) = (figures(0.3, 2.0), figures(0.2, 1.0));
        assert_eq!(worst(&one, &other), figures(0.2, 2.0));
        assert_eq!(worst(&other, &one), figures(0.2, 2.0));
        let disturbed = CaseFigures { throughput_ratio: None, ..figures(0.0, 1.0) };
        assert_eq!(worst(&disturbed, &one).throughput_ratio, Some(0.3));
    }

    #[test]
    fn the_median_of_each_figure() {
        let middle = median(&[figures(0.1, 3.0), figures(0.2, 1.0), figures(0.3, 2.0)]);
        assert_eq!(middle, figures(0.2, 2.0));
    }

    proptest! {
        #[test]
        fn within_the_tolerance_all_passes_and_beyond_all_fails(
            ratio in 0.01..10.0,
            cost in 0.01..100.0,
            part in 0.0..0.149,
            beyond in 0.251..0.9,
        ) {
            let expected = figures(ratio, cost);
            let worse = |by: f64| figures(ratio * (1.0 - by), cost * (1.0 + by));
            prop_assert!(failed(&judge(&expected, &[worse(part)])).is_empty());
            prop_assert_eq!(failed(&judge(&expected, &[worse(beyond)])).len(), GuardedFigure::ALL.len());
            // One good attempt is enough, whichever it is.
            prop_assert!(failed(&judge(&expected, &[worse(beyond), worse(part)])).is_empty());
            prop_assert!(failed(&judge(&expected, &[worse(part), worse(beyond)])).is_empty());
        }

        #[test]
        fn better_figures_never_fail(ratio in 0.01..10.0, cost in 0.01..100.0, by in 0.0..0.99) {
            let better = figures(ratio * (1.0 + by), cost * (1.0 - by));
            prop_assert!(failed(&judge(&figures(ratio, cost), &[better])).is_empty());
        }
    }
}
