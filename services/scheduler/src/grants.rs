//! Sends executors what they were granted, and notifies the other schedulers.

use std::collections::{BTreeMap, HashSet};

use bus::{Plain, Subject};
use index::actions::Committed;
use invariant::Present as _;
use model::{
    Demand, ExecutionKey, ExecutorId, GrantNotice, GrantNotices, Grants, Millis, PoolName, Resources,
    Sequence,
};
use policy::actions::{Grant, occupancy};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use service::{Step, crash_point};
use telemetry::metrics::{Counter, Label, count};
use tracing::warn;

use crate::{Shared, messages, view::OpenExecutor};

/// Same as `model::Grants`, with records as they are stored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredGrants {
    number: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    claimed: Vec<Claimed>,
}

impl Plain for StoredGrants {
    const NAME: &'static str = <Grants as Plain>::NAME;
    type To = ExecutorId;
    type Answer = ();

    fn subject(to: &ExecutorId) -> Subject {
        <Grants as Plain>::subject(to)
    }
}

bus::message!(StoredGrants);

/// Same as `model::Claimed`, with the record as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct Claimed {
    record: Box<RawValue>,
    sequence: Sequence,
    size: Resources,
}

/// A decision of a pass, before it is committed.
#[derive(Debug)]
pub(crate) struct Granted {
    /// The executor that gets the execution.
    pub(crate) executor: ExecutorId,
    pool: PoolName,
    /// Number of the last known grant to the executor.
    after: u64,
    /// Maximum number of executions that the executor holds.
    claims_max: u32,
    pub(crate) demand: Demand,
    pub(crate) grant: Grant,
}

impl Granted {
    /// A grant of an execution with `demand` to the executor whose room is `to`.
    pub(crate) fn new(to: &OpenExecutor, demand: Demand, grant: Grant) -> Self {
        let OpenExecutor { ask, pool, after, claims_max } = to;
        let (executor, pool) = (ask.executor.clone(), pool.clone());
        Self { executor, pool, after: *after, claims_max: *claims_max, demand, grant }
    }

    /// The grant for the index.
    pub(crate) fn to_commit(&self, shared: &Shared, now: Millis) -> index::actions::Grant {
        let cost = occupancy(&self.grant.size).micros() / 1000;
        index::actions::Grant {
            key: self.grant.key.clone(),
            executor: self.executor.clone(),
            pool: self.pool.clone(),
            after: self.after,
            claims_max: self.claims_max,
            hedge_at: shared.hedge_at(&self.demand, now),
            cost: u64::try_from(cost).present("the occupancy of an execution, which is not negative"),
            notice: shared.has_peers().then(|| {
                let mut notice = none_granted(&self.executor);
                self.add_to(&mut notice);
                notice
            }),
        }
    }

    /// Adds the grant to a notice of grants to the same executor.
    fn add_to(&self, notice: &mut GrantNotice) {
        if self.grant.ahead {
            notice.ahead = notice.ahead.saturating_add(1);
            return;
        }
        notice.size.add(&self.grant.size);
        notice.starts = notice.starts.saturating_add(1);
        if self.demand.exclusive {
            (notice.starts, notice.ahead) = (u16::MAX, u16::MAX);
        }
    }
}

/// What came of the decisions of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Number of executions that their executors get.
    pub(crate) granted: usize,
    /// Whether all decisions were valid.
    pub(crate) all: bool,
}

/// The executions that are committed.
pub(crate) fn granted_keys(granted: &[Granted], committed: &[Committed]) -> HashSet<ExecutionKey> {
    let is_granted = |it: &(&Granted, &Committed)| matches!(it.1, Committed::Granted { .. });
    granted.iter().zip(committed).filter(is_granted).map(|(it, _)| it.grant.key.clone()).collect()
}

/// Maximum size in bytes of the records in a message: nats-server accepts messages of 1 MiB by default.
const BYTES_MAX: usize = 512 << 10;

/// A notice of no grants.
fn none_granted(executor: &ExecutorId) -> GrantNotice {
    GrantNotice { executor: executor.clone(), number: 0, size: Resources::default(), starts: 0, ahead: 0 }
}

/// What one executor gets in one message.
struct Parcel {
    message: StoredGrants,
    notice: GrantNotice,
    /// Size of the records in it.
    bytes: usize,
}

/// Sends the committed ones of `granted` to their executors. An executor whose room is outdated is asked to report it.
pub(crate) async fn send(shared: &Shared, granted: &[Granted], committed: Vec<Committed>) -> Sent {
    let mut parcels: BTreeMap<&ExecutorId, Vec<Parcel>> = BTreeMap::new();
    let mut outdated: BTreeMap<&ExecutorId, u64> = BTreeMap::new();
    let mut sent = Sent { granted: 0, all: true };
    for (it, committed) in granted.iter().zip(committed) {
        match committed {
            Committed::Granted { number, sequence, record } => {
                sent.granted += 1;
                let of_executor = parcels.entry(&it.executor).or_default();
                if of_executor.last().is_none_or(|parcel| parcel.bytes + record.len() > BYTES_MAX) {
                    of_executor.push(Parcel::to(&it.executor));
                }
                if let Some(parcel) = of_executor.last_mut() {
                    parcel.add(it, number, sequence, record);
                }
            }
            Committed::NotGranted => sent.all = false,
            Committed::Full => {
                sent.all = false;
                refuse_more(shared, it);
            }
            Committed::Outdated { number, missed } => {
                sent.all = false;
                shared.note_peers();
                count(Counter::ExecutionClaims, &[(Label::Verdict, "outdated")], 1);
                if missed.is_empty() {
                    outdated.insert(&it.executor, number);
                }
                for notice in missed {
                    shared.view.granted(&notice);
                }
            }
        }
    }
    count(Counter::ExecutionClaims, &[(Label::Verdict, "granted")], sent.granted as u64);
    let all = parcels.into_iter().flat_map(|(executor, all)| all.into_iter().map(move |one| (executor, one)));
    let mut notices = GrantNotices { grants: Vec::new() };
    for (executor, Parcel { message, notice, .. }) in all {
        shared.view.granted(&notice);
        // A lost message comes to light because the executor does not confirm the grants.
        shared.context.bus.send_or_log(executor, &message).await;
        notices.grants.push(notice);
    }
    if shared.has_peers() && !notices.grants.is_empty() {
        shared.context.bus.send_or_log(&(), &notices).await;
    }
    for (executor, number) in outdated {
        shared.view.outdated(executor, number);
        // If this is lost, the executor counts as open again later, and the next grant to it asks again.
        messages::ask_room(shared, executor, number).await;
    }
    crash_point(Step::ActionGrantsSent);
    sent
}

/// Grants nothing more to an executor for some time that holds as many executions as it may.
fn refuse_more(shared: &Shared, granted: &Granted) {
    let (executor, most) = (&granted.executor, granted.claims_max);
    if shared.view.refuse(executor) {
        let pause = Grants::IN_FLIGHT_MAX;
        warn!(%executor, "the executor reports room, but holds {most} executions; it gets no more for {pause:?}");
        count(Counter::ExecutionClaims, &[(Label::Verdict, "full")], 1);
    }
}

impl Parcel {
    fn to(executor: &ExecutorId) -> Self {
        Self { message: StoredGrants::default(), notice: none_granted(executor), bytes: 0 }
    }

    fn add(&mut self, granted: &Granted, number: u64, sequence: Sequence, record: String) {
        self.bytes += record.len();
        let size = &granted.grant.size;
        granted.add_to(&mut self.notice);
        self.notice.number = self.notice.number.max(number);
        self.message.number = self.message.number.max(number);
        match RawValue::from_string(record) {
            Ok(record) => self.message.claimed.push(Claimed { record, sequence, size: size.clone() }),
            // Only a fault of Redis can cause that. The heartbeats of the executor do not name it: it waits again.
            Err(error) => warn!(%error, key = %granted.grant.key, "cannot read a record in Redis"),
        }
    }
}
