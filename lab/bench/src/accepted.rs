//! Writes ACTION_ACCEPTED as gateways do, for actions that exist only as records.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bus::{Bus, Written, millis};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use model::{
    ActionKeys, Attempt, ClientTool, DigestFunction, Execution, ExecutionId, ExecutionRecord, Group, Millis,
    Needs, PoolName, Priority, Requirements, Sequence,
};

use crate::{error::BenchError, ledger::Ledger};

/// Number of concurrent writes.
const IN_FLIGHT: usize = 256;
/// Time limit of a write, as that of gateways.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after which an EMERGENCY action without a grant has failed.
const GRANT_MAX: Duration = Duration::from_secs(60);
const RUN_MAX: Duration = Duration::from_secs(600);
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Writes records of new actions in turn for each of some groups.
pub(crate) struct Acceptor {
    bus: Bus,
    groups: Vec<Group>,
    ledger: Arc<Ledger>,
}

impl Acceptor {
    /// For `groups` groups, on the connection `bus`.
    pub(crate) fn new(bus: Bus, groups: u32, ledger: Arc<Ledger>) -> Result<Self, BenchError> {
        let named = |number: u32| format!("bench-{number}").parse();
        let groups: Result<Vec<Group>, model::ParseIdError> = (1..=groups).map(named).collect();
        let groups = groups.map_err(|error| BenchError::new("naming a group", &error))?;
        Ok(Self { bus, groups, ledger })
    }

    /// Writes `count` actions at once, whose latency is not measured.
    pub(crate) async fn fill(&self, count: u64) -> Result<(), BenchError> {
        let writes = self.in_turn(count).map(|group| write(&self.bus, execution(group, self.bus.now())));
        stream::iter(writes).buffer_unordered(IN_FLIGHT).try_collect().await
    }

    /// Writes `count` actions, each when the ledger has a place for it.
    pub(crate) async fn feed(&self, count: u64) -> Result<(), BenchError> {
        let placed = stream::iter(self.in_turn(count)).then(|group| async move {
            self.ledger.place().await;
            group
        });
        let write = |group| {
            let execution = execution(group, self.bus.now());
            self.ledger.accepted(execution.id);
            write(&self.bus, execution)
        };
        placed.map(write).buffer_unordered(IN_FLIGHT).try_collect().await
    }

    /// Writes `count` EMERGENCY actions of the first group, each after the last one was granted. Returns the milliseconds
    /// from the write of each to its grant.
    pub(crate) async fn emergencies(&self, count: u64) -> Result<Vec<f64>, BenchError> {
        let group = self.groups.first().ok_or_else(|| BenchError::plain("there are no groups"))?;
        let mut waits = Vec::new();
        for _ in 0..count {
            self.ledger.place().await;
            let execution = Execution { band: Priority::Emergency, ..execution(group, self.bus.now()) };
            let (id, begun) = (execution.id, Instant::now());
            let granted = self.ledger.grant_of(id);
            self.ledger.accepted(id);
            write(&self.bus, execution).await?;
            let at = tokio::time::timeout(GRANT_MAX, granted).await;
            let at = at.ok().and_then(Result::ok);
            let at = at.ok_or_else(|| BenchError::plain("an EMERGENCY action was not granted"))?;
            waits.push(at.duration_since(begun).as_secs_f64() * 1000.0);
        }
        Ok(waits)
    }

    fn in_turn(&self, count: u64) -> impl Iterator<Item = &Group> {
        self.groups.iter().cycle().zip(0..count).map(|(group, _)| group)
    }
}

/// Writes the record of a new action.
pub(crate) async fn write(bus: &Bus, execution: Execution) -> Result<(), BenchError> {
    let record = ExecutionRecord::accepted(execution);
    match bus.transition(&record, Sequence(0), PATIENCE).await? {
        // A later record: the acknowledgement was late, and the action has ended in the meantime.
        Written::Won(_) | Written::Lost(Some(_)) => Ok(()),
        Written::Lost(None) => Err(BenchError::plain("a record of a new action was refused")),
    }
}

/// Name of the pool of all actions.
pub(crate) fn pool() -> Result<PoolName, BenchError> {
    "default".parse().map_err(|error: model::ParseIdError| BenchError::new("naming the pool", &error))
}

/// A new BATCH action of `group`, different from all others, without keys and without blobs.
pub(crate) fn execution(group: &Group, now: Millis) -> Execution {
    let id = ExecutionId::generate();
    Execution {
        id,
        group: group.clone(),
        instance: String::new(),
        action: DigestFunction::Sha256.digest(id.to_string().as_bytes()),
        band: Priority::Batch,
        priority: 0,
        requirements: Requirements::default(),
        timeout_ms: millis(RUN_MAX),
        image: None,
        do_not_cache: false,
        zone: None,
        caller: String::new(),
        accepted_at_ms: now,
        expires_at_ms: now.after(WAIT_MAX),
        max_attempts: Attempt(3),
        traceparent: None,
        client: ClientTool::default(),
        build: None,
        needs: Needs::default(),
        keys: ActionKeys::default(),
    }
}
