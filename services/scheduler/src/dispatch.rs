//! The dispatch loop: when something starts to wait or an executor has room again, it reads the waiting executions,
//! decides which executor gets which, commits and sends them. A timer handles what is due.

use std::{collections::HashMap, sync::Arc, time::Duration};

use index::{IndexError, actions::Heads};
use invariant::impossible;
use model::{ExecutionKey, Millis, RequirementsId};
use policy::{
    Random,
    actions::{Ask, Decision, ProcessingSet, Waiter, grant, independent},
};
use service::{ServiceError, Step, crash_point, sleep_until};
use tokio::time::Instant;
use tracing::warn;

use crate::{
    Shared,
    grants::{self, Granted},
    queues::ToRead,
    read::{Depth, PartHeads, Reader},
    view::OpenExecutor,
};

/// Maximum number of executors with room that one pass compares, besides those where a waiting execution is warm.
const EXECUTORS_MAX: usize = 256;
/// Interval of the repair for lost messages; it runs only while something waits or is claimed.
const REPAIR: Duration = Duration::from_secs(1);
/// Time after which a scheduler grants what waits although another one applied its record: that one may be gone. Also the
/// time until it reads when something expires that cannot be granted.
const CHECK: Duration = Duration::from_millis(50);
const RETRY: Duration = Duration::from_millis(100);
/// Minimum time between two passes while more waits than there is room for, so that one pass fills several rooms.
const APART: Duration = Duration::from_millis(1);
/// Maximum number of rounds of a pass after grants of another scheduler that came first.
const ROUNDS: usize = 3;

/// Dispatches until the service stops.
pub(crate) async fn run(shared: Shared) -> Result<(), ServiceError> {
    let mut timer: Option<Instant> = None;
    let mut next_pass = Instant::now();
    let mut failing = false;
    let mut reconnects = shared.context.bus.reconnects();
    let earlier = |timer: Option<Instant>, at: Instant| Some(timer.map_or(at, |timer| timer.min(at)));
    loop {
        tokio::select! {
            () = shared.context.stop.cancelled() => return Ok(()),
            () = shared.wakes.dispatch.notified() => {}
            () = reconnects.next() => {
                shared.view.messages_lost();
                continue;
            }
            () = shared.wakes.check.notified() => {
                timer = earlier(timer, Instant::now() + CHECK);
                continue;
            }
            () = sleep_until(timer) => {}
        }
        tokio::time::sleep_until(next_pass).await;
        let due = timer.is_some_and(|at| at <= Instant::now());
        let begun = Instant::now();
        let _granting = shared.granting.lock().await;
        match Pass::new(&shared, due).run().await {
            Ok(PassOutcome { again, crowded }) => {
                failing = false;
                next_pass = if crowded { begun + APART } else { begun };
                // If the timer was not due in this pass, it remains set.
                timer = again.into_iter().chain(timer.filter(|_| !due)).min();
            }
            Err(error) => {
                // Log once per outage of Redis.
                if !failing {
                    warn!(
                        error = telemetry::error_chain(&error),
                        "waiting for Redis; dispatch resumes when it answers"
                    );
                }
                failing = true;
                timer = Some(Instant::now() + RETRY);
            }
        }
    }
}

/// Result of a pass.
struct PassOutcome {
    /// When the next pass runs if nothing wakes the loop.
    again: Option<Instant>,
    /// Whether more executions wait than there was room for.
    crowded: bool,
}

struct Pass<'a> {
    shared: &'a Shared,
    now: Millis,
    /// Whether the timer is due: all queues are read.
    due: bool,
    reader: Reader<'a>,
}

/// What one round decided.
struct Round {
    heads: Heads,
    granted: Vec<Granted>,
    /// Number of executions in `granted`, by queue.
    counts: HashMap<RequirementsId, u64>,
    /// Whether another pass could grant more at once.
    goes_on: bool,
}

/// What was decided about queues that no other queue shares executors with.
struct Part {
    open: Vec<OpenExecutor>,
    granted: Vec<Granted>,
    /// The queue of each execution in `granted`.
    queues: Vec<RequirementsId>,
    /// Whether the decision ended at an execution that was not read.
    is_cut: bool,
}

impl Part {
    /// Whether executors with room got nothing, although executions that were not read may suit them.
    fn is_starved(&self) -> bool {
        // Emergencies are at the heads of queues, so they are read.
        let has_room = |one: &OpenExecutor| one.ask.starts > one.ask.kept.starts.into();
        self.is_cut && self.granted.is_empty() && self.open.iter().any(has_room)
    }

    /// Whether a further pass may grant more: this one compared only some executors or read only some executions.
    fn goes_on(&self) -> bool {
        !self.granted.is_empty() && (self.is_cut || self.open.len() >= EXECUTORS_MAX)
    }
}

impl<'a> Pass<'a> {
    fn new(shared: &'a Shared, due: bool) -> Self {
        let now = shared.context.bus.now();
        Self { shared, now, due, reader: Reader { shared, now, kinds: shared.view.kinds() } }
    }

    async fn run(&self) -> Result<PassOutcome, IndexError> {
        if self.due {
            self.shared.view.remove_expired();
        }
        self.learn_queues().await?;
        for round in 1.. {
            let queues = self.queues();
            if queues.is_empty() && !self.due {
                // Nothing was read, so the timer remains set. What waits may expire soon.
                let pause = if self.shared.queues.any_active() { CHECK } else { REPAIR };
                return Ok(PassOutcome { again: Some(Instant::now() + pause), crowded: false });
            }
            let Some(decided) = self.decide(&queues).await? else {
                self.shared.wakes.rebuild.notify_one();
                return Ok(PassOutcome { again: Some(Instant::now() + RETRY), crowded: false });
            };
            let Round { heads, granted, counts, goes_on } = decided;
            if self.due && heads.hold.is_none() {
                self.find_unknown(&heads);
            }
            let sent = self.commit(&granted).await?;
            for head in heads.queues.iter().filter(|_| heads.hold.is_none()) {
                let of_queue = counts.get(&head.requirements).copied().unwrap_or_default();
                let leave = if sent.all { of_queue } else { 0 };
                if head.waiting <= leave
                    && let Some(read) = queues.iter().find(|read| read.id == head.requirements)
                {
                    self.shared.queues.note_empty(&read.id, read.news);
                }
            }
            if sent.all || round >= ROUNDS {
                let crowded = heads.waiting > sent.granted as u64;
                if goes_on && crowded && sent.granted > 0 {
                    self.shared.wakes.dispatch.notify_one();
                }
                return Ok(PassOutcome { again: next_check(&heads, self.now), crowded });
            }
        }
        impossible!("a pass has no last round");
        Ok(PassOutcome { again: Some(Instant::now() + RETRY), crowded: false })
    }

    /// Reads which queues there are, if some may be unknown.
    async fn learn_queues(&self) -> Result<(), IndexError> {
        let queues = &self.shared.queues;
        if !queues.take_incomplete() {
            return Ok(());
        }
        let backlog = self.shared.actions.backlog().await.inspect_err(|_| queues.set_incomplete())?;
        for it in &backlog {
            queues.news(&it.requirements);
        }
        Ok(())
    }

    /// Looks whether more waits than in all known queues: a message about it was lost.
    fn find_unknown(&self, heads: &Heads) {
        let known: u64 = heads.queues.iter().map(|queue| queue.waiting).sum();
        if heads.waiting > known {
            self.shared.queues.set_incomplete();
            self.shared.wakes.dispatch.notify_one();
        }
    }

    /// The queues to read: those in which something may wait and an able executor has room.
    fn queues(&self) -> Vec<ToRead> {
        let open = (!self.due).then(|| self.shared.view.open_kinds());
        self.shared.queues.to_read(open.as_ref(), &self.reader.kinds)
    }

    /// Reads the heads of the queues and decides; `None` if the index must be rebuilt.
    async fn decide(&self, queues: &[ToRead]) -> Result<Option<Round>, IndexError> {
        let sets: Vec<&ProcessingSet> = queues.iter().map(|queue| &*queue.set).collect();
        let parts = independent(&sets);
        let mut heads = self.reader.heads(queues).await?;
        if !heads.ready {
            return Ok(None);
        }
        let mut depth = Depth::Shallow;
        loop {
            self.reader.read_executions(queues, &parts, &mut heads, depth).await?;
            let decided: Vec<Part> = parts
                .iter()
                .map(|members| self.decide_part(&PartHeads::of(members, queues, &heads), depth))
                .collect();
            if depth == Depth::Shallow && decided.iter().any(Part::is_starved) {
                depth = Depth::Deep;
                continue;
            }
            let goes_on = decided.iter().any(Part::goes_on);
            let (mut granted, mut counts) = (Vec::new(), HashMap::new());
            for part in decided {
                part.queues.into_iter().for_each(|id| *counts.entry(id).or_default() += 1);
                granted.extend(part.granted);
            }
            return Ok(Some(Round { heads, granted, counts, goes_on }));
        }
    }

    /// Decides what the executors get that can run the executions of these queues.
    fn decide_part(&self, heads: &PartHeads<'_>, depth: Depth) -> Part {
        let queues = self.reader.group_queues(heads, depth);
        if queues.iter().all(|queue| queue.waiting.is_empty()) {
            let is_cut = queues.iter().any(|queue| queue.unread.is_some());
            return Part { open: Vec::new(), granted: Vec::new(), queues: Vec::new(), is_cut };
        }
        let view = &self.shared.view;
        let waiting: HashMap<&ExecutionKey, &Waiter> =
            queues.iter().flat_map(|queue| &queue.waiting).map(|waiter| (&waiter.key, waiter)).collect();
        let wanted = view.wanted(queues.iter().flat_map(|queue| &queue.waiting));
        let mut random = Random::new(self.shared.next_seed());
        let open = view.open_executors(&heads.kinds, EXECUTORS_MAX, &wanted, &mut random);
        let asks: Vec<Ask> = open.iter().map(|it| it.ask.clone()).collect();
        let members = || view.members(&heads.kinds);
        let Decision { grants, is_cut } = grant(&queues, &asks, &members, self.shared.grants, self.now);
        let (mut granted, mut of_queues) = (Vec::new(), Vec::new());
        for grant in grants {
            let (Some(to), Some(waiter)) = (open.get(grant.ask), waiting.get(&grant.key)) else {
                let executors = asks.len();
                impossible!(
                    "the grant of {} to executor {} of {executors} has no such",
                    grant.key,
                    grant.ask
                );
                continue;
            };
            let queue = heads.queues.iter().find(|(_, queue)| Arc::ptr_eq(&queue.set, &waiter.set));
            of_queues.extend(queue.map(|(head, _)| head.requirements.clone()));
            granted.push(Granted::new(to, waiter.demand.clone(), grant));
        }
        Part { open, granted, queues: of_queues, is_cut }
    }

    /// Commits the grants and sends them.
    async fn commit(&self, granted: &[Granted]) -> Result<grants::Sent, IndexError> {
        if granted.is_empty() {
            return Ok(grants::Sent { granted: 0, all: true });
        }
        crash_point(Step::ActionPicked);
        let commits: Vec<index::actions::Grant> =
            granted.iter().map(|it| it.to_commit(self.shared, self.now)).collect();
        let committed = self.shared.actions.commit(&commits, self.now).await?;
        crash_point(Step::ActionCommitted);
        Ok(grants::send(self.shared, granted, committed).await)
    }
}

/// When the next pass runs if nothing wakes the loop: at the next due time, and after [`REPAIR`] while a lost message
/// could leave something waiting or claimed.
fn next_check(heads: &Heads, now: Millis) -> Option<Instant> {
    let instant_of = |due: Millis| Instant::now() + due.since(now);
    let pending = heads.waiting + heads.claimed > 0;
    let later = |due: &Millis| *due > now;
    let due = heads.next_doubt.into_iter().chain(heads.hold);
    let due = due.chain(heads.next_overdue.filter(later)).chain(heads.next_hedge.filter(later));
    due.map(instant_of).chain(pending.then(|| Instant::now() + REPAIR)).min()
}
