//! Encodes a task's command as an action.

use std::collections::HashMap;

use invariant::Present as _;
use model::{BlobDigest, CommandLimits, CommandStep, Interactor, JobPath, RESERVED_FOLDER, SharedServicesId};
use policy::actions::{
    INTERACTOR_PROPERTY, MEASURED_PROPERTY, SERVICES_PROPERTY, SHARED_SERVICES_PROPERTY, interactor_value,
    limits::properties, may_have_image, services_value,
};
use reapi::{
    canonical::{encode, sort_command, sort_platform},
    digest::to_proto,
    execution::{Action, Command, Platform, command::EnvironmentVariable, platform::Property},
};
use remote::Source;

use crate::tree::FUNCTION;

/// Default search path of programs: a task gets no variables from the worker.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// An action and its blobs, except the input root.
#[derive(Debug, Clone)]
pub(crate) struct TaskAction {
    /// Digest of the action.
    pub(crate) digest: BlobDigest,
    /// The encoded action and command.
    pub(crate) blobs: HashMap<BlobDigest, Source>,
}

/// Which run of a task's command an action is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ActionRun {
    /// The number of one of several runs of a measured command, from 1.
    repeated: Option<u32>,
    /// The services that it shares with other tasks.
    services: Option<SharedServicesId>,
}

impl ActionRun {
    /// The only run of a command.
    pub(crate) const ONCE: Self = Self { repeated: None, services: None };

    /// The only run of a command that uses shared services.
    pub(crate) fn beside(services: SharedServicesId) -> Self {
        Self { services: Some(services), ..Self::ONCE }
    }

    /// The same as one of several runs of a measured command, numbered from 1.
    pub(crate) fn numbered(self, number: u32) -> Self {
        Self { repeated: Some(number), ..self }
    }

    /// Makes each run of a command another action.
    fn salt(self) -> Vec<u8> {
        self.repeated.map(|number| format!("run {number}").into_bytes()).unwrap_or_default()
    }

    /// What it asks of the farm beside what its task asks.
    fn properties(self) -> impl Iterator<Item = (String, String)> {
        let measured = self.repeated.map(|_| (MEASURED_PROPERTY.to_owned(), "true".to_owned()));
        measured.into_iter().chain(self.services.map(of_services))
    }
}

/// The property of what runs or uses the services with this id.
fn of_services(id: SharedServicesId) -> (String, String) {
    (SHARED_SERVICES_PROPERTY.to_owned(), id.to_string())
}

/// The action that runs shared services, which are in its platform. They see no files of the job.
pub(crate) fn services_action(platform: Vec<(String, String)>, id: SharedServicesId) -> TaskAction {
    // An action has a command; this one is never run.
    let command = Command { arguments: vec!["true".to_owned()], ..Command::default() };
    let (command_digest, command) = encode(&command, FUNCTION);
    let action = Action {
        command_digest: Some(to_proto(&command_digest)),
        input_root_digest: Some(to_proto(&FUNCTION.empty())),
        platform: platform_of(platform.into_iter().chain([of_services(id)])),
        do_not_cache: true,
        ..Action::default()
    };
    let (digest, action) = encode(&action, FUNCTION);
    let blobs = [(command_digest, Source::Bytes(command)), (digest, Source::Bytes(action))];
    TaskAction { digest, blobs: blobs.into_iter().collect() }
}

/// The action of `step` over an input root.
pub(crate) fn action_of(step: &CommandStep, input_root: &BlobDigest, run: ActionRun) -> TaskAction {
    let limits = step.limits_of_a_run();
    let (command_digest, command) = encode(&command(step), FUNCTION);
    let action = Action {
        command_digest: Some(to_proto(&command_digest)),
        input_root_digest: Some(to_proto(input_root)),
        timeout: limits.longest_wall_ms().map(duration),
        platform: platform(step, &limits, run),
        do_not_cache: !step.cache,
        salt: run.salt(),
    };
    let (digest, action) = encode(&action, FUNCTION);
    let blobs = [(command_digest, Source::Bytes(command)), (digest, Source::Bytes(action))];
    TaskAction { digest, blobs: blobs.into_iter().collect() }
}

fn command(step: &CommandStep) -> Command {
    let variable =
        |(name, value): (&String, &String)| EnvironmentVariable { name: name.clone(), value: value.clone() };
    let mut variables: Vec<EnvironmentVariable> = step.env.iter().map(variable).collect();
    // An image has its own.
    let has_image = may_have_image(step.platform.keys().map(String::as_str));
    if !step.env.contains_key("PATH") && !has_image {
        variables.push(EnvironmentVariable { name: "PATH".to_owned(), value: PATH.to_owned() });
    }
    let mut command = Command {
        arguments: step.argv.clone(),
        environment_variables: variables,
        output_paths: step.outputs.iter().map(|path| relative(&step.folder, path)).collect(),
        working_directory: step.folder.as_str().to_owned(),
        ..Command::default()
    };
    sort_command(&mut command);
    command
}

/// `path` relative to `folder`; both are relative to the workspace.
pub(crate) fn relative(folder: &JobPath, path: &JobPath) -> String {
    let (from, to): (Vec<&str>, Vec<&str>) = (folder.names().collect(), path.names().collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", from.len() - common);
    let names: Vec<&str> = up.chain(to.into_iter().skip(common)).collect();
    names.join("/")
}

fn platform(step: &CommandStep, limits: &CommandLimits, run: ActionRun) -> Option<Platform> {
    let asked = step.platform.iter().map(|(name, value)| (name.clone(), value.clone()));
    let services =
        (!step.services.is_empty()).then(|| (SERVICES_PROPERTY.to_owned(), services_value(&step.services)));
    let interactor = step.interactor.as_ref().map(|step| {
        // Where the job's files of the command cannot be.
        let folder = (!step.inputs.is_empty()).then(|| RESERVED_FOLDER.to_owned());
        let interactor = Interactor { folder, ..step.interactor.clone() };
        (INTERACTOR_PROPERTY.to_owned(), interactor_value(&interactor))
    });
    let asked = asked.chain(services).chain(interactor);
    platform_of(asked.chain(run.properties()).chain(properties(limits)))
}

fn platform_of(properties: impl Iterator<Item = (String, String)>) -> Option<Platform> {
    let properties: Vec<Property> = properties.map(|(name, value)| Property { name, value }).collect();
    if properties.is_empty() {
        return None;
    }
    let mut platform = Platform { properties };
    sort_platform(&mut platform);
    Some(platform)
}

fn duration(ms: u64) -> reapi::protobuf::Duration {
    reapi::protobuf::Duration {
        seconds: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
        nanos: i32::try_from(ms % 1000 * 1_000_000).present("the nanoseconds of less than one second"),
    }
}

/// In the Remote Execution API a lower priority runs earlier; the default priority of a task is 1, which is 0 there.
pub(crate) fn priority(task: i32) -> i32 {
    1_i32.saturating_sub(task)
}

#[cfg(test)]
mod tests {
    use model::{Graph, Job, JobLimits, Step};

    use super::*;

    fn step(task: &serde_json::Value) -> CommandStep {
        let job: Job = serde_json::from_value(serde_json::json!({ "tasks": [task] })).unwrap();
        let graph = Graph::new(&job, &JobLimits::NONE).unwrap();
        let Step::Command(command) = &graph.tasks()[0].step else { panic!() };
        (**command).clone()
    }

    #[test]
    fn paths_are_named_from_where_the_command_starts() {
        for (folder, path, expected) in
            [(".", "a/b", "a/b"), ("a", "a/b", "b"), ("a/b", "a/c/d", "../c/d"), ("x/y", "z", "../../z")]
        {
            let (folder, path) = (JobPath::parse(folder).unwrap(), JobPath::parse(path).unwrap());
            assert_eq!(relative(&folder, &path), expected);
        }
    }

    #[test]
    fn all_that_changes_the_outcome_changes_the_digest_and_nothing_else_does() {
        let root = FUNCTION.empty();
        let task = serde_json::json!({"id": "a", "command": ["x"], "outputs": ["b", "a"]});
        let digest = |name: &str, value: serde_json::Value| {
            let mut task = task.clone();
            task[name] = value;
            action_of(&step(&task), &root, ActionRun::ONCE).digest
        };
        let same = action_of(&step(&task), &root, ActionRun::ONCE).digest;
        assert_eq!(digest("id", "other".into()), same);
        assert_eq!(digest("priority", 7.into()), same);
        assert_eq!(digest("outputs", serde_json::json!(["a", "./b"])), same);
        for (name, value) in [
            ("command", serde_json::json!(["y"])),
            ("env", serde_json::json!({"A": "1"})),
            ("folder", "f".into()),
            ("limits", serde_json::json!({"wall_ms": 1500})),
            ("limits", serde_json::json!({"memory_bytes": 1_000_000})),
            ("platform", serde_json::json!({"OSFamily": "linux"})),
            ("services", serde_json::json!([{"name": "db", "command": ["d"]}])),
            ("interactor", serde_json::json!({"command": ["j"]})),
            ("cache", false.into()),
        ] {
            assert_ne!(digest(name, value), same, "{name}");
        }
    }

    #[test]
    fn each_run_of_a_measured_command_is_another_action_that_is_not_cached() {
        let measured = step(&serde_json::json!({
            "id": "a", "command": ["x"], "limits": {"wall_ms": 1000, "cpu_ms": 300}, "measure": {"runs": 3}
        }));
        let decoded = |run| {
            let made = action_of(&measured, &FUNCTION.empty(), run);
            let Some(Source::Bytes(bytes)) = made.blobs.get(&made.digest) else { panic!() };
            <Action as prost::Message>::decode(bytes.clone()).unwrap()
        };
        let (first, second) = (decoded(ActionRun::ONCE.numbered(1)), decoded(ActionRun::ONCE.numbered(2)));
        assert!(first.do_not_cache && second.do_not_cache);
        assert_ne!(first.salt, second.salt);
        assert_eq!(first.timeout.as_ref().map(|timeout| timeout.seconds), Some(2), "the limit times 2");
        let asked = first.platform.iter().flat_map(|platform| &platform.properties);
        let asked: Vec<_> = asked.map(|one| (one.name.as_str(), one.value.as_str())).collect();
        assert_eq!(asked, [("limit-cpu-ms", "600"), ("measured", "true")]);
        assert_eq!(Action { salt: first.salt.clone(), ..second }, first, "nothing else differs");
    }

    #[test]
    fn each_start_of_services_is_another_action_and_so_is_what_uses_it() {
        let (one, other) = (SharedServicesId::generate(), SharedServicesId::generate());
        let platform = vec![("Pool".to_owned(), "p".to_owned())];
        let started = |id| services_action(platform.clone(), id).digest;
        assert_ne!(started(one), started(other));
        let task = step(&serde_json::json!({"id": "a", "command": ["x"]}));
        let used = |run| action_of(&task, &FUNCTION.empty(), run).digest;
        assert_ne!(used(ActionRun::beside(one)), used(ActionRun::beside(other)));
        assert_ne!(used(ActionRun::beside(one)), used(ActionRun::beside(one).numbered(1)));
        assert_eq!(used(ActionRun::beside(one)), used(ActionRun::beside(one)));
    }

    #[test]
    fn the_higher_is_the_earlier() {
        assert_eq!([priority(1), priority(10), priority(-3)], [0, -9, 4]);
        assert!(priority(i32::MIN) == i32::MAX);
    }
}
