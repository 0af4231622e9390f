//! Records what heartbeats and events say about workers: which workspaces are idle, for which builds they are warm, and what
//! the workers offer. Hints only: the index decides whether a workspace is idle, its worker whether it is warm.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use index::Change;
use model::{
    BuildKey, BuildRequirements, Heartbeat, WorkerCounts, WorkerId, WorkerProperties, WorkerStatus,
    Workspace, WorkspaceState,
};
use parking_lot::Mutex;
use policy::{
    Supplied, Supply, WorkspaceCounts, can_run,
    workspace::{Assignment, IdleWorkspaces, Wish},
    workspace_counts,
};
use tokio::time::Instant;

use crate::{avoided::Avoided, records::BuildEvent};

/// Maximum number of idle workspaces of workers that offer the same that a pass considers beyond the sample of the index.
const SUPPLIED_MAX: usize = 64;
/// Maximum number of idle workspaces that a pass considers.
const WORKSPACES_MAX: usize = 1024;
/// Interval of the check for workers that died without a message.
const DEPARTED_TICK: Duration = Duration::from_secs(10);

/// Properties of a worker whose heartbeat has not arrived yet.
static UNKNOWN: LazyLock<Arc<WorkerProperties>> = LazyLock::new(Arc::default);

/// Shared by the loops of a dispatcher.
#[derive(Clone, Default)]
pub(crate) struct Workers(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    idle: IdleWorkspaces<Workspace>,
    workers: HashMap<WorkerId, Worker>,
    /// The build that ended last in each workspace.
    ended: HashMap<Workspace, BuildKey>,
    avoided: Avoided,
    /// Time of the last check for workers that died without a message.
    looked: Option<Instant>,
}

/// A live worker, as of its last heartbeat.
struct Worker {
    status: WorkerStatus,
    offers: Arc<WorkerProperties>,
    /// Number of its workspaces that run a build or could run one.
    workspaces: usize,
    until: Instant,
}

/// The workspaces that a pass may assign.
pub(crate) struct Available {
    pub(crate) workspaces: Vec<Workspace>,
    /// Their number by what their workers offer; `None` if no waiting build requires anything.
    pub(crate) supply: Option<Supply>,
}

impl Workers {
    /// Updates what is known of a worker from its heartbeat; returns whether it offers something that was not known.
    pub(crate) fn announce(&self, heartbeat: &Heartbeat) -> bool {
        let mut known = self.0.lock();
        let is_new = known.update(heartbeat);
        known.forget_departed(Instant::now());
        for (slot, state) in (0_u16..).zip(&heartbeat.workspaces) {
            let workspace = Workspace { worker: heartbeat.worker.clone(), slot };
            match (heartbeat.status, state) {
                // The heartbeat is older than the end of the build that it names.
                (WorkerStatus::Ready, WorkspaceState::Busy { group, id })
                    if known
                        .ended
                        .get(&workspace)
                        .is_some_and(|key| key.group == *group && key.id == *id) => {}
                (WorkerStatus::Ready, WorkspaceState::Idle { warm }) => {
                    known.idle.insert(workspace, warm.clone());
                }
                (WorkerStatus::Draining | WorkerStatus::Full | WorkerStatus::Gone, _)
                | (
                    WorkerStatus::Ready,
                    WorkspaceState::Busy { .. } | WorkspaceState::Closed { .. } | WorkspaceState::Broken,
                ) => {
                    known.idle.remove(&workspace);
                }
            }
        }
        is_new
    }

    /// Applies lifecycle events: between two heartbeats they are the only source about a workspace.
    pub(crate) fn follow(&self, events: &[BuildEvent]) {
        let mut known = self.0.lock();
        for BuildEvent { event, left, avoid } in events {
            match &event.change {
                Change::Started { workspace, .. } => known.idle.remove(workspace),
                Change::Finished { workspace, .. } => {
                    known.avoided.remove(&event.key);
                    if let Some(workspace) = workspace {
                        known.ended.insert(workspace.clone(), event.key.clone());
                        known.idle.insert(workspace.clone(), left.clone());
                    }
                }
                Change::Enqueued { .. } => {
                    if let Some(worker) = avoid {
                        known.avoided.add(&event.key, worker);
                    }
                }
            }
        }
    }

    /// For each of the builds, the workers that must not run it: they gave it back, and another worker that accepts builds can
    /// run it. `None`: no build avoids any.
    pub(crate) fn avoided<'a>(
        &self,
        builds: impl Iterator<Item = Option<(BuildKey, &'a BuildRequirements)>>,
    ) -> Option<Vec<Vec<WorkerId>>> {
        let known = self.0.lock();
        if known.avoided.is_empty() {
            return None;
        }
        let now = Instant::now();
        let of = |(key, requirements): (BuildKey, &BuildRequirements)| {
            let avoided = known.avoided.of(&key);
            let is_other = |(id, worker): (&WorkerId, &Worker)| {
                worker.until > now
                    && worker.status == WorkerStatus::Ready
                    && !avoided.contains(id)
                    && can_run(&worker.offers, requirements)
            };
            if !avoided.is_empty() && known.workers.iter().any(is_other) {
                avoided.to_vec()
            } else {
                Vec::new()
            }
        };
        Some(builds.map(|build| build.map(of).unwrap_or_default()).collect())
    }

    /// Numbers of live workers.
    pub(crate) fn counts(&self) -> WorkerCounts {
        let mut counts = WorkerCounts::default();
        let now = Instant::now();
        for worker in self.0.lock().workers.values().filter(|worker| worker.until > now) {
            match worker.status {
                WorkerStatus::Ready => counts.ready += 1,
                WorkerStatus::Draining => counts.draining += 1,
                WorkerStatus::Full => counts.full += 1,
                WorkerStatus::Gone => {}
            }
        }
        counts
    }

    /// Removes a workspace that was given to a build, or was found not to be idle.
    pub(crate) fn remove(&self, workspace: &Workspace) {
        self.0.lock().idle.remove(workspace);
    }

    /// The workspaces for builds of which some have one of `required`: the `sample` of the index, and other idle ones
    /// whose workers can run these.
    pub(crate) fn available(
        &self,
        sample: &[Workspace],
        required: &BTreeSet<BuildRequirements>,
    ) -> Available {
        if required.is_empty() {
            return Available { workspaces: sample.to_vec(), supply: None };
        }
        self.0.lock().supply(sample, required, Instant::now())
    }

    /// Chooses workspaces for `builds`, from the `idle` ones and those that are warm.
    pub(crate) fn assign(
        &self,
        builds: &[Wish<'_>],
        idle: Vec<Workspace>,
    ) -> Vec<Option<Assignment<Workspace>>> {
        let known = self.0.lock();
        known.idle.assign(builds, idle, |it| known.offers(&it.worker), |it, worker| it.worker == *worker)
    }
}

impl Known {
    /// Returns whether the worker is new, or offers something new.
    fn update(&mut self, heartbeat: &Heartbeat) -> bool {
        if heartbeat.status == WorkerStatus::Gone {
            self.workers.remove(&heartbeat.worker);
            return false;
        }
        let known = self.workers.get(&heartbeat.worker);
        let known = known.filter(|known| *known.offers == heartbeat.properties);
        let is_new = known.is_none();
        let offers = match known {
            Some(known) => Arc::clone(&known.offers),
            // Workers that offer the same share one copy.
            None => match self.workers.values().find(|known| *known.offers == heartbeat.properties) {
                Some(other) => Arc::clone(&other.offers),
                None => Arc::new(heartbeat.properties.clone()),
            },
        };
        let WorkspaceCounts { idle, busy } = workspace_counts(heartbeat);
        let worker = Worker {
            status: heartbeat.status,
            offers,
            workspaces: idle + busy,
            until: Instant::now() + Duration::from_millis(heartbeat.ttl_ms),
        };
        self.workers.insert(heartbeat.worker.clone(), worker);
        is_new
    }

    /// Forgets workers that died without a message, with their workspaces.
    fn forget_departed(&mut self, now: Instant) {
        if self.looked.is_some_and(|looked| now < looked + DEPARTED_TICK) {
            return;
        }
        self.looked = Some(now);
        self.workers.retain(|_, worker| worker.until > now);
        let workers = &self.workers;
        let gone = self.idle.ids().filter(|workspace| !workers.contains_key(&workspace.worker));
        let gone: Vec<Workspace> = gone.cloned().collect();
        for workspace in gone {
            self.idle.remove(&workspace);
        }
        self.ended.retain(|workspace, _| workers.contains_key(&workspace.worker));
    }

    fn offers(&self, worker: &WorkerId) -> &Arc<WorkerProperties> {
        self.workers.get(worker).map_or(&*UNKNOWN, |worker| &worker.offers)
    }

    /// The `sample` with further idle workspaces whose workers meet one of `required`.
    fn supply(
        &self,
        sample: &[Workspace],
        required: &BTreeSet<BuildRequirements>,
        now: Instant,
    ) -> Available {
        let mut kinds = SuppliedKinds::default();
        let live = self.workers.values().filter(|worker| worker.until > now);
        for worker in live {
            kinds.of(&worker.offers).busy += worker.workspaces;
        }
        let meets = |kind: &Supplied| required.iter().any(|required| can_run(&kind.offers, required));
        let able: HashSet<usize> =
            kinds.0.iter().filter(|(_, kind)| meets(kind)).map(|(key, _)| *key).collect();
        let mut workspaces = sample.to_vec();
        for workspace in sample {
            kinds.of(self.offers(&workspace.worker)).add_idle();
        }
        let chosen: HashSet<&Workspace> = sample.iter().collect();
        for workspace in self.idle.ids().filter(|workspace| !chosen.contains(workspace)) {
            if workspaces.len() >= WORKSPACES_MAX {
                break;
            }
            let offers = self.offers(&workspace.worker);
            let kind = kinds.of(offers);
            if able.contains(&address(offers)) && kind.idle < SUPPLIED_MAX {
                kind.add_idle();
                workspaces.push(workspace.clone());
            }
        }
        Available { workspaces, supply: Some(Supply::of(kinds.0.into_values())) }
    }
}

/// Workspaces by what their workers offer; workers that offer the same share one copy of it.
#[derive(Default)]
struct SuppliedKinds(HashMap<usize, Supplied>);

impl SuppliedKinds {
    fn of(&mut self, offers: &Arc<WorkerProperties>) -> &mut Supplied {
        let new = || Supplied { offers: Arc::clone(offers), idle: 0, busy: 0 };
        self.0.entry(address(offers)).or_insert_with(new)
    }
}

fn address(offers: &Arc<WorkerProperties>) -> usize {
    Arc::as_ptr(offers) as usize
}

#[cfg(test)]
mod tests {
    use model::{BuildId, Millis, Sequence, WarmKey, WorkspaceKeys};

    use super::*;

    fn heartbeat(worker: &str, group: &str, workspaces: Vec<WorkspaceState>) -> Heartbeat {
        Heartbeat {
            worker: worker.parse().unwrap(),
            host: String::new(),
            pid: 1,
            started_at_ms: Millis(0),
            status: WorkerStatus::Ready,
            short: None,
            window: model::WindowState::default(),
            properties: WorkerProperties([("hwgroup".to_owned(), vec![group.to_owned()])].into()),
            workspaces,
            ttl_ms: 10_000,
            clock_skew_ms: None,
        }
    }

    fn workspace(worker: &str, slot: u16) -> Workspace {
        Workspace { worker: worker.parse().unwrap(), slot }
    }

    fn requires(group: &str) -> BuildRequirements {
        BuildRequirements([("hwgroup".to_owned(), group.to_owned())].into())
    }

    const IDLE: WorkspaceState = WorkspaceState::Idle { warm: None };

    fn available(workers: &Workers, group: &str) -> Vec<Workspace> {
        workers.available(&[], &[requires(group)].into()).workspaces
    }

    #[tokio::test(start_paused = true)]
    async fn builds_with_requirements_get_idle_workspaces_of_live_workers_that_meet_them() {
        let workers = Workers::default();
        assert!(workers.announce(&heartbeat("a", "a", vec![IDLE])));
        assert!(workers.announce(&heartbeat("b", "b", vec![IDLE, WorkspaceState::Broken])));
        assert!(!workers.announce(&heartbeat("b", "b", vec![IDLE, WorkspaceState::Broken])), "nothing new");
        assert_eq!(available(&workers, "b"), [workspace("b", 0)]);
        assert_eq!(available(&workers, "a|b").len(), 2);
        let sample = [workspace("a", 0)];
        let none = workers.available(&sample, &BTreeSet::new());
        assert!(none.workspaces == sample && none.supply.is_none(), "nothing is required");
        tokio::time::advance(Duration::from_secs(11)).await;
        workers.announce(&heartbeat("a", "a", vec![IDLE]));
        assert_eq!(available(&workers, "b"), [], "it died without a message");
        assert_eq!(workers.counts(), WorkerCounts { ready: 1, ..WorkerCounts::default() });
        let draining = Heartbeat { status: WorkerStatus::Draining, ..heartbeat("a", "a", vec![IDLE]) };
        workers.announce(&draining);
        assert_eq!(workers.counts(), WorkerCounts { draining: 1, ..WorkerCounts::default() });
        let Available { workspaces, supply } = workers.available(&[], &[requires("a")].into());
        assert!(workspaces.is_empty() && !supply.unwrap().has_any(&requires("a")));
    }

    #[test]
    fn a_heartbeat_that_is_older_than_the_end_of_a_build_hides_no_warm_workspace() {
        let workers = Workers::default();
        workers.announce(&heartbeat("a", "a", vec![IDLE]));
        let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
        let ended = index::IndexEvent {
            key: key.clone(),
            sequence: Sequence(2),
            change: Change::Finished { ended_at: Millis(0), workspace: Some(workspace("a", 0)), only: false },
        };
        let left = WorkspaceKeys { exact: WarmKey(1), version: WarmKey(2), prefixes: BTreeSet::new() };
        workers.follow(&[BuildEvent { event: ended, left: Some(left), avoid: None }]);
        let busy = |id| WorkspaceState::Busy { group: key.group.clone(), id };
        workers.announce(&heartbeat("a", "a", vec![busy(key.id)]));
        assert_eq!(available(&workers, "a"), [workspace("a", 0)]);
        workers.announce(&heartbeat("a", "a", vec![busy(BuildId::generate())]));
        assert_eq!(available(&workers, "a"), [], "another build runs there");
    }
}
