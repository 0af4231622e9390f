//! Reading what waits: the heads of all queues first, then the executions of the groups whose turn comes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use index::{
    IndexError,
    actions::{GroupHead, GroupUse, Heads, QueueHead, ReadFirst, Waiting},
};
use model::{Group, Millis, PoolName, RequirementsId, WaitAgain};
use policy::actions::{ProcessingSet, Queue, Standing, Waiter, WaitingGroup, band_of, turns};

use crate::{Shared, messages, queues::ToRead, view::KnownKinds};

/// Maximum number of executions that a shallow pass reads for the same executors.
const SHALLOW_MAX: usize = 256;
/// Number of executions read in addition to those that the executors have room for, since not all fit and some are warm
/// where there is room.
const MORE: usize = 32;
/// Number of executions read in a deep pass, when a shallow one found nothing for an executor: many may wait for
/// resources that are in use.
const DEEP_MAX: usize = 1024;
/// Maximum number of executions read in one pass, unless there are more queues than that allows [`QUEUE_LEAST`] for each.
const QUEUES_TOTAL: usize = 4096;
/// Minimum number of executions of a queue read in one pass that may grant.
const QUEUE_LEAST: usize = 8;
/// How long an executor that does not name an execution which it should have may take to confirm it.
const GRACE: Duration = Duration::from_millis(500);

/// How far into the queues a pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// As many executions as the executors have room for.
    Shallow,
    /// [`DEEP_MAX`] executions, and at least [`QUEUE_LEAST`] of each group; what is behind them does not end the decision.
    Deep,
}

/// A queue, what it contains of one group, and the executors that can run that.
type HeadOfGroup<'a> = (&'a QueueHead, &'a GroupHead, &'a Arc<ProcessingSet>);

/// Heads of queues that are decided about together.
pub(crate) struct PartHeads<'a> {
    /// Each queue, as it was read.
    pub(crate) queues: Vec<(&'a QueueHead, &'a ToRead)>,
    /// Kinds of executors that can run some of these executions.
    pub(crate) kinds: BTreeSet<usize>,
    uses: &'a HashMap<PoolName, Vec<GroupUse>>,
}

impl<'a> PartHeads<'a> {
    /// The queues at the indices `members`.
    pub(crate) fn of(members: &[usize], queues: &'a [ToRead], heads: &'a Heads) -> Self {
        let queues: Vec<(&QueueHead, &ToRead)> =
            members.iter().filter_map(|at| Some((heads.queues.get(*at)?, queues.get(*at)?))).collect();
        let kinds = queues.iter().flat_map(|(_, queue)| queue.set.kinds()).collect();
        Self { queues, kinds, uses: &heads.uses }
    }

    /// Each group with the heads of its queues.
    fn groups(&self) -> BTreeMap<&'a Group, Vec<HeadOfGroup<'a>>> {
        let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (head, queue) in &self.queues {
            for of_group in &head.groups {
                groups.entry(&of_group.group).or_default().push((*head, of_group, &queue.set));
            }
        }
        groups
    }
}

/// Reads queues for one pass.
pub(crate) struct Reader<'a> {
    pub(crate) shared: &'a Shared,
    /// When the pass began.
    pub(crate) now: Millis,
    /// The kinds of executors at its start.
    pub(crate) kinds: KnownKinds,
}

impl Reader<'_> {
    /// Reads the heads of queues, and handles what is due.
    pub(crate) async fn heads(&self, queues: &[ToRead]) -> Result<Heads, IndexError> {
        let kinds: BTreeSet<usize> = queues.iter().flat_map(|queue| queue.set.kinds()).collect();
        let most = if self.shared.view.has_room(&kinds) { self.most(&kinds) } else { 0 };
        let most = most.min(most_of_each(queues.len()));
        let pools: BTreeSet<&PoolName> =
            kinds.iter().filter_map(|kind| Some(&self.kinds.offers.get(*kind)?.name)).collect();
        let pools: Vec<PoolName> = pools.into_iter().cloned().collect();
        let ids: Vec<RequirementsId> = queues.iter().map(|queue| queue.id.clone()).collect();
        let heads = self.shared.actions.heads(self.now, most, GRACE, &ids, &pools).await?;
        let wakes = &self.shared.wakes;
        for executor in &heads.silent {
            messages::ask_room(self.shared, executor, 0).await;
        }
        messages::announce_requeued(self.shared, WaitAgain { requirements: heads.again.clone() }).await;
        if heads.next_overdue.is_some_and(|at| at <= self.now) {
            wakes.overdue.notify_one();
        }
        if heads.next_hedge.is_some_and(|at| at <= self.now) {
            wakes.hedge.notify_one();
        }
        Ok(heads)
    }

    /// Number of executions to read for the executors of these kinds.
    fn most(&self, kinds: &BTreeSet<usize>) -> usize {
        self.shared.view.room(kinds, SHALLOW_MAX).saturating_add(MORE).min(SHALLOW_MAX)
    }

    /// Reads the executions of those groups whose turn comes, as far as the heads do not contain them.
    pub(crate) async fn read_executions(
        &self,
        queues: &[ToRead],
        parts: &[Vec<usize>],
        heads: &mut Heads,
        depth: Depth,
    ) -> Result<(), IndexError> {
        let most_of_each = most_of_each(queues.len());
        let mut reads: Vec<ReadFirst> = Vec::new();
        for members in parts {
            let part = PartHeads::of(members, queues, heads);
            if self.shared.view.has_room(&part.kinds) {
                reads.extend(self.choose_reads(&part, depth, most_of_each));
            }
        }
        if reads.is_empty() {
            return Ok(());
        }
        let found = self.shared.actions.first_of(&reads).await?;
        let mut read: HashMap<(&RequirementsId, &Group), (usize, Vec<Waiting>)> = reads
            .iter()
            .zip(found)
            .map(|(it, waiting)| ((&it.requirements, &it.group), (it.most, waiting)))
            .collect();
        for queue in &mut heads.queues {
            for head in &mut queue.groups {
                if let Some((most, waiting)) = read.remove(&(&queue.requirements, &head.group)) {
                    head.more = waiting.len() >= most;
                    head.waiting = waiting;
                }
            }
        }
        Ok(())
    }

    /// The executions to read for a part: of each group as many as the order of turns may take.
    fn choose_reads(&self, part: &PartHeads<'_>, depth: Depth, most_of_each: usize) -> Vec<ReadFirst> {
        let count = match depth {
            Depth::Shallow if part.queues.iter().all(|(head, _)| is_read(head)) => return Vec::new(),
            Depth::Shallow => self.shared.view.room(&part.kinds, SHALLOW_MAX),
            Depth::Deep => DEEP_MAX,
        };
        let groups = part.groups();
        let standings = self.standings(part);
        let waiting: Vec<WaitingGroup> = groups
            .iter()
            .map(|(group, heads)| WaitingGroup {
                standing: self.standing(group, &standings),
                share: self.shared.share(group, self.offers(&part.kinds)),
                is_emergency: heads.iter().any(|(_, head, _)| band_of(head.first).is_emergency()),
            })
            .collect();
        let mut counts = turns(&waiting, count);
        if depth == Depth::Deep {
            // What fits may belong to a group whose turn comes late.
            for count in &mut counts {
                *count = QUEUE_LEAST.max(*count);
            }
        }
        let chosen = counts.iter().filter(|count| **count > 0).count();
        // Some do not fit, and some are warm on an executor with room.
        let more = MORE / chosen.max(1);
        let mut reads = Vec::new();
        for ((group, mut heads), count) in groups.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
            // The next executions of the group are in the queues with its lowest first scores.
            heads.sort_by_key(|(_, head, _)| head.first);
            let most = (count + more).min(most_of_each);
            for (queue, head, _) in heads.into_iter().take(count + more) {
                if head.more && head.waiting.len() < most {
                    let (requirements, group) = (queue.requirements.clone(), (*group).clone());
                    reads.push(ReadFirst { requirements, group, most });
                }
            }
        }
        reads
    }

    /// The queue of each group: its executions of all queues of the part, in one order.
    pub(crate) fn group_queues(&self, part: &PartHeads<'_>, depth: Depth) -> Vec<Queue> {
        let standings = self.standings(part);
        let queue = |(group, heads): (&Group, Vec<HeadOfGroup<'_>>)| {
            let unread = heads.iter().filter_map(|(_, head, _)| head.unread_from()).min();
            let unread = unread.filter(|_| depth == Depth::Shallow);
            let mut waiting: Vec<Waiter> = Vec::new();
            for (_, head, set) in heads {
                // An execution that was not read may come before those with a higher score.
                let known = head.waiting.iter().filter(|it| unread.is_none_or(|from| it.score <= from));
                waiting.extend(known.map(|it| self.waiter(it, set)));
            }
            // Each queue is in this order; the sort merges them.
            waiting.sort_by_key(|waiter| waiter.score);
            Queue {
                standing: self.standing(group, &standings),
                share: self.shared.share(group, self.offers(&part.kinds)),
                waiting,
                unread: unread.map(band_of),
            }
        };
        part.groups().into_iter().map(queue).collect()
    }

    fn offers<'k>(&self, kinds: &'k BTreeSet<usize>) -> impl Iterator<Item = &model::Pool> + use<'_, 'k> {
        kinds.iter().filter_map(|kind| self.kinds.offers.get(*kind))
    }

    /// What each group has used and holds of the pools of a part, in ESU.
    fn standings<'p>(&self, part: &PartHeads<'p>) -> HashMap<&'p Group, (f64, f64)> {
        let pools: BTreeSet<&PoolName> = self.offers(&part.kinds).map(|offer| &offer.name).collect();
        let mut standings: HashMap<&Group, (f64, f64)> = HashMap::new();
        for it in pools.into_iter().filter_map(|pool| part.uses.get(pool)).flatten() {
            let (used, held) = standings.entry(&it.group).or_default();
            *used += it.used;
            *held += it.held;
        }
        standings
    }

    fn standing(&self, group: &Group, standings: &HashMap<&Group, (f64, f64)>) -> Standing {
        let (used, held) = standings.get(group).copied().unwrap_or_default();
        Standing { used, held, weight: self.shared.weight(group) }
    }

    fn waiter(&self, waiting: &Waiting, set: &Arc<ProcessingSet>) -> Waiter {
        let warm_at = if self.shared.affinity { self.shared.view.warm_at(&waiting.key) } else { Vec::new() };
        let (key, demand) = (waiting.key.clone(), waiting.demand.clone());
        let holders = waiting.holders.clone();
        Waiter { key, demand, holders, warm_at, set: Arc::clone(set), score: waiting.score }
    }
}

/// Maximum number of executions of one of `queues` queues: many queues together are read as far as a few.
fn most_of_each(queues: usize) -> usize {
    (QUEUES_TOTAL / queues.max(1)).max(QUEUE_LEAST)
}

/// Whether the executions of a queue were read with its head.
fn is_read(head: &QueueHead) -> bool {
    head.groups.iter().any(|group| !group.waiting.is_empty()) || head.groups.is_empty()
}
