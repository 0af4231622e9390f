//! Randomly generated streams of work.

use std::collections::BTreeMap;

use policy::{Random, estimate::Keys};
use serde::{Deserialize, Serialize};

use super::EstimateItem;
use crate::{
    InvalidScenario,
    random::{exponential, log_normal, normal},
    scenario::within,
    statistics::millis,
};

/// Median run time of all work in seconds, and sigma of the log-normal distribution by which label sets differ.
const TYPICAL_SECONDS: f64 = 20.0;
const LABELS_DIFFER: f64 = 1.0;
/// Time limit as a multiple of the median of the label set: the choice of a careful user.
const LIMIT: f64 = 8.0;
/// Shortest run time as a share of the median, except for work that fails early.
const LEAST: f64 = 0.05;

/// Parameters of a random stream of work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EstimateScenario {
    /// Seed of the stream: equal seeds give equal streams.
    pub seed: u64,
    /// Number of items in the stream.
    pub items: u32,
    /// Number of different label sets.
    pub labels: u32,
    /// Number of submitters. Their activity differs widely: the n-th submits in proportion to 1/n.
    pub submitters: u32,
    /// Standard deviation of the normal noise in run times of work with the same keys, as a share of the median.
    pub sigma: f64,
    /// Other influences on the run times.
    pub habits: Habits,
}

/// Influences that make real work harder to predict than noise does. All are off by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Habits {
    /// Share of work that fails early: at random, within the first third of its run time.
    pub failing: f64,
    /// Rate at which a label set permanently changes its run time, by about a half: a share of its work.
    pub changing: f64,
    /// Number of commands of each label set. Each has its own run time; a submitter mostly repeats its last command.
    pub commands: u32,
}

impl Default for EstimateScenario {
    fn default() -> Self {
        Self { seed: 1, items: 20_000, labels: 20, submitters: 10, sigma: 0.15, habits: Habits::default() }
    }
}

impl Habits {
    /// A mix of all influences: an assumption about the work of a build farm.
    pub fn some() -> Self {
        Self { failing: 0.1, changing: 0.01, commands: 3 }
    }
}

/// The state of a label set while the stream is generated.
struct LabelSet {
    labels: BTreeMap<String, String>,
    usual_seconds: f64,
    /// Median run time since the last change.
    seconds: f64,
    limit_ms: u64,
}

impl EstimateScenario {
    /// Checks that the stream can be generated.
    pub fn check(&self) -> Result<(), InvalidScenario> {
        within("items", f64::from(self.items), 1.0, 1e7)?;
        within("labels", f64::from(self.labels), 1.0, 1e5)?;
        within("submitters", f64::from(self.submitters), 1.0, 1e5)?;
        within("sigma", self.sigma, 0.0, 2.0)?;
        within("failing", self.habits.failing, 0.0, 1.0)?;
        within("changing", self.habits.changing, 0.0, 1.0)?;
        within("commands", f64::from(self.habits.commands), 0.0, 1e4)
    }

    /// Generates the stream. Each submitter has its own median for each label set, and each command, if there are
    /// any, its own factor. Work arrives at random, and ten items run at a time on average.
    pub fn stream(&self) -> Result<Vec<EstimateItem>, InvalidScenario> {
        self.check()?;
        let mut random = Random::new(self.seed);
        let mut label_sets: Vec<LabelSet> =
            (0..self.labels).map(|label| LabelSet::new(label, &mut random)).collect();
        let own: Vec<f64> =
            (0..self.labels * self.submitters).map(|_| log_normal(&mut random, 0.5)).collect();
        let commands = self.habits.commands.max(1);
        let factors: Vec<f64> = (0..self.labels * commands).map(|_| log_normal(&mut random, 0.5)).collect();
        let mut last_command: BTreeMap<usize, usize> = BTreeMap::new();
        let mut arrival = 0.0;
        let mut items = Vec::new();
        for _ in 0..self.items {
            arrival += exponential(&mut random, TYPICAL_SECONDS / 10.0);
            let label = below(self.labels, &mut random);
            let submitter = self.submitter(&mut random);
            let who = label * index(self.submitters) + submitter;
            if random.unit() < 0.2 || !last_command.contains_key(&who) {
                last_command.insert(who, below(commands, &mut random));
            }
            let (Some(command), Some(of)) = (last_command.get(&who).copied(), label_sets.get_mut(label))
            else {
                unreachable!("label set {label} does not exist, or has no command");
            };
            if random.unit() < self.habits.changing {
                of.seconds = of.usual_seconds * log_normal(&mut random, 0.5);
            }
            let factor = own.get(who).copied().unwrap_or(1.0);
            let of_command = factors.get(label * index(commands) + command).copied().unwrap_or(1.0);
            let of_command = if self.habits.commands > 0 { of_command } else { 1.0 };
            let median = of.seconds * factor * of_command;
            let keys = Keys::of("linux", "x86", &of.labels, &format!("submitter {submitter}"));
            let keys = if self.habits.commands > 0 {
                keys.with_command(["build", &label.to_string(), &command.to_string()])
            } else {
                keys
            };
            items.push(EstimateItem {
                arrival_ms: millis(arrival),
                duration_ms: millis(self.run_seconds(median, &mut random)).min(of.limit_ms),
                limit_ms: of.limit_ms,
                keys,
                median_ms: Some(millis(median)),
                recorded_ms: None,
            });
        }
        Ok(items)
    }

    fn run_seconds(&self, median: f64, random: &mut Random) -> f64 {
        let noisy = normal(random, 1.0, self.sigma);
        if random.unit() < self.habits.failing {
            return median * random.unit() / 3.0;
        }
        median * noisy.max(LEAST)
    }

    /// Draws a submitter: the n-th with a probability in proportion to 1/n.
    fn submitter(&self, random: &mut Random) -> usize {
        let all: f64 = (1..=self.submitters).map(|n| 1.0 / f64::from(n)).sum();
        let mut left = random.unit() * all;
        for n in 1..=self.submitters {
            left -= 1.0 / f64::from(n);
            if left < 0.0 {
                return index(n - 1);
            }
        }
        0
    }
}

impl LabelSet {
    fn new(label: u32, random: &mut Random) -> Self {
        let seconds = TYPICAL_SECONDS * log_normal(random, LABELS_DIFFER);
        let labels = BTreeMap::from([("target".to_owned(), label.to_string())]);
        Self { labels, usual_seconds: seconds, seconds, limit_ms: millis(LIMIT * seconds) }
    }
}

fn below(bound: u32, random: &mut Random) -> usize {
    usize::try_from(random.below(u64::from(bound))).unwrap_or_default()
}

fn index(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
