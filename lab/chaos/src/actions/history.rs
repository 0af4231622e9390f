//! The final state of the execution stream, and the clients' views.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use bus::{ActionSubject, Follower, Start, stream};
use farm::Farm;
use model::{ExecutionPhase, ExecutionRecord, Sequence};

use super::clients::Answer;

/// All records about actions.
#[derive(Debug, Clone)]
pub struct ActionHistory {
    /// Records of every execution, in stream order.
    pub executions: BTreeMap<String, Vec<ExecutionRecord>>,
    /// Results that the clients received.
    pub answers: Vec<Answer>,
    /// Maximum number of copies of an attempt beside the first.
    pub hedges_max: u16,
    /// Number of times that each command started, by its expected output.
    pub runs: BTreeMap<String, usize>,
}

impl ActionHistory {
    /// Reads the whole stream, and the file that commands append to.
    ///
    /// # Panics
    /// When the stream cannot be read.
    pub async fn read(farm: &Farm, answers: Vec<Answer>, hedges_max: u16, runs: &Path) -> Self {
        let (_, last) = farm.bus().stream(stream::ACTIONS).positions().await.expect("the stream is there");
        let mut follower =
            Follower::new(farm.bus(), stream::ACTIONS, ActionSubject::ALL, Start::After(Sequence(0)));
        let mut executions: BTreeMap<String, Vec<ExecutionRecord>> = BTreeMap::new();
        while follower.cursor() < last {
            for stored in follower.next(1000).await {
                let record = stored.execution().expect("a record");
                executions.entry(record.execution.key().to_string()).or_default().push(record);
            }
        }
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(runs).unwrap_or_default().lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        Self { executions, answers, hedges_max, runs: counts }
    }

    /// Number of runs that the log does not explain. They break no promise: after the loss of an index, an action may
    /// run again if its executor cannot immediately confirm that it is running it.
    pub fn unexplained_runs(&self) -> usize {
        let mut explained: BTreeMap<&str, usize> = BTreeMap::new();
        let by_key: BTreeMap<&str, &str> = self
            .answers
            .iter()
            .flat_map(|answer| answer.keys().map(|key| (key, answer.wanted.as_str())))
            .collect();
        for (key, records) in &self.executions {
            let more = records.iter().filter(|record| is_one_more(&record.phase)).count();
            if let Some(wanted) = by_key.get(key.as_str()) {
                *explained.entry(wanted).or_default() += more;
            }
        }
        let beyond = |(wanted, runs): (&String, &usize)| {
            runs.saturating_sub(explained.get(wanted.as_str()).copied().unwrap_or_default())
        };
        self.runs.iter().map(beyond).sum()
    }

    fn count(&self, of: impl Fn(&ExecutionPhase) -> bool) -> usize {
        self.executions.values().flatten().filter(|record| of(&record.phase)).count()
    }
}

/// Returns whether this phase may cause a run.
fn is_one_more(phase: &ExecutionPhase) -> bool {
    match phase {
        ExecutionPhase::Accepted | ExecutionPhase::Requeued { .. } | ExecutionPhase::Hedged => true,
        ExecutionPhase::CopyEnded { .. } | ExecutionPhase::Raised | ExecutionPhase::Finished(_) => false,
    }
}

impl fmt::Display for ActionHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requeued = self.count(|phase| matches!(phase, ExecutionPhase::Requeued { .. }));
        let hedged = self.count(|phase| *phase == ExecutionPhase::Hedged);
        let ended = self.count(|phase| matches!(phase, ExecutionPhase::CopyEnded { .. }));
        let raised = self.count(|phase| *phase == ExecutionPhase::Raised);
        let (requests, executions) = (self.answers.len(), self.executions.len());
        write!(
            f,
            "{requests} requests for {} actions in {executions} executions: requeued {requeued} times, {hedged} \
             copies, {ended} of which ended without success, raised {raised} times; {} runs, {} of which the \
             log does not explain",
            self.runs.len(),
            self.runs.values().sum::<usize>(),
            self.unexplained_runs()
        )
    }
}
