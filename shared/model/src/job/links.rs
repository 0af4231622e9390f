//! Links between the tasks of a job: makers of paths, dependencies, and the resulting order.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet},
};

use invariant::{Present as _, impossible};

use super::{
    conditions::{Contradiction, NamedConditions},
    location::{FieldFault, TaskLocation},
};
use crate::{CommandStep, Graph, Input, InvalidJob, JobFault, JobPath, Step, Task, TaskIndex};

/// Maximum number of tasks of a cycle that a message names.
const CYCLE_SHOWN: usize = 20;
/// Maximum number of dependencies of all tasks together, named and implied.
const LINKS_MAX: usize = 4_000_000;

/// Builds the graph of `tasks`, whose dependencies are those named tasks that must succeed; `conditions` are the others.
pub(super) fn graph(mut tasks: Vec<Task>, conditions: Vec<NamedConditions>) -> Result<Graph, InvalidJob> {
    let implied = implied(&tasks, &conditions)?;
    let mut contradiction = None;
    for (at, ((task, implied), named)) in tasks.iter_mut().zip(implied).zip(conditions).enumerate() {
        task.dependencies.extend(implied);
        task.dependencies.sort_unstable();
        task.dependencies.dedup();
        match named.resolve(&mut task.dependencies) {
            Ok(conditions) => task.conditions = conditions,
            Err(found) => {
                contradiction = Some((at, found));
                break;
            }
        }
    }
    if let Some((at, found)) = contradiction {
        return Err(contradicted(&tasks, at, found));
    }
    check_fatal(&tasks)?;
    let mut dependants: Vec<Vec<TaskIndex>> = vec![Vec::new(); tasks.len()];
    for (at, task) in tasks.iter().enumerate() {
        for dependency in &task.dependencies {
            if let Some(waiting) = dependants.get_mut(dependency.get()) {
                waiting.push(TaskIndex::at(at));
            } else {
                impossible!("task {at} depends on task {}, which is not in the job", dependency.get());
            }
        }
    }
    for (task, dependants) in tasks.iter_mut().zip(dependants) {
        task.dependants = dependants;
    }
    let order = order(&tasks)?;
    Ok(Graph { tasks, order, services: Vec::new() })
}

/// The error for a task whose conditions can never be met.
fn contradicted(tasks: &[Task], at: usize, found: Contradiction) -> InvalidJob {
    let id = |task: TaskIndex| tasks.get(task.get()).map(|task| task.id.to_string()).unwrap_or_default();
    let fault = match found {
        Contradiction::BothWays(task) => JobFault::BothWays(id(task)),
        Contradiction::AllFail(task) => JobFault::AnyFails(id(task)),
    };
    wrong_dependencies(tasks, at, fault)
}

/// Rejects tasks that wait for a failure which ends the job.
fn check_fatal(tasks: &[Task]) -> Result<(), InvalidJob> {
    for (at, task) in tasks.iter().enumerate() {
        let failed = task.conditions.as_ref().map_or(&[][..], |conditions| conditions.failed());
        let mut failed = failed.iter().filter_map(|failed| tasks.get(failed.get()));
        if let Some(failed) = failed.find(|failed| failed.fatal) {
            return Err(wrong_dependencies(tasks, at, JobFault::FatalFails(failed.id.to_string())));
        }
    }
    Ok(())
}

fn wrong_dependencies(tasks: &[Task], at: usize, fault: JobFault) -> InvalidJob {
    let field = "dependencies";
    match tasks.get(at) {
        Some(task) => TaskLocation { at, id: &task.id }.wrong(FieldFault::new(field, fault)),
        None => InvalidJob { at: format!("job.tasks[{at}].{field}"), fault },
    }
}

/// The tasks that make the inputs of each task.
fn implied(tasks: &[Task], conditions: &[NamedConditions]) -> Result<Vec<Vec<TaskIndex>>, InvalidJob> {
    let makers = Makers::of(tasks)?;
    let mut implied = Vec::with_capacity(tasks.len());
    let mut links = 0;
    for (at, (task, conditions)) in tasks.iter().zip(conditions).enumerate() {
        let found = makers.of_inputs(TaskIndex::at(at), task);
        links += task.dependencies.len() + conditions.len() + found.len();
        if links > LINKS_MAX {
            let fault = JobFault::TooManyDependencies { most: LINKS_MAX };
            return Err(wrong_dependencies(tasks, at, fault));
        }
        implied.push(found);
    }
    Ok(implied)
}

/// Maker of each path.
struct Makers<'a>(HashMap<&'a str, Maker>);

enum Maker {
    /// Task that makes the files, or owns the folder.
    Sole(TaskIndex),
    /// Tasks that may add to the same folder.
    Shared(Vec<TaskIndex>),
}

impl<'a> Makers<'a> {
    fn of(tasks: &'a [Task]) -> Result<Self, InvalidJob> {
        let mut makers = Self(HashMap::new());
        for (at, task) in tasks.iter().enumerate() {
            let mut add = |field: String, path: &'a JobPath, together: bool| {
                let Some(first) = makers.add(TaskIndex::at(at), path, together) else { return Ok(()) };
                let id = tasks.get(first.get()).map(|first| &first.id);
                let id = id.present_or(&task.id, "the task that makes a path first").clone();
                let fault = JobFault::SameOutput { path: path.to_string(), first: first.get(), id };
                Err(TaskLocation { at, id: &task.id }.wrong(FieldFault(field, fault)))
            };
            match &task.step {
                Step::Command(command) => {
                    let mut outputs = command.outputs.iter();
                    outputs.try_for_each(|path| add("outputs".to_owned(), path, false))?;
                }
                Step::Fetch { to, .. } => add("fetch.to".to_owned(), to, false)?,
                Step::Copy { to, .. } => add("copy.to".to_owned(), to, false)?,
                Step::Archive { to, .. } => add("archive.to".to_owned(), to, false)?,
                Step::Rename { to, .. } => add("rename.to".to_owned(), to, false)?,
                Step::Truncate { to, .. } => add("truncate.to".to_owned(), to, false)?,
                Step::Extract { to, .. } => add("extract.to".to_owned(), to, true)?,
                Step::MakeFolder(path) => add("make_folder".to_owned(), path, true)?,
                Step::Remove(_) | Step::Exists { .. } | Step::Compare(_) => {}
            }
        }
        Ok(makers)
    }

    /// Records that `task` makes `path`; returns the task that already makes it and does not share it.
    fn add(&mut self, task: TaskIndex, path: &'a JobPath, together: bool) -> Option<TaskIndex> {
        match self.0.get_mut(path.as_str()) {
            Some(Maker::Shared(tasks)) if together => {
                tasks.push(task);
                None
            }
            Some(Maker::Shared(tasks)) => tasks.first().copied(),
            Some(Maker::Sole(first)) => Some(*first),
            None => {
                let made = if together { Maker::Shared(vec![task]) } else { Maker::Sole(task) };
                self.0.insert(path.as_str(), made);
                None
            }
        }
    }

    /// The other tasks that make an input of `task`: the path itself, or a folder that contains it. Tasks that add to
    /// a shared folder do not depend on each other because of that folder, which would be a cycle.
    fn of_inputs(&self, own: TaskIndex, task: &'a Task) -> Vec<TaskIndex> {
        let mut found = Vec::new();
        // A folder that contains many inputs counts once.
        let mut seen = HashSet::new();
        let adds_to = match &task.step {
            Step::Extract { to, .. } => Some(to.as_str()),
            Step::Command(_)
            | Step::Fetch { .. }
            | Step::Archive { .. }
            | Step::Copy { .. }
            | Step::Rename { .. }
            | Step::Truncate { .. }
            | Step::MakeFolder(_)
            | Step::Remove(_)
            | Step::Exists { .. }
            | Step::Compare(_) => None,
        };
        let mut add = |path: &'a JobPath| {
            for path in path.with_folders() {
                let Some(made) = self.0.get(path).filter(|_| seen.insert(path)) else { continue };
                match made {
                    Maker::Sole(maker) => found.push(*maker),
                    Maker::Shared(_) if Some(path) == adds_to => {}
                    Maker::Shared(makers) => found.extend(makers),
                }
            }
        };
        match &task.step {
            Step::Command(command) => {
                let CommandStep { inputs, folder, compare, interactor, .. } = command.as_ref();
                let of_interactor = interactor.iter().flat_map(|interactor| &interactor.inputs);
                for input in inputs.iter().chain(of_interactor) {
                    match input {
                        Input::Path(path) => add(path),
                        Input::Glob(_) => {}
                    }
                }
                add(folder);
                if let Some(compare) = compare {
                    add(&compare.expected);
                }
            }
            Step::Compare(compare) => {
                add(&compare.found);
                add(&compare.expected);
            }
            Step::Extract { from, .. }
            | Step::Archive { from, .. }
            | Step::Copy { from, .. }
            | Step::Rename { from, .. }
            | Step::Truncate { from, .. }
            | Step::Remove(from)
            | Step::Exists { path: from, .. } => add(from),
            Step::Fetch { .. } | Step::MakeFolder(_) => {}
        }
        found.retain(|maker| *maker != own);
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Dependencies first, then by priority, then as in the job.
fn order(tasks: &[Task]) -> Result<Vec<TaskIndex>, InvalidJob> {
    let mut missing: Vec<usize> = tasks.iter().map(|task| task.dependencies.len()).collect();
    let ready = |at: TaskIndex| tasks.get(at.get()).map(|task| (task.priority, Reverse(at)));
    let free = missing.iter().enumerate().filter(|(_, missing)| **missing == 0);
    let mut heap: BinaryHeap<(i32, Reverse<TaskIndex>)> =
        free.filter_map(|(at, _)| ready(TaskIndex::at(at))).collect();
    let mut order = Vec::with_capacity(tasks.len());
    while let Some((_, Reverse(at))) = heap.pop() {
        order.push(at);
        for dependant in tasks.get(at.get()).into_iter().flat_map(|task| &task.dependants) {
            let Some(left) = missing.get_mut(dependant.get()) else {
                impossible!("dependant {} is not in the job", dependant.get());
                continue;
            };
            *left -= 1;
            if *left == 0 {
                heap.extend(ready(*dependant));
            }
        }
    }
    if order.len() == tasks.len() { Ok(order) } else { Err(cycle(tasks, &missing)) }
}

/// A cycle among the tasks that still have unmet dependencies.
fn cycle(tasks: &[Task], missing: &[usize]) -> InvalidJob {
    // Every task with an unmet dependency depends on another such task, so that following these links
    // must reach a cycle.
    let is_stuck = |at: &TaskIndex| missing.get(at.get()).is_some_and(|missing| *missing > 0);
    let first = |at: TaskIndex| tasks.get(at.get())?.dependencies.iter().copied().find(is_stuck);
    let mut seen: HashMap<TaskIndex, usize> = HashMap::new();
    let mut path: Vec<TaskIndex> = Vec::new();
    let mut at = missing.iter().position(|missing| *missing > 0).map(TaskIndex::at);
    while let Some(task) = at {
        if let Some(start) = seen.insert(task, path.len()) {
            path.drain(..start);
            break;
        }
        path.push(task);
        at = first(task);
    }
    // The message starts with the task that comes first in the job.
    let lowest = path.iter().enumerate().min_by_key(|(_, task)| **task).map_or(0, |(at, _)| at);
    path.rotate_left(lowest);
    let ids: Vec<&str> =
        path.iter().filter_map(|at| tasks.get(at.get())).map(|task| task.id.as_str()).collect();
    let shown = ids.iter().copied().take(CYCLE_SHOWN).collect::<Vec<_>>().join(" -> ");
    let more = ids.len().saturating_sub(CYCLE_SHOWN);
    let more = if more == 0 { String::new() } else { format!(" -> ({more} more)") };
    let start = ids.first().copied().present("the first task of a cycle");
    let place = path
        .first()
        .and_then(|at| tasks.get(at.get()).map(|task| TaskLocation { at: at.get(), id: &task.id }));
    let at = place.map_or_else(|| "job.tasks".to_owned(), |place| place.to_string());
    InvalidJob {
        at: format!("{at}.dependencies"),
        fault: JobFault::Cycle(format!("{shown}{more} -> {start}")),
    }
}
