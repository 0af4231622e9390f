//! From the heads of waiting groups to the builds that may start.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet, VecDeque},
};

use bus::Bus;
use index::{Heads, Index, IndexError, Traits, WaitingBuild, WaitingGroup, Wanted};
use model::Group;
use policy::{Allowance, GroupHead, Lending, Random, draws, weight};
use service::Governance;

/// Workspaces looked at in one pass.
const IDLE_MAX: usize = 64;
/// Groups whose heads are read in one pass.
const GROUPS_MAX: usize = 64;
/// Builds of each head at least; as many as there are idle workspaces when those are more.
const DEPTH_MIN: usize = 8;
/// How far a head is read on that is full of builds for an executor type that is short: so many pages, of so many builds.
const PAGES_MAX: usize = 16;
const PAGE: usize = 256;

/// Reads heads; remembers the names of waiting groups while they are many.
#[derive(Default)]
pub(crate) struct HeadReader {
    names: Vec<Group>,
    version: u64,
}

/// Heads, and how often each group is to be chosen among them.
pub(crate) struct Drawn {
    pub(crate) heads: Heads,
    /// In the order of the heads.
    pub(crate) weights: Vec<u64>,
}

impl HeadReader {
    /// The heads of all waiting groups, or where they are many, of those that were drawn by weight, without those of `done`.
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
                // One that was drawn and has no build waits no more; when it does again, all names are read again.
                self.names.retain(|name| {
                    !tickets.contains_key(name) || heads.groups.iter().any(|head| head.group == *name)
                });
            }
            if !heads.names.is_empty() {
                self.names = std::mem::take(&mut heads.names);
                // Drawn again, of these.
                continue;
            }
            heads.groups.retain(|head| !done.contains(&head.group));
            let weigh = |head: &WaitingGroup| match tickets.get(&head.group) {
                Some(count) if !few => *count,
                Some(_) | None => weight(governance.quotas.of(&head.group)),
            };
            let weights = heads.groups.iter().map(weigh).collect();
            return Ok(Drawn { heads, weights });
        }
    }

    /// Draws as many groups as there could be idle workspaces; says how often each was drawn.
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
            if let Some(group) = left.get(at) {
                *tickets.entry((*group).clone()).or_default() += 1;
            }
        }
        tickets
    }

    /// Whether there are groups that were not in `done`.
    pub(crate) fn has_more(&self, heads: &Heads, done: &HashSet<Group>) -> bool {
        heads.waiting_groups > GROUPS_MAX as u64 && self.names.iter().any(|name| !done.contains(name))
    }
}

/// A build that may start now.
pub(crate) struct Startable {
    pub(crate) build: WaitingBuild,
    /// As what it counts, where that is not what it was estimated at.
    pub(crate) counts_as: Option<Traits>,
}

/// Of each head, what may start now; the others of the queue stay where they are. `lending` is what groups borrowed since the
/// governor's decision; what these heads may borrow comes on top of it, each time.
pub(crate) async fn startable(
    index: &Index,
    governance: &Governance,
    drawn: &Drawn,
    lending: &Lending,
) -> Result<Vec<GroupHead<Startable>>, IndexError> {
    let idle = drawn.heads.idle.len();
    let mut lending = lending.clone();
    let mut startable = Vec::with_capacity(drawn.weights.len());
    for (head, weight) in drawn.heads.groups.iter().zip(&drawn.weights) {
        let allowance = allowance(governance, &lending, &head.group);
        let builds = startable_of(index, &allowance, head, idle).await?;
        if let Some(first) = builds.front() {
            lending.start(&head.group, &allowance, &first.build.traits.occupancy);
        }
        startable.push(GroupHead { weight: *weight, builds });
    }
    Ok(startable)
}

/// What `group` may have in progress.
pub(crate) fn allowance(governance: &Governance, lending: &Lending, group: &Group) -> Allowance {
    Allowance::of(group, &governance.quotas, &governance.totals, &governance.record)
        .lending(lending.left(&governance.spare, group))
}

/// How many builds a head has that was not read to its end.
fn head_depth(idle: usize) -> usize {
    idle.max(DEPTH_MIN)
}

async fn startable_of(
    index: &Index,
    allowance: &Allowance,
    head: &WaitingGroup,
    idle: usize,
) -> Result<VecDeque<Startable>, IndexError> {
    let mut admission = allowance.admission(&head.in_progress);
    let mut goes = VecDeque::new();
    let mut page = Cow::Borrowed(head.builds.as_slice());
    let (mut read, mut full) = (0, head_depth(idle));
    for _ in 0..=PAGES_MAX {
        read += page.len();
        for build in page.iter() {
            let estimate = &build.traits.occupancy;
            if admission.consider(estimate).is_ok() {
                let counted = allowance.counted(estimate);
                let counts_as =
                    (counted != *estimate).then(|| Traits { occupancy: counted, ..build.traits.clone() });
                goes.push_back(Startable { build: build.clone(), counts_as });
            }
        }
        // A page that is not full is the end of the queue.
        if page.len() < full || goes.len() >= idle || admission.is_exhausted() {
            break;
        }
        page = Cow::Owned(index.page(&head.group, read, PAGE).await?);
        full = PAGE;
    }
    Ok(goes)
}
