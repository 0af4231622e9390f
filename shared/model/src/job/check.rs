//! From a job as it is written to a graph: checks each task independently of the others.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::{
    conditions::NamedConditions,
    graph::{DEFAULT_PRIORITY, DEFAULT_RETRIES, DEFAULT_WEIGHT},
    links,
    location::{FieldFault, TaskLocation},
};
use crate::{
    BadPath, CommandLimits, CommandStep, Compare, Dependency, ExistsStep, FetchSource, FetchStep, FromTo,
    Graph, Input, Interactor, InteractorRequest, InteractorStep, InvalidJob, Job, JobFault, JobGlob,
    JobLimits, JobPath, MeasurePlan, RenameStep, ServiceRequest, Step, Task, TaskId, TaskIndex, TaskLimits,
    TaskRequest, TruncateStep,
};

/// Maximum number of retries of a task.
const RETRIES_MAX: u32 = 100;
/// Maximum weight of a judge's score.
const WEIGHT_MAX: u32 = 1_000_000;

/// Prefix of the platform properties that represent an action's limits.
const LIMIT_PREFIX: &str = "limit-";

/// Environment variables or platform properties.
type NamedValues = BTreeMap<String, String>;

impl Graph {
    /// Checks a job in time proportional to its size.
    pub fn new(job: &Job, limits: &JobLimits) -> Result<Self, InvalidJob> {
        let wrong = |at: &str, fault| Err(InvalidJob { at: at.to_owned(), fault });
        let most = limits.tasks_max.min(u32::MAX as usize);
        match job.tasks.len() {
            0 => return wrong("job.tasks", JobFault::Empty),
            tasks if tasks > most => return wrong("job.tasks", JobFault::TooManyTasks { tasks, most }),
            _ => {}
        }
        check_services(job)?;
        let defaults = Defaults::new(job, limits)?;
        let ids = ids(&job.tasks)?;
        let mut tasks = Vec::with_capacity(job.tasks.len());
        let mut conditions = Vec::with_capacity(job.tasks.len());
        for (at, request) in job.tasks.iter().enumerate() {
            let place = TaskLocation { at, id: &request.id };
            let mut task = task(request, &defaults, limits).map_err(|wrong| place.wrong(wrong))?;
            let (required, others) = dependencies(request, &ids).map_err(|wrong| place.wrong(wrong))?;
            task.dependencies = required;
            tasks.push(task);
            conditions.push(others);
        }
        Ok(Self { services: job.services.clone(), ..links::graph(tasks, conditions)? })
    }
}

/// Defaults that every task starts from.
struct Defaults {
    env: Arc<NamedValues>,
    platform: Arc<NamedValues>,
    limits: TaskLimits,
    retries: u32,
    /// Whether the job has services that its tasks may share.
    services: bool,
}

impl Defaults {
    fn new(job: &Job, limits: &JobLimits) -> Result<Self, InvalidJob> {
        let given = &job.defaults;
        let checked = || {
            check_env(&given.env)?;
            check_platform(&given.platform)?;
            check_limits("limits", given.limits, limits.task_max)?;
            retries(given.retries)
        };
        let retries = checked()
            .map_err(|FieldFault(field, fault)| InvalidJob { at: format!("job.defaults.{field}"), fault })?;
        Ok(Self {
            env: Arc::new(given.env.clone()),
            platform: Arc::new(given.platform.clone()),
            limits: given.limits,
            retries: retries.unwrap_or(DEFAULT_RETRIES),
            services: !job.services.is_empty(),
        })
    }
}

/// Checks the services that tasks share.
fn check_services(job: &Job) -> Result<(), InvalidJob> {
    let wrong = |fault| InvalidJob { at: "job.services".to_owned(), fault };
    ServiceRequest::check_all(&job.services).map_err(|fault| wrong(fault.into()))?;
    let is_used = job.tasks.iter().any(|task| task.shared_services);
    if job.services.is_empty() || is_used { Ok(()) } else { Err(wrong(JobFault::UnusedServices)) }
}

/// Index of each task id.
fn ids(tasks: &[TaskRequest]) -> Result<HashMap<&TaskId, TaskIndex>, InvalidJob> {
    let mut ids: HashMap<&TaskId, TaskIndex> = HashMap::with_capacity(tasks.len());
    for (at, task) in tasks.iter().enumerate() {
        if let Some(first) = ids.insert(&task.id, TaskIndex::at(at)) {
            let fault = JobFault::DuplicateId { id: task.id.to_string(), first: first.get() };
            return Err(InvalidJob { at: format!("job.tasks[{at}].id"), fault });
        }
    }
    Ok(ids)
}

/// The tasks that must succeed before `task`, and its other conditions.
fn dependencies(
    task: &TaskRequest,
    ids: &HashMap<&TaskId, TaskIndex>,
) -> Result<(Vec<TaskIndex>, NamedConditions), FieldFault> {
    let (mut required, mut conditions) =
        (Vec::with_capacity(task.dependencies.len()), NamedConditions::default());
    for (at, dependency) in task.dependencies.iter().enumerate() {
        let find = |more: &str, id: &TaskId| {
            let unknown = || {
                let fault = JobFault::UnknownDependency(id.to_string());
                FieldFault(format!("dependencies[{at}]{more}"), fault)
            };
            ids.get(id).copied().ok_or_else(unknown)
        };
        match dependency {
            Dependency::Succeeded(id) => required.push(find("", id)?),
            Dependency::Failed { failed } => conditions.failed.push(find(".failed", failed)?),
            Dependency::Any { any } if any.is_empty() => {
                return Err(FieldFault::at("dependencies", at, JobFault::EmptyAny));
            }
            Dependency::Any { any } => {
                let group = any.iter().enumerate().map(|(at, id)| find(&format!(".any[{at}]"), id));
                conditions.any.push(group.collect::<Result<_, _>>()?);
            }
        }
    }
    Ok((required, conditions))
}

/// Builds the task without its dependencies.
fn task(request: &TaskRequest, defaults: &Defaults, limits: &JobLimits) -> Result<Task, FieldFault> {
    if request.judge && request.compare.is_some() {
        return Err(FieldFault::new("judge", JobFault::TwoJudges));
    }
    let judge = match (request.judge || request.compare.is_some(), request.weight) {
        (false, Some(_)) => return Err(FieldFault::new("weight", JobFault::NeedsJudge)),
        (true, Some(weight)) if weight > WEIGHT_MAX => {
            return Err(out_of_range("weight", weight, WEIGHT_MAX));
        }
        (true, weight) => Some(weight.unwrap_or(DEFAULT_WEIGHT)),
        (false, None) => None,
    };
    Ok(Task {
        id: request.id.clone(),
        step: step(request, defaults, limits)?,
        dependencies: Vec::new(),
        conditions: None,
        dependants: Vec::new(),
        priority: request.priority.unwrap_or(DEFAULT_PRIORITY),
        retries: retries(request.retries)?.unwrap_or(defaults.retries),
        fatal: request.fatal,
        judge,
    })
}

fn step(request: &TaskRequest, defaults: &Defaults, limits: &JobLimits) -> Result<Step, FieldFault> {
    let named = [
        ("command", !request.command.is_empty()),
        ("fetch", request.fetch.is_some()),
        ("extract", request.extract.is_some()),
        ("archive", request.archive.is_some()),
        ("copy", request.copy.is_some()),
        ("rename", request.rename.is_some()),
        ("truncate", request.truncate.is_some()),
        ("make_folder", request.make_folder.is_some()),
        ("remove", request.remove.is_some()),
        ("exists", request.exists.is_some()),
        ("compare", request.compare.is_some() && request.command.is_empty()),
    ];
    let named: Vec<&str> = named.into_iter().filter_map(|(name, given)| given.then_some(name)).collect();
    if named.len() != 1 {
        let found = if named.is_empty() {
            "it has no step".to_owned()
        } else {
            format!("it has {}", named.join(" and "))
        };
        return Err(FieldFault::new("", JobFault::Steps { found }));
    }
    if request.command.is_empty() {
        only_commands(request)?;
    }
    match internal_step(request)? {
        Some(step) => Ok(step),
        None => command(request, defaults, limits).map(|command| Step::Command(Box::new(command))),
    }
}

/// The step of a task without a command.
fn internal_step(request: &TaskRequest) -> Result<Option<Step>, FieldFault> {
    if let Some(fetch) = &request.fetch {
        return Ok(Some(Step::Fetch { from: fetch_source(fetch)?, to: path_inside("fetch.to", &fetch.to)? }));
    }
    if let Some(FromTo { from, to }) = &request.extract {
        let to = JobPath::parse_in_job(to).map_err(|bad| FieldFault::new("extract.to", bad))?;
        return Ok(Some(Step::Extract { from: path_inside("extract.from", from)?, to }));
    }
    if let Some(FromTo { from, to }) = &request.copy {
        let (from, to) = (path_inside("copy.from", from)?, path_inside("copy.to", to)?);
        return Ok(Some(Step::Copy { from, to }));
    }
    if let Some(FromTo { from, to }) = &request.archive {
        let (from, to) = (path_inside("archive.from", from)?, path_inside("archive.to", to)?);
        return Ok(Some(Step::Archive { from, to }));
    }
    if let Some(RenameStep { from, to, replace }) = &request.rename {
        let (from, to) = (path_inside("rename.from", from)?, path_inside("rename.to", to)?);
        let is_in = |inner: &JobPath, outer: &JobPath| inner.with_folders().any(|it| it == outer.as_str());
        if is_in(&from, &to) || is_in(&to, &from) {
            let (from, to) = (from.to_string(), to.to_string());
            return Err(FieldFault::new("rename.to", JobFault::MoveIntoItself { from, to }));
        }
        return Ok(Some(Step::Rename { from, to, replace: *replace }));
    }
    if let Some(TruncateStep { from, to, bytes }) = &request.truncate {
        let (from, to) = (path_inside("truncate.from", from)?, path_inside("truncate.to", to)?);
        return Ok(Some(Step::Truncate { from, to, bytes: *bytes }));
    }
    if let Some(ExistsStep { path, kind }) = &request.exists {
        return Ok(Some(Step::Exists { path: path_inside("exists.path", path)?, kind: *kind }));
    }
    if let Some(path) = &request.make_folder {
        return Ok(Some(Step::MakeFolder(path_inside("make_folder", path)?)));
    }
    if let Some(path) = &request.remove {
        return Ok(Some(Step::Remove(path_inside("remove", path)?)));
    }
    if let Some(compare) = request.compare.as_ref().filter(|_| request.command.is_empty()) {
        return Ok(Some(Step::Compare(Box::new(Compare::new(compare)?))));
    }
    Ok(None)
}

/// Where `fetch` finds its file.
fn fetch_source(fetch: &FetchStep) -> Result<FetchSource, FieldFault> {
    match fetch {
        FetchStep { url: Some(_), size_bytes: Some(_), .. } => {
            Err(FieldFault::new("fetch.size_bytes", JobFault::SizeOfUrl))
        }
        FetchStep { url: Some(url), digest, size_bytes: None, .. } => {
            check_url(url)?;
            Ok(FetchSource::Url { url: url.clone(), digest: digest.clone() })
        }
        FetchStep { url: None, digest: Some(digest), size_bytes, .. } => {
            Ok(FetchSource::Store { digest: digest.clone(), size_bytes: *size_bytes })
        }
        FetchStep { url: None, digest: None, .. } => Err(FieldFault::new("fetch", JobFault::NoSource)),
    }
}

/// Rejects fields that an internal step would ignore.
fn only_commands(request: &TaskRequest) -> Result<(), FieldFault> {
    let given = [
        ("inputs", !request.inputs.is_empty()),
        ("outputs", !request.outputs.is_empty()),
        ("env", !request.env.is_empty()),
        ("folder", request.folder.is_some()),
        ("limits", !request.limits.is_empty()),
        ("limits_by_hwgroup", !request.limits_by_hwgroup.is_empty()),
        ("platform", !request.platform.is_empty()),
        ("services", !request.services.is_empty()),
        ("shared_services", request.shared_services),
        ("interactor", request.interactor.is_some()),
        ("judge", request.judge),
        ("cache", request.cache.is_some()),
        ("measure", request.measure.is_some()),
        ("reported_times", request.reported_times.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(FieldFault::new(field, JobFault::NeedsCommand)),
        None => Ok(()),
    }
}

fn command(
    request: &TaskRequest,
    defaults: &Defaults,
    limits: &JobLimits,
) -> Result<CommandStep, FieldFault> {
    if request.command.first().is_none_or(|program| program.trim().is_empty()) {
        return Err(FieldFault::at("command", 0, JobFault::NoProgram));
    }
    if let Some(at) = request.command.iter().position(|argument| argument.contains('\0')) {
        return Err(FieldFault::at("command", at, JobFault::Nul));
    }
    check_env(&request.env)?;
    check_platform(&request.platform)?;
    check_limits("limits", request.limits, limits.task_max)?;
    let inputs = inputs("inputs", &request.inputs)?;
    let outputs = request.outputs.iter().enumerate();
    let outputs = outputs
        .map(|(at, text)| JobPath::parse_inside(text).map_err(|bad| FieldFault::at("outputs", at, bad)));
    let mut outputs: Vec<JobPath> = outputs.collect::<Result<_, _>>()?;
    outputs.sort_unstable();
    outputs.dedup();
    let folder = request.folder.as_deref().unwrap_or(".");
    if request.cache == Some(true) && request.measure.is_some() {
        return Err(FieldFault::new("cache", JobFault::MeasuredCache));
    }
    check_shared_services(request, defaults)?;
    let reported_times = request.reported_times.as_deref().map(|text| path_inside("reported_times", text));
    let reported_times = reported_times.transpose()?;
    check_output("reported_times", reported_times.as_ref(), &outputs)?;
    let interactor =
        request.interactor.as_ref().map(|asked| interactor(asked, request, limits)).transpose()?;
    ServiceRequest::check_all(&request.services).map_err(|fault| FieldFault::new("services", fault))?;
    let compare = request.compare.as_ref().map(Compare::new).transpose()?;
    check_output("compare.found", compare.as_ref().map(|compare| &compare.found), &outputs)?;
    let platform = merged(&defaults.platform, &request.platform);
    let of_groups = &request.limits_by_hwgroup;
    let command_limits = CommandLimits::new(request.limits.or(defaults.limits), of_groups, &platform)?;
    for (group, of_group) in of_groups {
        check_limits(&format!("limits_by_hwgroup.{group}"), *of_group, limits.task_max)?;
    }
    let step = CommandStep {
        argv: request.command.clone(),
        inputs,
        outputs,
        env: merged(&defaults.env, &request.env),
        folder: JobPath::parse_in_job(folder).map_err(|bad| FieldFault::new("folder", bad))?,
        limits: command_limits,
        platform,
        cache: request.cache.unwrap_or(true) && request.measure.is_none() && !request.shared_services,
        measure: request.measure.as_ref().map(MeasurePlan::new).transpose()?,
        reported_times,
        compare,
        services: request.services.clone(),
        shared_services: request.shared_services,
        interactor,
    };
    check_run_limits(&step, limits.task_max)?;
    Ok(step)
}

/// Rejects a task that cannot use the services of the job.
fn check_shared_services(request: &TaskRequest, defaults: &Defaults) -> Result<(), FieldFault> {
    if !request.shared_services {
        return Ok(());
    }
    let fault = if !defaults.services {
        JobFault::NoSharedServices
    } else if !request.services.is_empty() {
        JobFault::SharedAndOwnServices
    } else if request.interactor.is_some() {
        JobFault::InteractorWithServices
    } else if request.cache == Some(true) {
        JobFault::SharedServicesCache
    } else {
        return Ok(());
    };
    Err(FieldFault::new("shared_services", fault))
}

/// Rejects a path that is read after the command and that is neither an output nor lies in one.
fn check_output(field: &str, path: Option<&JobPath>, outputs: &[JobPath]) -> Result<(), FieldFault> {
    let is_output = |path: &JobPath| {
        path.with_folders().any(|folder| outputs.iter().any(|output| output.as_str() == folder))
    };
    match path.filter(|path| !is_output(path)) {
        Some(path) => Err(FieldFault::new(field, JobFault::NotAnOutput(path.to_string()))),
        None => Ok(()),
    }
}

/// Rejects a measured task of which a single run could take longer than the farm allows.
fn check_run_limits(step: &CommandStep, most: TaskLimits) -> Result<(), FieldFault> {
    if step.measure.is_some() && !step.limits.by_hwgroup.is_empty() {
        return Err(FieldFault::new("limits_by_hwgroup", JobFault::MeasuredGroups));
    }
    let of_a_run = step.limits_of_a_run().common;
    let times = [("cpu_ms", of_a_run.cpu_ms, most.cpu_ms), ("wall_ms", of_a_run.wall_ms, most.wall_ms)];
    for (name, value, most) in times {
        if let (Some(value), Some(most), Some(_)) = (value, most, step.measure)
            && value > most
        {
            let fault = JobFault::RunLimit { name: name.to_owned(), value, most };
            return Err(FieldFault::new("measure.limit_factor", fault));
        }
    }
    Ok(())
}

/// Checks the interactor of the command that `request` asks for.
fn interactor(
    asked: &InteractorRequest,
    request: &TaskRequest,
    limits: &JobLimits,
) -> Result<InteractorStep, FieldFault> {
    if !request.services.is_empty() {
        return Err(FieldFault::new("interactor", JobFault::InteractorWithServices));
    }
    if request.judge {
        return Err(FieldFault::new("judge", JobFault::JudgeWithInteractor));
    }
    check_limits("interactor.limits", asked.limits, limits.task_max)?;
    let InteractorRequest { command, env, limits, .. } = asked.clone();
    let interactor = Interactor { command, folder: None, env, limits };
    interactor.check().map_err(|fault| FieldFault::new("interactor", fault))?;
    Ok(InteractorStep { inputs: inputs("interactor.inputs", &asked.inputs)?, interactor })
}

/// Reads inputs, each once.
fn inputs(field: &str, texts: &[String]) -> Result<Vec<Input>, FieldFault> {
    let inputs = texts.iter().enumerate();
    let inputs = inputs.map(|(at, text)| input(text).map_err(|bad| FieldFault::at(field, at, bad)));
    let mut inputs: Vec<Input> = inputs.collect::<Result<_, _>>()?;
    let mut seen = HashSet::new();
    inputs.retain(|input| seen.insert(input.clone()));
    Ok(inputs)
}

fn input(text: &str) -> Result<Input, BadPath> {
    if JobGlob::is_glob(text) {
        JobGlob::parse(text).map(Input::Glob)
    } else {
        JobPath::parse_in_job(text).map(Input::Path)
    }
}

fn path_inside(field: &str, text: &str) -> Result<JobPath, FieldFault> {
    JobPath::parse_inside(text).map_err(|bad| FieldFault::new(field, bad))
}

/// `own` merged over the defaults, which are shared if `own` is empty.
fn merged(defaults: &Arc<NamedValues>, own: &NamedValues) -> Arc<NamedValues> {
    if own.is_empty() {
        return defaults.clone();
    }
    let all = defaults.iter().chain(own).map(|(name, value)| (name.clone(), value.clone()));
    Arc::new(all.collect())
}

fn check_url(url: &str) -> Result<(), FieldFault> {
    let known = ["http://", "https://"].iter().find_map(|start| url.strip_prefix(start));
    match known {
        Some(rest) if !rest.is_empty() && !url.chars().any(|c| c.is_control() || c.is_whitespace()) => Ok(()),
        Some(_) | None => {
            Err(FieldFault::new("fetch.url", JobFault::BadUrl(url.chars().take(200).collect())))
        }
    }
}

fn check_env(env: &NamedValues) -> Result<(), FieldFault> {
    for (name, value) in env {
        if name.is_empty() || name.contains('=') {
            return Err(FieldFault::new("env", JobFault::BadEnvName(name.chars().take(200).collect())));
        }
        if name.contains('\0') || value.contains('\0') {
            return Err(FieldFault::new("env", JobFault::Nul));
        }
    }
    Ok(())
}

fn check_platform(platform: &NamedValues) -> Result<(), FieldFault> {
    if platform.keys().any(String::is_empty) {
        return Err(FieldFault::new("platform", JobFault::BadProperty));
    }
    if platform.iter().any(|(name, value)| name.contains('\0') || value.contains('\0')) {
        return Err(FieldFault::new("platform", JobFault::Nul));
    }
    let is_limit = |name: &&String| {
        name.get(..LIMIT_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(LIMIT_PREFIX))
    };
    if let Some(name) = platform.keys().find(is_limit) {
        return Err(FieldFault::new("platform", JobFault::LimitAsProperty(name.chars().take(200).collect())));
    }
    Ok(())
}

fn check_limits(field: &str, given: TaskLimits, most: TaskLimits) -> Result<(), FieldFault> {
    let fields = [
        ("cpu_ms", given.cpu_ms, most.cpu_ms),
        ("wall_ms", given.wall_ms, most.wall_ms),
        ("memory_bytes", given.memory_bytes, most.memory_bytes),
        ("processes", given.processes, most.processes),
        ("files", given.files, most.files),
        ("disk_bytes", given.disk_bytes, most.disk_bytes),
        ("output_bytes", given.output_bytes, most.output_bytes),
    ];
    for (name, value, most) in fields {
        let most = most.unwrap_or(u64::MAX);
        if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
            return Err(FieldFault(format!("{field}.{name}"), JobFault::OutOfRange { value, most }));
        }
    }
    Ok(())
}

fn retries(given: Option<u32>) -> Result<Option<u32>, FieldFault> {
    match given {
        Some(value) if value > RETRIES_MAX => Err(out_of_range("retries", value, RETRIES_MAX)),
        other => Ok(other),
    }
}

fn out_of_range(field: &str, value: u32, most: u32) -> FieldFault {
    FieldFault::new(field, JobFault::OutOfRange { value: u64::from(value), most: u64::from(most) })
}
