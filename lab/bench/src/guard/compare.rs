//! Compares measured figures with limits.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::statistics::median_and_worst;

/// Part by which the rate may be lower than in the baseline. The medians of a run scatter by less.
const RATE_TOLERANCE: f64 = 0.15;
/// Part by which the processor time may be higher: two machines of the same kind differed by up to a quarter, because
/// wake-ups cost more on one of them and spawns do not.
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

    /// Whether a measured value passes. A value that is not a number fails.
    fn allows(self, limit: f64, measured: f64) -> bool {
        if self.is_better_if_higher() { measured >= limit } else { measured <= limit }
    }
}

impl fmt::Display for GuardedFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a case cost.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CaseFigures {
    pub(crate) rates: Rates,
    pub(crate) counts: Counts,
}

/// What depends on the speed of the machine, relative to bare spawns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rates {
    /// `None` if others used the processors, so that only the stored messages can be compared.
    pub(crate) throughput_ratio: Option<f64>,
    pub(crate) processor_ratio: f64,
    /// Processor time in bare spawns by process. It is not compared, but explains a failure.
    pub(crate) processes: BTreeMap<String, f64>,
}

/// What is counted per build or action.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    pub(crate) stored_messages: f64,
    pub(crate) messages: f64,
    pub(crate) redis_commands: f64,
}

impl CaseFigures {
    /// The figure, unless it is a rate and others used the processors: each action costs up to a quarter more then, since
    /// services work in smaller batches. Counts are always compared: a check that can be left out guards nothing.
    fn get(&self, figure: GuardedFigure) -> Option<f64> {
        let undisturbed = |value| self.rates.throughput_ratio.map(|_| value);
        match figure {
            GuardedFigure::ThroughputRatio => self.rates.throughput_ratio,
            GuardedFigure::ProcessorRatio => undisturbed(self.rates.processor_ratio),
            GuardedFigure::StoredMessages => Some(self.counts.stored_messages),
            GuardedFigure::Messages => Some(self.counts.messages),
            GuardedFigure::RedisCommands => Some(self.counts.redis_commands),
        }
    }
}

/// The worst value of a figure that passes; `None` if the baseline has no value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limit {
    figure: GuardedFigure,
    limit: Option<f64>,
}

impl Counts {
    pub(crate) fn limits(&self) -> Vec<Limit> {
        let limit = |figure, limit| Limit { figure, limit: Some(limit) };
        vec![
            limit(GuardedFigure::StoredMessages, self.stored_messages),
            limit(GuardedFigure::Messages, self.messages),
            limit(GuardedFigure::RedisCommands, self.redis_commands),
        ]
    }
}

impl Rates {
    /// Limits that are worse than these figures by the tolerance.
    pub(crate) fn limits(&self) -> Vec<Limit> {
        let rate = self.throughput_ratio.map(|ratio| ratio * (1.0 - RATE_TOLERANCE));
        let time = self.throughput_ratio.map(|_| self.processor_ratio * (1.0 + PROCESSOR_TOLERANCE));
        vec![
            Limit { figure: GuardedFigure::ThroughputRatio, limit: rate },
            Limit { figure: GuardedFigure::ProcessorRatio, limit: time },
        ]
    }

    /// The worse one of each figure of both.
    pub(crate) fn worst(&self, other: &Self) -> Self {
        let lower = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a.min(b)).or(a).or(b);
        let mut processes = other.processes.clone();
        for (name, time) in &self.processes {
            let known = processes.entry(name.clone()).or_default();
            *known = known.max(*time);
        }
        Self {
            throughput_ratio: lower(self.throughput_ratio, other.throughput_ratio),
            processor_ratio: self.processor_ratio.max(other.processor_ratio),
            processes,
        }
    }

    /// The median of each figure.
    pub(crate) fn median(of: &[Self]) -> Self {
        let middle = |mut values: Vec<f64>| (median_and_worst(&mut values).0 * 1000.0).round() / 1000.0;
        let rates: Vec<f64> = of.iter().filter_map(|figures| figures.throughput_ratio).collect();
        let names = of.iter().flat_map(|figures| figures.processes.keys());
        let time = |name: &str| middle(of.iter().map(|figures| figures.of_process(name)).collect());
        Self {
            throughput_ratio: (!rates.is_empty()).then(|| middle(rates)),
            processor_ratio: middle(of.iter().map(|figures| figures.processor_ratio).collect()),
            processes: names.map(|name| (name.clone(), time(name))).collect(),
        }
    }

    fn of_process(&self, name: &str) -> f64 {
        self.processes.get(name).copied().unwrap_or_default()
    }

    /// Processes that use more than in these figures, the one that grew most first.
    fn grown(&self, measured: &Self) -> Vec<Grown> {
        let grown = |name: &String| Grown {
            process: name.clone(),
            before: self.of_process(name),
            now: measured.of_process(name),
        };
        let mut grown: Vec<Grown> =
            measured.processes.keys().map(grown).filter(|grown| grown.now > grown.before).collect();
        grown.sort_by(|one, other| (other.now - other.before).total_cmp(&(one.now - one.before)));
        grown.truncate(NAMED);
        grown
    }
}

/// A process that uses more processor time, in bare spawns.
#[derive(Debug, Clone, PartialEq)]
struct Grown {
    process: String,
    before: f64,
    now: f64,
}

/// A figure of a case with its limit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) figure: GuardedFigure,
    limit: Option<f64>,
    /// The values of the attempts in which the figure could be measured.
    measured: Vec<f64>,
    grown: Vec<Grown>,
}

/// Compares each limit with the figures of all attempts. `baseline` explains what grew.
pub(crate) fn judge(limits: &[Limit], baseline: Option<&Rates>, attempts: &[CaseFigures]) -> Vec<Verdict> {
    let grown =
        baseline.zip(attempts.last()).map(|(known, last)| known.grown(&last.rates)).unwrap_or_default();
    let verdict = |&Limit { figure, limit }: &Limit| Verdict {
        figure,
        limit,
        measured: attempts.iter().filter_map(|attempt| attempt.get(figure)).collect(),
        grown: grown.clone(),
    };
    limits.iter().map(verdict).collect()
}

impl Verdict {
    /// Whether the figure passed in one attempt, or could not be compared.
    pub(crate) fn passed(&self) -> bool {
        let Some(limit) = self.compared() else { return true };
        self.measured.iter().any(|measured| self.figure.allows(limit, *measured))
    }

    /// The limit, if there is one and a value to compare with it.
    fn compared(&self) -> Option<f64> {
        self.limit.filter(|_| !self.measured.is_empty())
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "limit": self.limit,
            "measured": self.measured,
            "compared": self.compared().is_some(),
            "passed": self.passed(),
        })
    }

    /// What failed, and what to do.
    pub(crate) fn failure(&self, file: &str, command: &str) -> String {
        let grown = |it: &Grown| format!("{} {:.2} to {:.2}", it.process, it.before, it.now);
        let grown: Vec<String> = self.grown.iter().map(grown).collect();
        let processes = if grown.is_empty() {
            String::new()
        } else {
            format!(" Processes whose processor time in bare spawns grew: {}.", grown.join(", "))
        };
        format!(
            "{self}.{processes} Find the cause with `{command}`, which prints the cost by process, message and Redis \
             command. If the cost is intended, or the machine is another one, change {file} and say why in CHANGELOG.md"
        )
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(limit) = self.compared() else {
            let which = if self.limit.is_some() { "now" } else { "when the baseline was" };
            let (figure, meaning) = (self.figure, self.figure.meaning());
            return write!(f, "{figure} ({meaning}): not compared, since it could not be measured {which}");
        };
        let measured: Vec<String> = self.measured.iter().map(|value| format!("{value:.3}")).collect();
        let worst = if self.figure.is_better_if_higher() { "minimum" } else { "maximum" };
        write!(
            f,
            "{} ({}): {} measured, {limit:.3} is the {worst}: {}",
            self.figure,
            self.figure.meaning(),
            measured.join(", "),
            if self.passed() { "passed" } else { "FAILED" },
        )
    }
}

#[cfg(test)]
mod tests;
