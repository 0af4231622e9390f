//! From the heads of waiting groups to the builds that may start.

use std::{
    borrow::Cow,
    collections::{HashSet, VecDeque},
};

use index::{Heads, Index, IndexError, WaitingBuild, WaitingGroup, Wanted};
use model::{Group, Millis};
use policy::{Allowance, GroupHead, Random, sample, weight};
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

impl HeadReader {
    /// The heads of all waiting groups, or where they are many, of some that chance chose, without those of `done`.
    pub(crate) async fn read(
        &mut self,
        index: &Index,
        now: Millis,
        done: &HashSet<Group>,
        random: &mut Random,
    ) -> Result<Heads, IndexError> {
        loop {
            let left = self.names.iter().filter(|name| !done.contains(*name)).cloned().collect();
            let chosen = sample(left, GROUPS_MAX, random);
            let wanted = Wanted {
                idle_max: IDLE_MAX,
                depth_min: DEPTH_MIN,
                groups_max: GROUPS_MAX,
                groups_version: self.version,
                groups: &chosen,
            };
            let mut heads = index.heads(now, wanted).await?;
            heads.groups.retain(|head| !done.contains(&head.group));
            // One that was chosen and has no build waits no more; when it does again, all names are read again.
            self.names
                .retain(|name| !chosen.contains(name) || heads.groups.iter().any(|head| head.group == *name));
            self.version = heads.groups_version;
            if heads.names.is_empty() {
                return Ok(heads);
            }
            let first = self.names.is_empty();
            self.names = std::mem::take(&mut heads.names);
            if !first {
                // Those that were known serve as well; the new ones have their turn in the next pass.
                return Ok(heads);
            }
        }
    }

    /// Whether there are groups that were not in `done`.
    pub(crate) fn has_more(&self, heads: &Heads, done: &HashSet<Group>) -> bool {
        heads.waiting_groups > GROUPS_MAX as u64 && self.names.iter().any(|name| !done.contains(name))
    }
}

/// Of each head, what may start now; the others of the queue stay where they are.
pub(crate) async fn startable(
    index: &Index,
    governance: &Governance,
    heads: &Heads,
) -> Result<Vec<GroupHead<WaitingBuild>>, IndexError> {
    let mut startable = Vec::with_capacity(heads.groups.len());
    for head in &heads.groups {
        let builds = startable_of(index, governance, head, heads.idle.len()).await?;
        startable.push(GroupHead { weight: weight(governance.quotas.of(&head.group)), builds });
    }
    Ok(startable)
}

/// How many builds a head has that was not read to its end.
fn head_depth(idle: usize) -> usize {
    idle.max(DEPTH_MIN)
}

async fn startable_of(
    index: &Index,
    governance: &Governance,
    head: &WaitingGroup,
    idle: usize,
) -> Result<VecDeque<WaitingBuild>, IndexError> {
    let allowance = Allowance::of(&head.group, &governance.quotas, &governance.record);
    let mut admission = allowance.admission(&head.in_progress);
    let mut goes = VecDeque::new();
    let mut page = Cow::Borrowed(head.builds.as_slice());
    let (mut read, mut full) = (0, head_depth(idle));
    for _ in 0..=PAGES_MAX {
        read += page.len();
        for build in page.iter() {
            if admission.consider(&build.traits.occupancy).is_ok() {
                goes.push_back(build.clone());
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
