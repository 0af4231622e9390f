//! Generates a history of actions as a farm without faults writes it, with copies, lost
//! executors and joined requests.

use std::collections::BTreeMap;

use model::{
    Attempt, DigestFunction, Execution, ExecutionId, ExecutionOutcome, ExecutionRecord, ExecutorId, Millis,
    Priority, Sequence, Urgency,
};

use super::{clients::Answer, history::ActionHistory};
use crate::Random;

const EXECUTIONS: usize = 40;
const HEDGES: u16 = 2;
const ATTEMPTS: u32 = 4;
/// An arbitrary start time, in milliseconds since the Unix epoch.
const BEGIN: u64 = 1_700_000_000_000;

/// Generates a good history, a different one for every seed.
pub fn action_history(seed: u64) -> ActionHistory {
    let mut random = Random::new(seed);
    let mut history = ActionHistory {
        executions: BTreeMap::new(),
        answers: Vec::new(),
        hedges_max: HEDGES,
        runs: BTreeMap::new(),
    };
    let mut sequence = 0;
    for number in 0..EXECUTIONS {
        let wanted = format!("action {number} of {seed}");
        let Some(first) = accepted(number, &wanted) else {
            unreachable!("an identifier of a generated execution is invalid");
        };
        let (action, key) = (first.execution.action, first.execution.key().to_string());
        let records = follow(first, &mut sequence, &mut random);
        history.executions.insert(key.clone(), records);
        for _ in 0..random.between(1, 3) {
            let operations = vec![format!("operations/{key}")];
            let got = Ok(wanted.clone());
            history.answers.push(Answer { wanted: wanted.clone(), action, operations, got });
        }
    }
    history
}

fn accepted(number: usize, wanted: &str) -> Option<ExecutionRecord> {
    let at = Millis(BEGIN + number as u64);
    Some(ExecutionRecord::accepted(Execution {
        id: ExecutionId::generate(),
        group: "amber".parse().ok()?,
        instance: String::new(),
        action: DigestFunction::Sha256.digest(wanted.as_bytes()),
        band: Priority::Automated,
        priority: 5,
        requirements: model::Requirements::default(),
        timeout_ms: 1000,
        image: None,
        do_not_cache: false,
        zone: None,
        caller: String::new(),
        accepted_at_ms: at,
        expires_at_ms: Millis(at.0 + 60_000),
        max_attempts: Attempt(ATTEMPTS),
        traceparent: None,
        client: model::ClientTool::default(),
        build: None,
        needs: model::Needs::default(),
        keys: model::ActionKeys::default(),
    }))
}

/// Generates random records from acceptance to the end.
fn follow(first: ExecutionRecord, sequence: &mut u64, random: &mut Random) -> Vec<ExecutionRecord> {
    *sequence += 1;
    let (mut at, mut records) = (Sequence(*sequence), vec![first.clone()]);
    let mut record = first;
    loop {
        let now = Millis(record.at_ms.0 + random.between(1, 500));
        let next = match random.between(0, 5) {
            0 if record.so_far.hedges < HEDGES => record.hedged(at, now),
            1 if record.copies() > 1 => {
                let Some(executor) = executor(random) else {
                    unreachable!("the name of an executor is invalid");
                };
                record.copy_ended(at, "it is gone".to_owned(), executor, None, now)
            }
            2 if record.copies() == 1 && record.attempt < record.execution.max_attempts => {
                let counts = !random.once_in(4);
                record.requeued(at, "it is gone".to_owned(), executor(random), counts, now)
            }
            3 => record.raised(at, more_urgent(record.urgency(), random), now),
            4 => record.finished(at, ExecutionOutcome::without_run(0, String::new()), now),
            _ => continue,
        };
        *sequence += 1;
        at = Sequence(*sequence);
        records.push(next.clone());
        if next.outcome().is_some() {
            return records;
        }
        record = next;
    }
}

/// A more urgent client: of a more urgent band if there is one, or with a lower priority in the same band.
fn more_urgent(urgency: Urgency, random: &mut Random) -> Urgency {
    let higher = Priority::ALL.into_iter().filter(|band| *band < urgency.band).max();
    match higher.filter(|_| random.once_in(4)) {
        Some(band) => Urgency { band, priority: urgency.priority.saturating_add(3) },
        None => Urgency { priority: urgency.priority.saturating_sub(1), ..urgency },
    }
}

fn executor(random: &mut Random) -> Option<ExecutorId> {
    format!("executor-{}", random.between(1, 5)).parse().ok()
}
