//! Checks whether the farm can ever run what a job asks for.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use model::{CommandStep, Graph, ImageReference, TaskIndex};

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
            check(graph, at, command, offers, environment)?;
        }
    }
    Ok(())
}

/// A property and a value that executors offer.
type Offer = (&'static str, &'static str);

/// What an executor must offer for the other commands of a task; no task has both kinds.
fn offer(command: &CommandStep) -> Option<Offer> {
    let services = (!command.services.is_empty()).then_some(SERVICES_OFFER);
    services.or_else(|| command.interactor.as_ref().map(|_| INTERACTOR_OFFER))
}

fn check(
    graph: &Graph,
    at: TaskIndex,
    command: &CommandStep,
    offers: &Offers,
    environment: &dyn Fn(&str) -> Option<ImageReference>,
) -> Result<(), Unreachable> {
    let refused = |why: String| Unreachable::Refused { at: format!("{}.platform", graph.place(at)), why };
    let offered = offer(command).map(|(name, value)| (name.to_owned(), value.to_owned()));
    let asked = command.platform.iter().map(|(name, value)| (name.clone(), value.clone()));
    let platform: Vec<(String, String)> = asked.chain(offered).collect();
    let platform = with_environments(&platform, environment).unwrap_or(platform);
    let asked = read_needs(&platform, &[]).map_err(|invalid| refused(invalid.to_string()))?;
    match admit(&asked.platform, &asked.needs, offers) {
        Ok(_) => Ok(()),
        Err(AdmitError::NothingRegistered) => Err(Unreachable::NothingRegistered { at: graph.place(at) }),
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
