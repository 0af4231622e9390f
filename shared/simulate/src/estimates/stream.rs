//! Streams of work made by chance.

use std::collections::BTreeMap;

use policy::{Random, estimate::Keys};
use serde::{Deserialize, Serialize};

use super::EstimateItem;
use crate::{
    InvalidScenario,
    builds::millis,
    drawn::{exponential, log_normal, normal},
    scenario::within,
};

/// What half of all work takes at most, in seconds, and sigma of the log-normal distribution of what label sets differ by.
const TYPICAL_SECONDS: f64 = 20.0;
const LABELS_DIFFER: f64 = 1.0;
/// Limits are so many times the median of the label set: what people who are careful ask for.
const LIMIT: f64 = 8.0;
/// Nothing takes less than this share of its median, but what fails early.
const LEAST: f64 = 0.05;

/// A stream of work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EstimateScenario {
    /// Names the stream: equal seeds give equal streams.
    pub seed: u64,
    /// Pieces of work.
    pub items: u32,
    /// Label sets.
    pub labels: u32,
    /// Submitters. Some submit far more than others: the n-th as 1/n.
    pub submitters: u32,
    /// Of what work with the same keys takes: the standard deviation of normal noise, as a share of the median.
    pub sigma: f64,
    /// What else changes it.
    pub habits: Habits,
}

/// What makes real work harder to foretell than noise does. Nothing of it, unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Habits {
    /// How many fail early: after up to a third of their time, by chance. A share.
    pub failing: f64,
    /// At how many a label set changes for good what it takes, by about a half: a share of its work.
    pub changing: f64,
    /// Commands of each label set. Each takes its own time; who submits repeats the last one mostly.
    pub commands: u32,
}

impl Default for EstimateScenario {
    fn default() -> Self {
        Self { seed: 1, items: 20_000, labels: 20, submitters: 10, sigma: 0.15, habits: Habits::default() }
    }
}

impl Habits {
    /// Some of each: an assumption of what a farm for builds sees.
    pub fn some() -> Self {
        Self { failing: 0.1, changing: 0.01, commands: 3 }
    }
}

/// What is known of a label set.
struct Labelled {
    labels: BTreeMap<String, String>,
    usual_seconds: f64,
    /// Since the last change.
    seconds: f64,
    limit_ms: u64,
}

impl EstimateScenario {
    /// Refuses what cannot be made.
    pub fn check(&self) -> Result<(), InvalidScenario> {
        within("items", f64::from(self.items), 1.0, 1e7)?;
        within("labels", f64::from(self.labels), 1.0, 1e5)?;
        within("submitters", f64::from(self.submitters), 1.0, 1e5)?;
        within("sigma", self.sigma, 0.0, 2.0)?;
        within("failing", self.habits.failing, 0.0, 1.0)?;
        within("changing", self.habits.changing, 0.0, 1.0)?;
        within("commands", f64::from(self.habits.commands), 0.0, 1e4)
    }

    /// The stream. Each submitter has its own median for each label set, and each command, if there are any, its own
    /// factor. Work arrives by chance, ten at a time running on the average.
    pub fn stream(&self) -> Result<Vec<EstimateItem>, InvalidScenario> {
        self.check()?;
        let mut random = Random::new(self.seed);
        let mut labelled: Vec<Labelled> =
            (0..self.labels).map(|label| Labelled::new(label, &mut random)).collect();
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
            let command = last_command.get(&who).copied().unwrap_or_default();
            let Some(of) = labelled.get_mut(label) else { continue };
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
                duration_ms: millis(self.takes(median, &mut random)).min(of.limit_ms),
                limit_ms: of.limit_ms,
                keys,
                median_ms: Some(millis(median)),
                recorded_ms: None,
            });
        }
        Ok(items)
    }

    fn takes(&self, median: f64, random: &mut Random) -> f64 {
        let noisy = normal(random, 1.0, self.sigma);
        if random.unit() < self.habits.failing {
            return median * random.unit() / 3.0;
        }
        median * noisy.max(LEAST)
    }

    /// One of them: the n-th with a chance in proportion to 1/n.
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

impl Labelled {
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
