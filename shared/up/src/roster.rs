//! The list of running children: in `children.json` for the next `forebay up`, and in `endpoints.json` for users.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use model::Endpoints;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{folder::write_whole, names, process};

/// The list of running children. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Roster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    children_file: PathBuf,
    endpoints_file: PathBuf,
    boot: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    children: BTreeMap<String, Process>,
    endpoints: Option<Endpoints>,
}

/// The content of `children.json`.
#[derive(Debug, Serialize, Deserialize)]
struct ChildrenFile {
    boot_id: String,
    children: BTreeMap<String, Process>,
}

/// Identity of a process, unique between two boots of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Process {
    pid: u32,
    start_ticks: u64,
}

/// Time between SIGTERM and SIGKILL, in which services requeue their work and servers write their data.
const LEFTOVER_GRACE: Duration = Duration::from_secs(5);

impl Roster {
    /// An empty roster in the data folder `root`.
    pub(crate) fn new(root: &Path) -> Self {
        Self(Arc::new(Inner {
            children_file: root.join("children.json"),
            endpoints_file: root.join("endpoints.json"),
            boot: process::boot_id(),
            state: Mutex::default(),
        }))
    }

    /// Stops the processes that an earlier `forebay up` left running, services before servers.
    pub(crate) async fn end_leftovers(&self) {
        remove_file(&self.0.endpoints_file);
        let (servers, services): (Vec<_>, Vec<_>) = self
            .left()
            .into_iter()
            .partition(|(name, _)| [names::NATS, names::REDIS].contains(&name.as_str()));
        // First the watchdog, which would stop the others.
        let (watchdog, services): (Vec<_>, Vec<_>) =
            services.into_iter().partition(|(name, _)| name == names::WATCHDOG);
        for part in [watchdog, services, servers] {
            for (name, (pid, _)) in &part {
                warn!(name, pid, "stopping a process of an earlier `forebay up`");
            }
            let part: Vec<_> = part.into_iter().map(|(_, process)| process).collect();
            process::end_all(&part, LEFTOVER_GRACE).await;
        }
    }

    /// Listed processes that are still running: name, process id and start time.
    pub(crate) fn left(&self) -> Vec<(String, (u32, u64))> {
        let listed = match self.listed() {
            Ok(listed) => listed,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let path = self.0.children_file.display();
                    warn!(%path, %error, "cannot read which processes an earlier `forebay up` started");
                }
                return Vec::new();
            }
        };
        if listed.boot_id != self.0.boot {
            return Vec::new();
        }
        let lives = |process: &Process| process::start_of(process.pid) == Some(process.start_ticks);
        let living = listed.children.into_iter().filter(|(_, process)| lives(process));
        living.map(|(name, process)| (name, (process.pid, process.start_ticks))).collect()
    }

    fn listed(&self) -> io::Result<ChildrenFile> {
        Ok(serde_json::from_slice(&fs::read(&self.0.children_file)?)?)
    }

    /// Process ids of the workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let state = self.0.state.lock();
        let workers = state.children.iter().filter(|(name, _)| names::is_worker(name));
        workers.map(|(_, process)| process.pid).collect()
    }

    /// Adds a started child.
    pub(crate) fn started(&self, name: &str, pid: u32) {
        // A child that has already exited has no start time and needs no clean-up.
        let Some(start_ticks) = process::start_of(pid) else { return };
        let mut state = self.0.state.lock();
        state.children.insert(name.to_owned(), Process { pid, start_ticks });
        self.write(&mut state);
    }

    /// Removes a child that has exited.
    pub(crate) fn ended(&self, name: &str) {
        let mut state = self.0.state.lock();
        state.children.remove(name);
        self.write(&mut state);
    }

    /// Process id of a child, if it is running.
    pub(crate) fn pid(&self, name: &str) -> Option<u32> {
        self.0.state.lock().children.get(name).map(|process| process.pid)
    }

    /// Sets the URL of a child's metrics, or removes it.
    pub(crate) fn shows_metrics(&self, name: &str, url: Option<String>) {
        let mut state = self.0.state.lock();
        if let Some(endpoints) = &mut state.endpoints {
            match url {
                Some(url) => {
                    endpoints.metrics.insert(name.to_owned(), url);
                }
                None => {
                    endpoints.metrics.remove(name);
                }
            }
            self.write(&mut state);
        }
    }

    /// Writes `endpoints.json` for users, and keeps it up to date until `withdraw`. Returns its content.
    pub(crate) fn publish(&self, mut endpoints: Endpoints) -> io::Result<Endpoints> {
        let mut state = self.0.state.lock();
        endpoints.processes = pids(&state.children);
        write_json(&self.0.endpoints_file, &endpoints)?;
        state.endpoints = Some(endpoints.clone());
        Ok(endpoints)
    }

    /// Removes `endpoints.json`: users can no longer find the farm.
    pub(crate) fn withdraw(&self) {
        self.0.state.lock().endpoints = None;
        remove_file(&self.0.endpoints_file);
    }

    /// Removes `children.json` after all children have exited.
    pub(crate) fn close(&self) {
        remove_file(&self.0.children_file);
    }

    fn write(&self, state: &mut State) {
        let listed = ChildrenFile { boot_id: self.0.boot.clone(), children: state.children.clone() };
        let mut written = write_json(&self.0.children_file, &listed);
        if let Some(endpoints) = &mut state.endpoints {
            endpoints.processes = pids(&state.children);
            written = written.and(write_json(&self.0.endpoints_file, endpoints));
        }
        if let Err(error) = written {
            warn!(%error, "cannot write the list of children; a later `forebay up` may not find them");
        }
    }
}

/// Removes a file. A missing file is not an error.
fn remove_file(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        warn!(path = %path.display(), %error, "cannot remove a file");
    }
}

fn pids(children: &BTreeMap<String, Process>) -> BTreeMap<String, u32> {
    children.iter().map(|(name, process)| (name.clone(), process.pid)).collect()
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    write_whole(path, &text)
}
