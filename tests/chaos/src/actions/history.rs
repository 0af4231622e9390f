//! What the stream of executions says in the end, and what must hold of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bus::{ActionSubject, Follower, Start, stream};
use farm::Farm;
use model::{ExecutionPhase, ExecutionRecord, Sequence};

use super::clients::Answer;

/// Everything that was written down about actions.
#[derive(Debug, Clone)]
pub struct ActionHistory {
    /// The records of every execution, in order.
    pub executions: BTreeMap<String, Vec<ExecutionRecord>>,
    /// What the clients saw.
    pub answers: Vec<Answer>,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broken {
    /// An execution has no result.
    Unfinished(String),
    /// An execution has more than one result, or something after it.
    AfterTheEnd(String),
    /// The first record is no acceptance, or there is another.
    NotAcceptedOnce(String),
    /// An attempt does not follow the one before.
    WrongAttempt(String),
    /// An operation that a client was told of was never accepted.
    Unknown(String),
    /// A client got no result, or a wrong one.
    WrongAnswer(String),
}

impl ActionHistory {
    /// Reads the whole stream.
    ///
    /// # Panics
    /// When it cannot be read.
    pub async fn read(farm: &Farm, answers: Vec<Answer>) -> Self {
        let (_, last) = farm.bus().stream_positions(stream::ACTIONS).await.expect("the stream is there");
        let mut follower =
            Follower::new(farm.bus(), stream::ACTIONS, ActionSubject::ALL, Start::After(Sequence(0)));
        let mut executions: BTreeMap<String, Vec<ExecutionRecord>> = BTreeMap::new();
        while follower.cursor() < last {
            for stored in follower.next(1000).await {
                let record = stored.execution().expect("a record");
                executions.entry(record.execution.key().to_string()).or_default().push(record);
            }
        }
        Self { executions, answers }
    }

    /// Every promise that was broken.
    pub fn check(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        for (key, records) in &self.executions {
            broken.extend(check_one(key, records));
        }
        let known: BTreeSet<&str> = self.executions.keys().map(String::as_str).collect();
        for answer in &self.answers {
            for operation in &answer.operations {
                let key = operation.split_once("operations/").map_or(operation.as_str(), |(_, key)| key);
                // A cached result has an operation and no execution.
                if !known.contains(key) && !operation.contains("operations/done/") {
                    broken.push(Broken::Unknown(operation.clone()));
                }
            }
            if answer.got.as_ref() != Ok(&answer.wanted) {
                broken.push(Broken::WrongAnswer(format!("{}: {:?}", answer.wanted, answer.got)));
            }
        }
        broken
    }
}

fn check_one(key: &str, records: &[ExecutionRecord]) -> Vec<Broken> {
    let mut broken = Vec::new();
    let finished = records.iter().position(|record| record.outcome().is_some());
    match finished {
        None => broken.push(Broken::Unfinished(key.to_owned())),
        Some(at) if at + 1 != records.len() => broken.push(Broken::AfterTheEnd(key.to_owned())),
        Some(_) => {}
    }
    let accepted = records.iter().filter(|record| record.phase == ExecutionPhase::Accepted).count();
    if accepted != 1 || records.first().is_none_or(|record| record.phase != ExecutionPhase::Accepted) {
        broken.push(Broken::NotAcceptedOnce(key.to_owned()));
    }
    let follows = records.windows(2).all(|pair| match pair {
        [one, next] => match next.phase {
            ExecutionPhase::Requeued { .. } => next.attempt == one.attempt.next(),
            ExecutionPhase::Accepted | ExecutionPhase::Finished(_) => next.attempt == one.attempt,
        },
        _ => true,
    });
    if !follows {
        broken.push(Broken::WrongAttempt(key.to_owned()));
    }
    broken
}

impl fmt::Display for ActionHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attempts = |record: &ExecutionRecord| matches!(record.phase, ExecutionPhase::Requeued { .. });
        let requeued = self.executions.values().flatten().filter(|record| attempts(record)).count();
        let (actions, executions) = (self.answers.len(), self.executions.len());
        write!(f, "{actions} actions in {executions} executions, queued again {requeued} times")
    }
}
