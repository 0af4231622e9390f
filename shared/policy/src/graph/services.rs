//! The services that tasks of a job share: where they run, when they start and stop, and what follows from their end.

use std::collections::BTreeSet;

use model::{Graph, TaskIndex};

use super::GraphRun;
use crate::actions::{
    CACHE_PROPERTY, ENVIRONMENT_PROPERTY, EXCLUSIVE_PROPERTY, IMAGE_OFFER, IMAGE_PROPERTY,
    INTERACTOR_PROPERTY, MEASURED_PROPERTY, SERVICES_PROPERTY, SHARED_SERVICES_PROPERTY, names_image,
    services_value,
};

/// Properties that say how a task runs, not where.
const OF_THE_RUN: [&str; 6] = [
    CACHE_PROPERTY,
    EXCLUSIVE_PROPERTY,
    INTERACTOR_PROPERTY,
    MEASURED_PROPERTY,
    SERVICES_PROPERTY,
    SHARED_SERVICES_PROPERTY,
];

/// Codes of `google.rpc.Code` that say nothing about what was executed: the same may succeed elsewhere.
const CANCELLED: i32 = 1;
const UNKNOWN: i32 = 2;
const ABORTED: i32 = 10;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;

/// The platform properties of the execution that runs the shared services of a job: the services themselves, and what its
/// executor must offer so that it can also run all tasks that use them.
pub fn services_platform(graph: &Graph) -> Vec<(String, String)> {
    let asked = graph.users_of_services().flat_map(|(_, command)| command.platform.iter());
    let placing = asked.filter(|(name, _)| !OF_THE_RUN.iter().any(|other| name.eq_ignore_ascii_case(other)));
    let property = |(name, value): (&String, &String)| {
        // The executor must run images; the services have their own.
        if name.eq_ignore_ascii_case(IMAGE_PROPERTY) && names_image(value) {
            (IMAGE_OFFER.0.to_owned(), IMAGE_OFFER.1.to_owned())
        } else {
            (name.clone(), value.clone())
        }
    };
    let services = (SERVICES_PROPERTY.to_owned(), services_value(graph.services()));
    let all: BTreeSet<(String, String)> = placing.map(property).chain([services]).collect();
    all.into_iter().collect()
}

/// Why the tasks that share services have no executor in common; `None` if only the pools decide that.
pub(super) fn contradiction(graph: &Graph) -> Option<String> {
    let environment =
        |(name, value): (&String, &String)| (name == ENVIRONMENT_PROPERTY).then(|| value.clone());
    let users = graph.users_of_services();
    let names: BTreeSet<String> =
        users.flat_map(|(_, command)| command.platform.iter().filter_map(environment)).collect();
    (names.len() > 1).then(|| {
        let names: Vec<String> = names.into_iter().collect();
        format!("the tasks that share them name several environments ({}): expected one", names.join(", "))
    })
}

/// How the execution that runs shared services ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServicesEnd {
    /// They were stopped after their use.
    Stopped,
    /// A service failed: another start would find the same.
    Failed,
    /// Their executor was lost or gave them up: they may start elsewhere.
    Lost,
}

impl ServicesEnd {
    /// The end of an execution with this status, a value of `google.rpc.Code`.
    pub fn of(code: i32) -> Self {
        match code {
            0 => Self::Stopped,
            CANCELLED | UNKNOWN | ABORTED | INTERNAL | UNAVAILABLE => Self::Lost,
            _ => Self::Failed,
        }
    }
}

/// The number of a start of the services, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServicesStart(u32);

/// What a task does that is to use the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServicesUse {
    /// It starts them, and uses that start.
    Start(ServicesStart),
    /// It uses this start.
    Join(ServicesStart),
    /// It fails, because a service failed.
    Fail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServicesState {
    /// They do not run: they have not started yet, were lost, or were stopped.
    Off,
    On,
    Failed,
}

/// The shared services of one run of a job.
#[derive(Debug)]
pub struct ServicesRun {
    state: ServicesState,
    starts: u32,
    /// Tasks that succeeded with the services, in the order of their ends.
    succeeded: Vec<TaskIndex>,
    /// Tasks that use them, without some that have ended.
    users: Vec<TaskIndex>,
}

impl ServicesRun {
    /// The services of a job of which no task has started.
    pub fn new(graph: &Graph) -> Self {
        let users = graph.users_of_services().map(|(at, _)| at).collect();
        Self { state: ServicesState::Off, starts: 0, succeeded: Vec::new(), users }
    }

    /// What a task does that uses them and starts now.
    pub fn begin(&mut self) -> ServicesUse {
        match self.state {
            ServicesState::Off => {
                self.state = ServicesState::On;
                self.starts = self.starts.saturating_add(1);
                ServicesUse::Start(ServicesStart(self.starts))
            }
            ServicesState::On => ServicesUse::Join(ServicesStart(self.starts)),
            ServicesState::Failed => ServicesUse::Fail,
        }
    }

    /// Records how a start of them ended. Returns whether it was the current one.
    pub fn ended(&mut self, start: ServicesStart, end: ServicesEnd) -> bool {
        let is_current = self.state == ServicesState::On && start.0 == self.starts;
        if is_current {
            self.state = match end {
                ServicesEnd::Failed => ServicesState::Failed,
                ServicesEnd::Stopped | ServicesEnd::Lost => ServicesState::Off,
            };
        }
        is_current
    }

    /// Records that a task succeeded with them.
    pub fn succeeded(&mut self, task: TaskIndex) {
        if !self.succeeded.contains(&task) {
            self.succeeded.push(task);
        }
    }

    /// The tasks that run again before any other uses a new start of the services, one after another: those that had succeeded
    /// with an earlier one, of which nothing is left in the services.
    pub fn replays(&self) -> &[TaskIndex] {
        &self.succeeded
    }

    /// Whether the services run although all tasks that use them have ended.
    pub fn are_done(&mut self, run: &GraphRun) -> bool {
        while self.users.last().is_some_and(|task| run.report(*task).is_some()) {
            self.users.pop();
        }
        self.users.is_empty() && self.state == ServicesState::On
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Job, JobLimits, TaskReport, TaskStatus};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        actions::{asked_services, read_needs},
        requirements::matches,
    };

    /// Whether a task shares the service, and its platform.
    type Asked<'a> = (bool, &'a [(String, String)]);

    /// A job with a task for each platform, of which those with `true` share a service.
    fn graph(tasks: &[Asked<'_>]) -> Graph {
        let task = |(at, (shares, platform)): (usize, &Asked<'_>)| {
            let platform: std::collections::BTreeMap<&String, &String> =
                platform.iter().map(|(name, value)| (name, value)).collect();
            serde_json::json!({"id": format!("t{at}"), "command": ["x"], "shared_services": shares,
                "platform": platform})
        };
        let tasks: Vec<serde_json::Value> = tasks.iter().enumerate().map(task).collect();
        let job = serde_json::json!({"services": [{"name": "db", "command": ["d"]}], "tasks": tasks});
        let job: Job = serde_json::from_value(job).unwrap();
        Graph::new(&job, &JobLimits::NONE).unwrap()
    }

    fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn services_are_placed_by_what_places_the_tasks_that_use_them() {
        let (one, other) = (
            pairs(&[("hwgroup", "a|b"), ("exclusive", "true"), ("container-image", "docker://h.b/c:1")]),
            pairs(&[("hwgroup", "b|c"), ("container-image", "docker://h.b/d:1"), ("EstimatedCPU", "2")]),
        );
        let unrelated = pairs(&[("hwgroup", "z")]);
        let platform = services_platform(&graph(&[(true, &one), (false, &unrelated), (true, &other)]));
        assert_eq!(asked_services(&platform).unwrap().len(), 1);
        let asked = read_needs(&platform, &[]).unwrap();
        assert!(!asked.needs.exclusive && asked.needs.cpu_millis == Some(2000));
        let wanted = [("hwgroup", "a|b"), ("hwgroup", "b|c"), ("images", "on"), ("services", "on")];
        let found: BTreeSet<(String, String)> = asked.platform.into_iter().collect();
        assert_eq!(found, pairs(&wanted).into_iter().collect());
    }

    #[test]
    fn tasks_that_share_services_name_one_environment() {
        let env = |name: &str| pairs(&[("env", name)]);
        let (c, java) = (env("c"), env("java"));
        assert_eq!(contradiction(&graph(&[(true, &c), (true, &c), (false, &java)])), None);
        assert!(contradiction(&graph(&[(true, &c), (true, &java)])).unwrap().contains("c, java"));
    }

    fn properties() -> impl Strategy<Value = Vec<(String, String)>> {
        let hwgroup = prop::sample::subsequence(vec!["a", "b", "c"], 1..3).prop_map(|it| it.join("|"));
        let other = prop::collection::btree_map("[p-r]", "[x-y]", 0..3);
        (prop::option::of(hwgroup), other).prop_map(|(hwgroup, other)| {
            let hwgroup = hwgroup.map(|value| ("hwgroup".to_owned(), value));
            hwgroup.into_iter().chain(other).collect()
        })
    }

    proptest! {
        #[test]
        fn an_executor_for_the_services_can_run_every_task_that_uses_them(
            tasks in prop::collection::vec((any::<bool>(), properties()), 1..5),
            mut offered in properties(),
        ) {
            let tasks: Vec<Asked<'_>> = std::iter::once((true, &[][..]))
                .chain(tasks.iter().map(|(shares, platform)| (*shares, platform.as_slice())))
                .collect();
            offered.push(("services".to_owned(), "on".to_owned()));
            let meets = |platform: &[(String, String)]| {
                let asked = read_needs(platform, &[]).unwrap().platform;
                let asked: Vec<(&str, &str)> =
                    asked.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                // A hardware group is one of those that an executor may have.
                let values = |name: &str| {
                    let of_name: Vec<&str> = offered
                        .iter()
                        .filter(|(other, _)| other == name)
                        .flat_map(|(_, value)| value.split('|'))
                        .collect();
                    of_name.into_iter()
                };
                matches(asked, values)
            };
            let all = tasks.iter().filter(|(shares, _)| *shares).all(|(_, platform)| meets(platform));
            prop_assert_eq!(meets(&services_platform(&graph(&tasks))), all);
        }

        #[test]
        fn one_start_runs_at_a_time_and_a_failure_is_the_last(
            steps in prop::collection::vec((0_u8..5, 0_usize..3), 0..40),
        ) {
            let graph = graph(&[(true, &[]), (true, &[]), (true, &[])]);
            let tasks: Vec<TaskIndex> = graph.users_of_services().map(|(at, _)| at).collect();
            let mut services = ServicesRun::new(&graph);
            let (mut current, mut last, mut failed) = (None, None, false);
            let mut succeeded: Vec<TaskIndex> = Vec::new();
            for (step, at) in steps {
                let end = match step {
                    0 => {
                        match services.begin() {
                            ServicesUse::Start(start) => {
                                prop_assert!(current.is_none() && !failed && Some(start) > last);
                                (current, last) = (Some(start), Some(start));
                            }
                            ServicesUse::Join(start) => prop_assert_eq!(current, Some(start)),
                            ServicesUse::Fail => prop_assert!(failed),
                        }
                        continue;
                    }
                    1 => {
                        services.succeeded(tasks[at]);
                        if !succeeded.contains(&tasks[at]) {
                            succeeded.push(tasks[at]);
                        }
                        continue;
                    }
                    2 => ServicesEnd::Lost,
                    3 => ServicesEnd::Stopped,
                    _ => ServicesEnd::Failed,
                };
                if let Some(start) = last {
                    let was_current = services.ended(start, end);
                    prop_assert_eq!(was_current, current.is_some());
                    failed |= was_current && end == ServicesEnd::Failed;
                    current = None;
                }
            }
            prop_assert_eq!(services.replays(), &succeeded[..]);
        }

        #[test]
        fn services_stop_when_the_last_task_that_uses_them_has_ended(
            shares in prop::collection::vec(any::<bool>(), 1..6),
            order in any::<u64>(),
        ) {
            let tasks: Vec<Asked<'_>> =
                std::iter::once(true).chain(shares).map(|shares| (shares, &[][..])).collect();
            let graph = Arc::new(graph(&tasks));
            let mut run = GraphRun::new(graph.clone());
            let mut services = ServicesRun::new(&graph);
            let mut running: Vec<TaskIndex> = std::iter::from_fn(|| run.start_next()).collect();
            services.begin();
            let mut random = order;
            while !running.is_empty() {
                let left = running.iter().any(|at| tasks[at.get()].0);
                prop_assert_eq!(services.are_done(&run), !left);
                let task = running.remove(usize::try_from(random % running.len() as u64).unwrap());
                random = random.rotate_right(7);
                let id = graph.task(task).unwrap().id.clone();
                run.ended(task, TaskReport::new(id, TaskStatus::Failed));
            }
            prop_assert!(services.are_done(&run));
            services.ended(ServicesStart(1), ServicesEnd::Stopped);
            prop_assert!(!services.are_done(&run));
        }
    }

    #[test]
    fn a_failure_is_not_repeated_and_a_loss_is() {
        for (code, end) in [
            (0, ServicesEnd::Stopped),
            (4, ServicesEnd::Failed),
            (9, ServicesEnd::Failed),
            (14, ServicesEnd::Lost),
            (1, ServicesEnd::Lost),
        ] {
            assert_eq!(ServicesEnd::of(code), end, "{code}");
        }
    }
}
