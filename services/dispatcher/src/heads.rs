//! Selects the builds that may start from the heads of waiting groups.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
};

use bus::Bus;
use index::{Heads, Index, IndexError, Traits, WaitingBuild, WaitingGroup, Wanted};
use invariant::impossible;
use model::{BuildRequirements, Group};
use policy::{
    Admission, Allowance, ExecutorAdmission, GroupHead, IdleWorkspaces, Lending, Random, Supply, Taken,
    draws, weight,
};
use service::Governance;
use trace::WaitsFor;

use crate::waits::Waits;

/// Maximum number of idle workspaces used in one pass.
const IDLE_MAX: usize = 64;
/// Maximum number of groups whose heads are read in one pass.
const GROUPS_MAX: usize = 64;
/// Minimum number of builds of each head; with more idle workspaces, their number.
const DEPTH_MIN: usize = 8;
/// Maximum number of further pages (of `PAGE` builds) read when a head is full of builds for a scarce executor type.
const PAGES_MAX: usize = 16;
const PAGE: usize = 256;

/// Reads heads; caches the names of waiting groups while they exceed the limit.
#[derive(Default)]
pub(crate) struct HeadReader {
    names: Vec<Group>,
    version: u64,
}

/// Heads, and the weight of each group in the choice among them.
pub(crate) struct Drawn {
    pub(crate) heads: Heads,
    /// One weight for each head, in the same order.
    pub(crate) weights: Vec<u64>,
}

impl HeadReader {
    /// Reads the heads of all waiting groups or, if they exceed the limit, of groups drawn by weight; omits
    /// the groups in `done`.
    pub(crate) async fn read(
        &mut self,
        bus: &Bus,
        index: &Index,
        governance: &Governance,
        done: &HashSet<Group>,
        random: &mut Random,
    ) -> Result<Drawn, IndexError> {
        loop {
            let tickets = self.draw(governance, done, random);
            let chosen: Vec<Group> = tickets.keys().cloned().collect();
            let wanted = Wanted {
                idle_max: IDLE_MAX,
                depth_min: DEPTH_MIN,
                groups_max: GROUPS_MAX,
                groups_version: self.version,
                groups: &chosen,
            };
            let mut heads = index.heads(bus.now(), wanted).await?;
            let few = heads.groups_version.is_none();
            if let Some(version) = heads.groups_version {
                self.version = version;
                // A drawn group without a head no longer waits; when it waits again, all names are read again.
                self.names.retain(|name| {
                    !tickets.contains_key(name) || heads.groups.iter().any(|head| head.group == *name)
                });
            }
            if !heads.names.is_empty() {
                self.names = std::mem::take(&mut heads.names);
                // Draw again from the new names.
                continue;
            }
            heads.groups.retain(|head| !done.contains(&head.group));
            let weight_of = |head: &WaitingGroup| match tickets.get(&head.group) {
                Some(count) if !few => *count,
                Some(_) | None => weight(governance.quotas.of(&head.group)),
            };
            let weights = heads.groups.iter().map(weight_of).collect();
            return Ok(Drawn { heads, weights });
        }
    }

    /// Draws as many groups as there could be idle workspaces; returns how often each was drawn.
    fn draw(
        &self,
        governance: &Governance,
        done: &HashSet<Group>,
        random: &mut Random,
    ) -> BTreeMap<Group, u64> {
        let left: Vec<&Group> = self.names.iter().filter(|name| !done.contains(*name)).collect();
        let weights: Vec<u64> = left.iter().map(|group| weight(governance.quotas.of(group))).collect();
        let mut tickets = BTreeMap::new();
        for at in draws(&weights, GROUPS_MAX, random) {
            match left.get(at) {
                Some(group) => *tickets.entry((*group).clone()).or_default() += 1,
                None => impossible!("the drawn group {at} is not among {} groups", left.len()),
            }
        }
        tickets
    }

    /// Whether there are groups that are not in `done`.
    pub(crate) fn has_more(&self, heads: &Heads, done: &HashSet<Group>) -> bool {
        heads.waiting_groups > GROUPS_MAX as u64 && self.names.iter().any(|name| !done.contains(name))
    }
}

/// A build that may start now.
pub(crate) struct Startable {
    pub(crate) build: WaitingBuild,
    /// The traits that it counts with, if they differ from its estimate.
    pub(crate) counts_as: Option<Traits>,
}

/// What groups may have in progress.
pub(crate) struct Grants<'a> {
    pub(crate) governance: &'a Governance,
    /// What groups have borrowed since the governor's decision.
    pub(crate) lending: &'a Lending,
}

/// Builds of each head that may start now in the `available` workspaces; the others stay in their queues. `required` are
/// the requirements that the workspaces were chosen for: those of builds on further pages are added to it, and these builds
/// stay in their queues too. Loans to these heads come on top of what was borrowed at each call.
pub(crate) async fn startable(
    index: &Index,
    grants: &Grants<'_>,
    drawn: &Drawn,
    available: (IdleWorkspaces, Option<&Supply>),
    required: &mut BTreeSet<BuildRequirements>,
    waits: &mut Waits,
) -> Result<Vec<GroupHead<Startable>>, IndexError> {
    let (idle, supply) = available;
    let limit = &grants.governance.executor_limit;
    let mut lending = grants.lending.clone();
    let mut startable = Vec::with_capacity(drawn.weights.len());
    for (head, weight) in drawn.heads.groups.iter().zip(&drawn.weights) {
        let allowance = allowance(grants.governance, &lending, &head.group);
        let executors = limit.admission(&drawn.heads.on_executors);
        let room = Room { executors, idle, supply: supply.cloned(), required };
        let head = Head { group: head, depth: head_depth(drawn.heads.idle.len()), weight: *weight };
        let may_start = startable_of(index, &allowance, room, &head, waits).await?;
        if let Some(first) = may_start.first() {
            lending.start(&head.group.group, &allowance, &first.build.traits.occupancy);
        }
        startable.push(may_start);
    }
    Ok(startable)
}

/// The amount that `group` may have in progress.
pub(crate) fn allowance(governance: &Governance, lending: &Lending, group: &Group) -> Allowance {
    Allowance::of(group, &governance.quotas, &governance.totals, &governance.record)
        .lending(lending.left(&governance.spare, group))
}

/// Maximum number of builds in a head; a shorter head is the whole queue.
fn head_depth(idle: usize) -> usize {
    idle.max(DEPTH_MIN)
}

/// What the builds of one head may use, as if it were all theirs.
struct Room<'a> {
    executors: ExecutorAdmission<'a>,
    idle: IdleWorkspaces,
    /// The workspaces by what their workers offer, if a build requires anything.
    supply: Option<Supply>,
    /// The requirements that `supply` was counted for.
    required: &'a mut BTreeSet<BuildRequirements>,
}

impl Room<'_> {
    /// Whether a workspace, idle or busy, is left for a build with these requirements. Unknown ones are noted: the
    /// workspaces were not chosen for them.
    fn is_left_for(&mut self, requirements: &BuildRequirements) -> bool {
        if !requirements.is_empty() && !self.required.contains(requirements) {
            self.required.insert(requirements.clone());
            return false;
        }
        self.supply.as_ref().is_none_or(|supply| supply.has_any(requirements))
    }

    /// What a build lacks that has no emergency's rights; none if it takes a workspace.
    fn lacks(&mut self, of_group: &mut Admission<'_>, build: &Traits) -> Option<WaitsFor> {
        if self.idle.for_others() == 0 {
            return Some(WaitsFor::Workspace);
        }
        if of_group.consider(&build.occupancy).is_err() {
            return Some(WaitsFor::Quota);
        }
        if self.executors.consider(build.sends_actions, &build.occupancy).is_err() {
            return Some(WaitsFor::Executors);
        }
        (!self.take(&build.requirements)).then_some(WaitsFor::Workspace)
    }

    /// Takes a workspace for a build with these requirements; returns whether it is idle.
    fn take(&mut self, requirements: &BuildRequirements) -> bool {
        self.supply.as_mut().is_none_or(|supply| supply.take(requirements) == Taken::Idle)
    }
}

/// The first builds of a group.
struct Head<'a> {
    group: &'a WaitingGroup,
    /// Maximum number of builds in it; a shorter head is the whole queue.
    depth: usize,
    weight: u64,
}

async fn startable_of(
    index: &Index,
    allowance: &Allowance,
    mut room: Room<'_>,
    head: &Head<'_>,
    waits: &mut Waits,
) -> Result<GroupHead<Startable>, IndexError> {
    let mut admission = allowance.admission(&head.group.in_progress);
    let mut starts = GroupHead { weight: head.weight, emergencies: VecDeque::new(), builds: VecDeque::new() };
    let mut page = Cow::Borrowed(head.group.builds.as_slice());
    let (mut read, mut full) = (0, head.depth);
    for page_number in 0..=PAGES_MAX {
        read += page.len();
        for build in page.iter() {
            let Traits { occupancy: estimate, sends_actions, requirements, .. } = &build.traits;
            let sends_actions = *sends_actions;
            let is_emergency = build.priority.is_emergency();
            // What no workspace can run, even at the end of what runs now, reserves nothing: later builds overtake it.
            let waits_for = if !room.is_left_for(requirements) {
                Some(WaitsFor::Worker)
            } else if is_emergency {
                (!room.take(requirements)).then_some(WaitsFor::Workspace)
            } else {
                // A build that waits for its quota reserves nothing of the executors and no workspace.
                room.lacks(&mut admission, &build.traits)
            };
            if let Some(waits_for) = waits_for {
                // Most builds of further pages are far from their turn.
                if page_number == 0 {
                    waits.note(build, waits_for);
                }
                continue;
            }
            let starting = if is_emergency {
                admission.pass(estimate);
                room.executors.pass(sends_actions, estimate);
                &mut starts.emergencies
            } else {
                &mut starts.builds
            };
            let counted = room.executors.counted(sends_actions, allowance.counted(estimate));
            let counts_as =
                (counted != *estimate).then(|| Traits { occupancy: counted, ..build.traits.clone() });
            starting.push_back(Startable { build: build.clone(), counts_as });
        }
        // A partial page is the end of the queue. Emergencies come first.
        let count = starts.emergencies.len() + starts.builds.len();
        let has_more_emergencies = page.last().is_some_and(|build| build.priority.is_emergency());
        let is_full = count >= room.idle.usable || (room.idle.for_others() == 0 && !has_more_emergencies);
        if page.len() < full || is_full || admission.is_exhausted() {
            break;
        }
        page = Cow::Owned(index.page(&head.group.group, read, PAGE).await?);
        full = PAGE;
    }
    Ok(starts)
}
