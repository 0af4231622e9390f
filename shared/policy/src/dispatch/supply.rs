//! Counts the workspaces that can run what builds require.

use std::{cmp::Reverse, sync::Arc};

use model::{BuildRequirements, WorkerProperties};

use crate::worker_offers::can_run;

/// The workspaces of live workers, by what their workers offer.
#[derive(Debug, Clone, Default)]
pub struct Supply {
    kinds: Vec<Supplied>,
}

/// The workspaces of workers that offer the same properties.
#[derive(Debug, Clone)]
pub struct Supplied {
    /// What their workers offer.
    pub offers: Arc<WorkerProperties>,
    /// Number of idle ones.
    pub idle: usize,
    /// Number of those that have a build.
    pub busy: usize,
}

/// What a build gets of the workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// A workspace that is idle.
    Idle,
    /// A busy workspace: the build waits for its end, and only for that.
    Busy,
    /// Builds ahead of it have all workspaces that can run it, or no live worker offers what it requires.
    Nothing,
}

impl Supplied {
    fn can_take(&self, requirements: &BuildRequirements) -> bool {
        self.idle + self.busy > 0 && can_run(&self.offers, requirements)
    }

    /// Counts one of its busy workspaces as idle.
    pub fn add_idle(&mut self) {
        self.idle += 1;
        self.busy = self.busy.saturating_sub(1);
    }
}

impl Supply {
    /// The supply of these workspaces.
    pub fn of(kinds: impl IntoIterator<Item = Supplied>) -> Self {
        Self { kinds: kinds.into_iter().collect() }
    }

    /// Takes a workspace for a build with these `requirements`: an idle one, else a busy one. Of several, one whose worker
    /// offers the fewest properties, so that special workers stay free for builds that require them.
    pub fn take(&mut self, requirements: &BuildRequirements) -> Taken {
        let able = self.kinds.iter_mut().filter(|kind| kind.can_take(requirements));
        let best = able.min_by_key(|kind| {
            (kind.idle == 0, kind.offers.0.len(), Reverse(if kind.idle > 0 { kind.idle } else { kind.busy }))
        });
        match best {
            Some(kind) if kind.idle > 0 => {
                kind.idle -= 1;
                Taken::Idle
            }
            Some(kind) => {
                kind.busy -= 1;
                Taken::Busy
            }
            None => Taken::Nothing,
        }
    }

    /// Whether a workspace, idle or busy, is left for a build with these `requirements`.
    pub fn has_any(&self, requirements: &BuildRequirements) -> bool {
        self.kinds.iter().any(|kind| kind.can_take(requirements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(properties: &[(&str, &str)], idle: usize, busy: usize) -> Supplied {
        let owned = properties.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()]));
        Supplied { offers: Arc::new(WorkerProperties(owned.collect())), idle, busy }
    }

    fn requires(properties: &[(&str, &str)]) -> BuildRequirements {
        BuildRequirements(
            properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        )
    }

    #[test]
    fn a_build_takes_the_least_special_workspace_that_can_run_it() {
        let mut supply = Supply::of([kind(&[("gpu", "1")], 1, 1), kind(&[], 1, 0)]);
        assert_eq!(supply.take(&requires(&[])), Taken::Idle);
        assert_eq!(supply.take(&requires(&[("gpu", "1")])), Taken::Idle, "the plain one was taken first");
        assert!(supply.has_any(&requires(&[("gpu", "1")])));
        assert_eq!(supply.take(&requires(&[("gpu", "1")])), Taken::Busy);
        assert!(!supply.has_any(&requires(&[("gpu", "1")])));
        assert_eq!(supply.take(&requires(&[("gpu", "1")])), Taken::Nothing);
        assert_eq!(supply.take(&requires(&[])), Taken::Nothing);
    }

    #[test]
    fn an_idle_special_workspace_comes_before_a_busy_plain_one() {
        let mut supply = Supply::of([kind(&[("gpu", "1")], 1, 0), kind(&[], 0, 4)]);
        assert_eq!(supply.take(&requires(&[])), Taken::Idle);
        assert_eq!(supply.take(&requires(&[("gpu", "2")])), Taken::Nothing);
    }
}
