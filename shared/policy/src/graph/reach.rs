//! Checks whether the farm can ever run what a job asks for.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use model::{CommandStep, Graph, ImageReference};

use super::services::{contradiction, services_platform};
use crate::actions::{
    AdmitError, ENVIRONMENT_PROPERTY, INTERACTOR_OFFER, Offers, SERVICES_OFFER, admit, read_needs,
    with_environments,
};

/// Why a job cannot be run on this farm.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// No executor has ever registered a pool, so it is unknown what the farm can run.
    #[error("{at}: {}", AdmitError::NothingRegistered)]
    NothingRegistered {
        /// The first task that needs a pool.
        at: String,
    },
    /// No pool can ever run a task.
    #[error("{at}: {why}")]
    Refused {
        /// The path of the requirement in the job: `job.tasks[3] (link).platform`.
        at: String,
        /// The requirement, and the available values.
        why: String,
    },
}

/// The names of environments that the tasks of a job may mean.
pub fn asked_environments(graph: &Graph) -> BTreeSet<&str> {
    let commands = graph.indexed().filter_map(|(_, task)| task.step.as_command());
    commands.filter_map(|command| command.platform.get(ENVIRONMENT_PROPERTY)).map(String::as_str).collect()
}

/// Checks that some pool can run each command of a job; `environment` finds the image of an environment. Equal sets of requirements are checked once, for the first
/// task that has them.
pub fn reachable(
    graph: &Graph,
    offers: &Offers,
    environment: &dyn Fn(&str) -> Option<ImageReference>,
) -> Result<(), Unreachable> {
    let mut seen: HashSet<(&BTreeMap<String, String>, Option<Offer>)> = HashSet::new();
    for (at, task) in graph.indexed() {
        if let Some(command) = task.step.as_command()
            && seen.insert((command.platform.as_ref(), offer(command)))
        {
            let offered = offer(command).map(|(name, value)| (name.to_owned(), value.to_owned()));
            let asked = command.platform.iter().map(|(name, value)| (name.clone(), value.clone()));
            let place = graph.place(at);
            check(&place, ".platform", asked.chain(offered).collect(), offers, environment)?;
        }
    }
    if graph.services().is_empty() {
        return Ok(());
    }
    let at = "job.services";
    if let Some(why) = contradiction(graph) {
        return Err(Unreachable::Refused { at: at.to_owned(), why });
    }
    check(at, "", services_platform(graph), offers, environment)
}

/// A property and a value that executors offer.
type Offer = (&'static str, &'static str);

/// What an executor must offer for the other commands of a task; no task has both kinds.
fn offer(command: &CommandStep) -> Option<Offer> {
    let has_services = command.shared_services || !command.services.is_empty();
    let services = has_services.then_some(SERVICES_OFFER);
    services.or_else(|| command.interactor.as_ref().map(|_| INTERACTOR_OFFER))
}

/// Checks the platform at `place` of a job, in its field `field`.
fn check(
    place: &str,
    field: &str,
    platform: Vec<(String, String)>,
    offers: &Offers,
    environment: &dyn Fn(&str) -> Option<ImageReference>,
) -> Result<(), Unreachable> {
    let refused = |why: String| Unreachable::Refused { at: format!("{place}{field}"), why };
    let platform = with_environments(&platform, environment).unwrap_or(platform);
    let asked = read_needs(&platform, &[]).map_err(|invalid| refused(invalid.to_string()))?;
    match admit(&asked.platform, &asked.needs, offers) {
        Ok(_) => Ok(()),
        Err(AdmitError::NothingRegistered) => Err(Unreachable::NothingRegistered { at: place.to_owned() }),
        Err(AdmitError::Refused(refusal)) => Err(refused(refusal.message)),
    }
}

#[cfg(test)]
mod tests {
    use model::{Job, JobLimits, Pool, Resources};

    use super::*;

    fn pool(name: &str, properties: &[(&str, &str)]) -> Pool {
        let mut pool = Pool {
            name: name.parse().unwrap(),
            properties: BTreeMap::new(),
            root_is_input: false,
            capacity: Resources::new(4000, 8_000_000_000),
            executor_type: model::ExecutorType::x86(),
        };
        for (name, value) in properties {
            let values: &mut Vec<String> = pool.properties.entry((*name).to_owned()).or_default();
            values.push((*value).to_owned());
        }
        pool
    }

    fn reach(tasks: &str, pools: &[Pool]) -> Result<(), String> {
        let job: Job = serde_json::from_str(&format!(r#"{{"tasks": [{tasks}]}}"#)).unwrap();
        let graph = Graph::new(&job, &JobLimits::NONE).unwrap();
        let offers = Offers { present: pools.to_vec(), departed: Vec::new() };
        let gcc = |name: &str| (name == "gcc").then(|| "docker://a.b/gcc".parse().unwrap());
        reachable(&graph, &offers, &gcc).map_err(|error| error.to_string())
    }

    #[test]
    fn what_no_pool_offers_is_refused_with_what_is_on_offer_and_who_asks() {
        let pools = [pool("fast", &[("hwgroup", "group1")]), pool("slow", &[("hwgroup", "group2")])];
        let tasks = r#"{"id": "a", "command": ["x"], "platform": {"hwgroup": "group1|group7"}},
                       {"id": "b", "command": ["x"], "platform": {"hwgroup": "group9"}}"#;
        let error = reach(tasks, &pools).unwrap_err();
        assert!(error.starts_with("job.tasks[1] (b).platform: "), "{error}");
        for part in ["hwgroup", "group9", "group1", "group2"] {
            assert!(error.contains(part), "{part} is missing: {error}");
        }
    }

    #[test]
    fn an_environment_is_an_image_wherever_images_are_on_offer() {
        let task =
            |name: &str| format!(r#"{{"id": "a", "command": ["x"], "platform": {{"env": "{name}"}}}}"#);
        let images = [pool("default", &[("images", "on")])];
        assert_eq!(reach(&task("gcc"), &images), Ok(()));
        assert!(reach(&task("java"), &images).unwrap_err().contains("\"env\""));
        assert!(reach(&task("gcc"), &[pool("plain", &[])]).unwrap_err().contains("images"));
    }

    #[test]
    fn commands_beside_a_task_need_an_executor_that_runs_them() {
        let plain = [pool("plain", &[])];
        for (field, offered) in [
            (r#""interactor": {"command": ["judge"]}"#, "interactor"),
            (r#""services": [{"name": "db", "command": ["d"]}]"#, "services"),
        ] {
            let task =
                format!(r#"{{"id": "a", "command": ["x"]}}, {{"id": "b", "command": ["x"], {field}}}"#);
            let error = reach(&task, &plain).unwrap_err();
            assert!(error.starts_with("job.tasks[1] (b).platform: ") && error.contains(offered), "{error}");
            assert_eq!(reach(&task, &[pool("able", &[(offered, "on")])]), Ok(()));
        }
    }

    #[test]
    fn tasks_that_share_services_need_an_executor_for_all_of_them() {
        let job = |one: &str, other: &str| {
            let task = |id: &str, group: &str| {
                serde_json::json!({"id": id, "command": ["x"], "shared_services": true,
                    "platform": {"hwgroup": group}})
            };
            let job = serde_json::json!({"services": [{"name": "db", "command": ["d"]}],
                "tasks": [task("a", one), task("b", other)]});
            Graph::new(&serde_json::from_value(job).unwrap(), &JobLimits::NONE).unwrap()
        };
        let able = |group: &str| pool(group, &[("hwgroup", group), ("services", "on")]);
        let reach = |graph: &Graph, pools: &[Pool]| {
            let offers = Offers { present: pools.to_vec(), departed: Vec::new() };
            reachable(graph, &offers, &|_| None).map_err(|error| error.to_string())
        };
        let pools = [able("one"), able("two")];
        assert_eq!(reach(&job("one", "one|two"), &pools), Ok(()));
        let error = reach(&job("one", "two"), &pools).unwrap_err();
        assert!(error.starts_with("job.services: no pool offers hwgroup"), "{error}");
        let error = reach(&job("one", "one"), &[pool("one", &[("hwgroup", "one")])]).unwrap_err();
        assert!(error.starts_with("job.tasks[0] (a).platform: ") && error.contains("services"), "{error}");
    }

    #[test]
    fn sizes_count_and_nonsense_is_named() {
        let pools = [pool("default", &[])];
        let task = |platform: &str| format!(r#"{{"id": "a", "command": ["x"], "platform": {platform}}}"#);
        assert_eq!(reach(&task(r#"{"EstimatedCPU": "4"}"#), &pools), Ok(()));
        assert!(reach(&task(r#"{"EstimatedCPU": "5"}"#), &pools).unwrap_err().contains("EstimatedCPU"));
        assert!(
            reach(&task(r#"{"EstimatedCPU": "many"}"#), &pools).unwrap_err().contains("processors above 0")
        );
    }

    #[test]
    fn without_pools_only_internal_steps_can_be_done() {
        assert_eq!(reach(r#"{"id": "a", "make_folder": "x"}"#, &[]), Ok(()));
        let error =
            reach(r#"{"id": "a", "make_folder": "x"}, {"id": "b", "command": ["x"]}"#, &[]).unwrap_err();
        assert!(error.starts_with("job.tasks[1] (b): no executor has registered"), "{error}");
    }
}
