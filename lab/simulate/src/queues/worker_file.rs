//! Sets of workers as JSON: `[{"name": "a", "count": 4, "offers": {"env": ["c", "java"], "threads": 8}}, ...]`.

use std::collections::{BTreeMap, BTreeSet};

use replay::Worker;
use serde::{Deserialize, Serialize};

/// Maximum number of workers; a larger number is taken as a mistake.
const MOST: u64 = 1_000_000;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    #[serde(default)]
    offers: BTreeMap<String, Offer>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Offer {
    Text(String),
    Number(u64),
    Texts(BTreeSet<String>),
}

/// Reason why a set of workers cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InvalidWorkers {
    #[error("{0}; expected [{{\"name\": \"a\", \"count\": 1, \"offers\": {{\"env\": [\"c\"]}}}}, ...]")]
    Json(#[from] serde_json::Error),
    #[error("invalid number of workers {0}: expected 1 to {MOST}")]
    Count(u64),
}

/// Reads a set of workers from JSON.
pub fn read_workers(text: &str) -> Result<Vec<Worker>, InvalidWorkers> {
    let entries: Vec<Entry> = serde_json::from_str(text)?;
    let count = |entry: &Entry| entry.count.unwrap_or(1) as usize;
    check_count(entries.iter().map(|entry| u64::from(entry.count.unwrap_or(1))).sum())?;
    let mut workers = Vec::with_capacity(entries.iter().map(count).sum());
    for entry in entries {
        let many = count(&entry);
        let offers: BTreeMap<String, BTreeSet<String>> = entry.offers.into_iter().map(values).collect();
        for number in 1..=many {
            let name = match &entry.name {
                Some(name) if many == 1 => name.clone(),
                Some(name) => format!("{name}_{number}"),
                None => format!("worker_{}", workers.len() + 1),
            };
            workers.push(Worker { name, offers: offers.clone() });
        }
    }
    Ok(workers)
}

/// Returns `count` equal workers that meet all of `requirements`.
pub fn alike_workers(
    count: u64,
    requirements: &[BTreeMap<String, String>],
) -> Result<Vec<Worker>, InvalidWorkers> {
    check_count(count)?;
    Ok(replay::alike_workers(count, requirements))
}

/// Refuses zero workers, and more than fit into memory.
fn check_count(count: u64) -> Result<(), InvalidWorkers> {
    if (1..=MOST).contains(&count) { Ok(()) } else { Err(InvalidWorkers::Count(count)) }
}

fn values((name, offer): (String, Offer)) -> (String, BTreeSet<String>) {
    let values = match offer {
        Offer::Text(text) => [text].into(),
        Offer::Number(number) => [number.to_string()].into(),
        Offer::Texts(texts) => texts,
    };
    (name, values)
}

/// Writes a set of workers. Reading the text returns the same workers.
pub fn write_workers(workers: &[Worker]) -> String {
    let entry = |worker: &Worker| Entry {
        name: Some(worker.name.clone()),
        count: None,
        offers: worker
            .offers
            .iter()
            .map(|(name, values)| (name.clone(), Offer::Texts(values.clone())))
            .collect(),
    };
    let line = |worker: &Worker| match serde_json::to_string(&entry(worker)) {
        Ok(line) => line,
        Err(error) => unreachable!("a worker cannot be serialized: {error}"),
    };
    let lines: Vec<String> = workers.iter().map(line).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}
