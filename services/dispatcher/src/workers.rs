//! Records what heartbeats and events say about workers: which workspaces are idle, for which builds they are warm, and what
//! the workers offer. Hints only: the index decides whether a workspace is idle, its worker whether it is warm.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, LazyLock},
    time::Duration,
};

use bus::Stored;
use index::{Change, Heads, IndexEvent};
use model::{
    BuildRecord, BuildRequirements, Heartbeat, WorkerId, WorkerProperties, WorkerStatus, Workspace,
    WorkspaceKeys, WorkspaceState, WorkspaceUse,
};
use parking_lot::Mutex;
use policy::{
    Supplied, Supply, can_run,
    workspace::{Assignment, IdleWorkspaces, Wish, live_keys},
};
use tokio::time::Instant;
use tracing::debug;

/// Maximum number of idle workspaces with the same properties that a pass considers beyond the sample of the index.
const SUPPLIED_MAX: usize = 64;

/// Properties of a worker whose heartbeat has not arrived yet.
static UNKNOWN: LazyLock<WorkerProperties> = LazyLock::new(WorkerProperties::default);

/// Shared by the loops of a dispatcher.
#[derive(Clone, Default)]
pub(crate) struct Workers(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    idle: IdleWorkspaces<Workspace>,
    workers: HashMap<WorkerId, Worker>,
}

/// A live worker, as of its last heartbeat.
struct Worker {
    offers: Arc<WorkerProperties>,
    workspaces: usize,
    /// Whether it is ready, or will be once its disk has room and its store answers.
    accepts_builds: bool,
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
        for (slot, state) in (0_u16..).zip(&heartbeat.workspaces) {
            let workspace = Workspace { worker: heartbeat.worker.clone(), slot };
            match (heartbeat.status, state) {
                (WorkerStatus::Ready, WorkspaceState::Idle { warm }) => {
                    known.idle.insert(workspace, warm.clone());
                }
                (WorkerStatus::Draining | WorkerStatus::Full | WorkerStatus::Gone, _)
                | (WorkerStatus::Ready, WorkspaceState::Busy { .. } | WorkspaceState::Broken) => {
                    known.idle.remove(&workspace);
                }
            }
        }
        is_new
    }

    /// Applies lifecycle events: between two heartbeats they are the only source about a workspace.
    pub(crate) fn follow<'a>(
        &self,
        events: impl Iterator<Item = (&'a IndexEvent, Option<&'a WorkspaceKeys>)>,
    ) {
        let mut known = self.0.lock();
        for (event, keys) in events {
            match &event.change {
                Change::Started { workspace, .. } => known.idle.remove(workspace),
                Change::Finished { workspace: Some(workspace), .. } => {
                    known.idle.insert(workspace.clone(), keys.cloned());
                }
                Change::Finished { workspace: None, .. } | Change::Enqueued { .. } => {}
            }
        }
    }

    /// Removes a workspace that was given to a build, or was found not to be idle.
    pub(crate) fn remove(&self, workspace: &Workspace) {
        self.0.lock().idle.remove(workspace);
    }

    /// The workspaces for the builds in `heads`: the sample of the index, and known idle ones that can run those with
    /// requirements, if there are any.
    pub(crate) fn available(&self, heads: &Heads) -> Available {
        let builds = heads.groups.iter().flat_map(|head| &head.builds);
        let required: BTreeSet<&BuildRequirements> =
            builds.map(|build| &build.traits.requirements).filter(|required| !required.is_empty()).collect();
        if required.is_empty() {
            return Available { workspaces: heads.idle.clone(), supply: None };
        }
        let mut known = self.0.lock();
        known.forget_departed(Instant::now());
        known.supply(&heads.idle, &required)
    }

    /// Chooses workspaces for `builds`, from the `idle` ones and those that are warm.
    pub(crate) fn assign(
        &self,
        builds: &[Wish<'_>],
        idle: Vec<Workspace>,
    ) -> Vec<Option<Assignment<Workspace>>> {
        let known = self.0.lock();
        known.idle.assign(builds, idle, |workspace| known.offers(&workspace.worker))
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
        let worker = Worker {
            offers,
            workspaces: heartbeat.workspaces.len(),
            accepts_builds: heartbeat.status != WorkerStatus::Draining,
            until: Instant::now() + Duration::from_millis(heartbeat.ttl_ms),
        };
        self.workers.insert(heartbeat.worker.clone(), worker);
        is_new
    }

    fn forget_departed(&mut self, now: Instant) {
        self.workers.retain(|_, worker| worker.until > now);
    }

    fn offers(&self, worker: &WorkerId) -> &WorkerProperties {
        self.workers.get(worker).map_or(&*UNKNOWN, |worker| &worker.offers)
    }

    /// The `sample` with further idle workspaces whose workers meet one of `required`.
    fn supply(&self, sample: &[Workspace], required: &BTreeSet<&BuildRequirements>) -> Available {
        let mut kinds: HashMap<&WorkerProperties, Supplied> = HashMap::new();
        for worker in self.workers.values().filter(|worker| worker.accepts_builds) {
            let new = || Supplied { offers: Arc::clone(&worker.offers), idle: 0, busy: 0 };
            kinds.entry(&*worker.offers).or_insert_with(new).busy += worker.workspaces;
        }
        let able: HashSet<&WorkerProperties> = kinds
            .keys()
            .copied()
            .filter(|offers| required.iter().any(|required| can_run(offers, required)))
            .collect();
        let mut workspaces = sample.to_vec();
        let mut chosen: HashSet<&Workspace> = sample.iter().collect();
        let mut count = |workspace: &Workspace| {
            let offers = self.offers(&workspace.worker);
            let new = || Supplied { offers: Arc::new(offers.clone()), idle: 0, busy: 0 };
            let kind = kinds.entry(offers).or_insert_with(new);
            kind.idle += 1;
            kind.busy = kind.busy.saturating_sub(1);
            kind.idle
        };
        for workspace in sample {
            count(workspace);
        }
        let mut full: HashSet<&WorkerProperties> = HashSet::new();
        for workspace in self.idle.ids() {
            let offers = self.offers(&workspace.worker);
            if able.contains(offers) && !full.contains(offers) && chosen.insert(workspace) {
                workspaces.push(workspace.clone());
                if count(workspace) >= SUPPLIED_MAX {
                    full.insert(offers);
                }
            }
        }
        Available { workspaces, supply: Some(Supply::of(kinds.into_values())) }
    }
}

/// The keys that an ended build leaves for the next build in its workspace, from its lifecycle message.
pub(crate) fn left_by(stored: &Stored, requested: WorkspaceUse) -> Option<WorkspaceKeys> {
    if requested.is_fresh() {
        return None;
    }
    let record = stored.record().inspect_err(|error| {
        debug!(error = telemetry::error_chain(error), "cannot read what a build left in its workspace");
    });
    let record: BuildRecord = record.ok()?;
    // Without an exit code it was killed, together with everything that it left running.
    record.result()?.exit_code?;
    // Without a kind, no warm workspace was requested, and nothing is left.
    record.invocation()?.workspace_kind?;
    Some(live_keys(&record.build).workspace)
}
