use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::*;
use crate::{Dependency, FetchStep, FromTo, InvalidJob, Job, JobSource, TaskDefaults, TaskRequest};

fn job(text: &str) -> Job {
    serde_json::from_str(text).unwrap()
}

fn command(id: &str) -> TaskRequest {
    serde_json::from_str(&format!(r#"{{"id": {id:?}, "command": ["true"]}}"#)).unwrap()
}

fn tasks(tasks: Vec<TaskRequest>) -> Job {
    Job { tasks, ..Job::default() }
}

fn graph(job: &Job) -> Result<Graph, InvalidJob> {
    Graph::new(job, &JobLimits::NONE)
}

/// The error for a job whose task `a` was changed by `change`.
fn refused(change: impl FnOnce(&mut TaskRequest)) -> String {
    let mut task = command("a");
    change(&mut task);
    graph(&tasks(vec![task])).unwrap_err().to_string()
}

fn from_to(from: &str, to: &str) -> FromTo {
    FromTo { from: from.into(), to: to.into() }
}

/// A dependency on the success of this task.
fn after(id: &str) -> Dependency {
    Dependency::Succeeded(id.parse().unwrap())
}

fn dependencies(graph: &Graph, at: usize) -> Vec<usize> {
    graph.tasks()[at].dependencies.iter().map(|at| at.get()).collect()
}

#[test]
fn dependencies_may_be_alternatives_and_failures() {
    let job = job(r#"{"tasks": [
            {"id": "a", "command": ["x"], "outputs": ["made"]},
            {"id": "b", "command": ["x"]},
            {"id": "c", "command": ["x"], "dependencies": [{"any": ["a", "b"]}, {"failed": "d"}]},
            {"id": "d", "command": ["x"]},
            {"id": "e", "command": ["x"], "inputs": ["made"], "dependencies": [{"any": ["a", "b"]}]}
        ]}"#);
    let graph = graph(&job).unwrap();
    assert_eq!((dependencies(&graph, 2), dependencies(&graph, 4)), (vec![0, 1, 3], vec![0]));
    let role = |at: usize, of: usize| graph.tasks()[at].role(TaskIndex::at(of));
    assert_eq!([0, 1].map(|of| role(2, of)), [DependencyRole::OneOfSeveral; 2]);
    assert_eq!((role(2, 3), role(4, 0)), (DependencyRole::MustFail, DependencyRole::MustSucceed));
    let again = serde_json::to_string(&job).unwrap();
    assert!(again.contains(r#""dependencies":[{"any":["a","b"]},{"failed":"d"}]"#), "{again}");
    assert_eq!(serde_json::from_str::<Job>(&again).unwrap(), job);
}

#[test]
fn dependencies_that_can_never_be_met_are_refused() {
    let error = |dependencies: &str| {
        let text = format!(
            r#"{{"tasks": [
                {{"id": "a", "command": ["x"], "outputs": ["made"]}},
                {{"id": "b", "command": ["x"], "fatal": true}},
                {{"id": "t", "command": ["x"], "inputs": ["made"], "dependencies": {dependencies}}}
            ]}}"#
        );
        match serde_json::from_str::<Job>(&text) {
            Ok(job) => graph(&job).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    for (dependencies, wanted) in [
        (
            r#"[{"failed": "a"}]"#,
            "job.tasks[2] (t).dependencies: task \"a\" must fail, but must also succeed",
        ),
        (r#"[{"failed": "b"}]"#, "job.tasks[2] (t).dependencies: task \"b\" is fatal"),
        (
            r#"[{"any": ["a"]}, {"failed": "a"}]"#,
            "job.tasks[2] (t).dependencies: all tasks of an `any` must fail",
        ),
        (r#"["a", {"any": []}]"#, "job.tasks[2] (t).dependencies[1]: `any` is empty"),
        (r#"[{"any": ["a", "x"]}]"#, "job.tasks[2] (t).dependencies[0].any[1]: unknown task \"x\""),
        (r#"[{"failed": "x"}]"#, "job.tasks[2] (t).dependencies[0].failed: unknown task \"x\""),
        (r#"[{"failed": "t"}]"#, "job.tasks[2] (t).dependencies: dependency cycle: t -> t"),
        (r#"[{"any": ["a"], "failed": "b"}]"#, "expected either `any` or `failed`"),
        (r#"[{"all": ["a"]}]"#, "unknown field `all`, expected `any` or `failed`"),
        ("[5]", "invalid type: integer `5`, expected the id of a task, {any: [ids]} or {failed: id}"),
    ] {
        let found = error(dependencies);
        assert!(found.starts_with(wanted), "{dependencies}: {found}");
    }
}

#[test]
fn steps_wait_for_what_they_read_and_are_waited_for() {
    let job = job(r#"{"tasks": [
            {"id": "make", "command": ["x"], "outputs": ["a"]},
            {"id": "there", "exists": {"path": "a", "kind": "file"}},
            {"id": "move", "rename": {"from": "a", "to": "b"}},
            {"id": "cut", "truncate": {"from": "b", "to": "c", "bytes": 3}},
            {"id": "pack", "archive": {"from": "c", "to": "c.tar.gz"}},
            {"id": "use", "command": ["y"], "inputs": ["c.tar.gz"]}
        ]}"#);
    let graph = graph(&job).unwrap();
    let all: Vec<Vec<usize>> = (0..graph.len()).map(|at| dependencies(&graph, at)).collect();
    assert_eq!(all, [vec![], vec![0], vec![0], vec![2], vec![3], vec![4]]);
    let step = |text: &str| {
        let text = format!(r#"{{"tasks": [{{"id": "t", {text}}}]}}"#);
        Graph::new(&serde_json::from_str(&text).unwrap(), &JobLimits::NONE).unwrap_err().to_string()
    };
    for (field, text) in [
        ("archive.from", r#""archive": {"from": "../a", "to": "b"}"#),
        ("archive.to", r#""archive": {"from": "a", "to": "/b"}"#),
        ("rename.from", r#""rename": {"from": "a/../../b", "to": "b"}"#),
        ("rename.to", r#""rename": {"from": "a", "to": "."}"#),
        ("truncate.to", r#""truncate": {"from": "a", "to": "..", "bytes": 1}"#),
        ("exists.path", r#""exists": {"path": "/etc/passwd"}"#),
        ("fetch", r#""fetch": {"to": "a"}"#),
        ("fetch.size_bytes", r#""fetch": {"url": "http://a/b", "to": "a", "size_bytes": 1}"#),
    ] {
        let error = step(text);
        assert!(error.starts_with(&format!("job.tasks[0] (t).{field}: ")), "{error}");
    }
    for (from, to) in [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("./a//b", "a/b/c")] {
        let error = step(&format!(r#""rename": {{"from": "{from}", "to": "{to}"}}"#));
        assert!(
            error.starts_with("job.tasks[0] (t).rename.to: ") && error.contains("cannot become"),
            "{error}"
        );
    }
}

#[test]
fn limits_by_hwgroup_are_for_groups_that_the_task_may_run_on() {
    let refused = |task: &str| {
        let job: Job = serde_json::from_str(&format!(r#"{{"tasks": [{{"id": "t", {task}}}]}}"#)).unwrap();
        let limits = JobLimits {
            task_max: TaskLimits { cpu_ms: Some(100), ..TaskLimits::default() },
            ..JobLimits::NONE
        };
        Graph::new(&job, &limits).unwrap_err().to_string()
    };
    let with = |more: &str| refused(&format!(r#""command": ["x"], "limits_by_hwgroup": {more}"#));
    let five = r#"{"g1": {"cpu_ms": 5}}"#;
    let cases = [
        (
            with(&format!(r#"{five}, "platform": {{"hwgroup": "g2"}}"#)),
            "limits_by_hwgroup.g1: the task never runs",
        ),
        (
            with(&format!(r#"{five}, "measure": {{"runs": 2}}"#)),
            "limits_by_hwgroup: a measured task must ask for",
        ),
        (with(r#"{"g1": {"cpu_ms": 0}}"#), "limits_by_hwgroup.g1.cpu_ms: it is 0: expected 1 to 100"),
        (with(r#"{"g1": {"cpu_ms": 101}}"#), "limits_by_hwgroup.g1.cpu_ms: it is 101: expected 1 to 100"),
        (with(r#"{" g1": {"cpu_ms": 5}}"#), "limits_by_hwgroup: \" g1\" is not a hardware group"),
        (
            refused(&format!(r#""remove": "a", "limits_by_hwgroup": {five}"#)),
            "limits_by_hwgroup: allowed only",
        ),
    ];
    for (found, wanted) in cases {
        assert!(found.starts_with(&format!("job.tasks[0] (t).{wanted}")), "{found}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_path() {
    let unknown = job(
        r#"{"tasks": [{"id": "a", "command": ["x"]}, {"id": "link", "command": ["x"], "dependencies": ["a", "lib"]}]}"#,
    );
    assert_eq!(
        graph(&unknown).unwrap_err().to_string(),
        r#"job.tasks[1] (link).dependencies[1]: unknown task "lib""#
    );
    let twice = tasks(vec![command("a"), command("b"), command("a")]);
    assert_eq!(
        graph(&twice).unwrap_err().to_string(),
        r#"job.tasks[2].id: id "a" is already used by job.tasks[0]"#
    );
    assert_eq!(graph(&tasks(vec![])).unwrap_err().to_string(), "job.tasks: the job has no tasks");
    let mut defaults = tasks(vec![command("a")]);
    defaults.defaults =
        TaskDefaults { limits: TaskLimits { files: Some(0), ..TaskLimits::default() }, ..defaults.defaults };
    assert!(graph(&defaults).unwrap_err().to_string().starts_with("job.defaults.limits.files: it is 0"));
}

#[test]
fn a_task_does_exactly_one_thing() {
    assert!(
        refused(|task| task.command.clear())
            .contains("(a): it has no step: expected exactly one of command, fetch")
    );
    assert!(refused(|task| task.remove = Some("x".into())).contains("(a): it has command and remove"));
    let internal = |change: fn(&mut TaskRequest)| {
        refused(|task| {
            task.command.clear();
            task.remove = Some("x".into());
            change(task);
        })
    };
    assert!(
        internal(|task| task.outputs = vec!["y".into()])
            .contains("(a).outputs: allowed only in a task with a command")
    );
    assert!(internal(|task| task.judge = true).contains("(a).judge: allowed only in a task with a command"));
    assert!(
        internal(|task| task.limits.files = Some(1))
            .contains("(a).limits: allowed only in a task with a command")
    );
}

#[test]
fn fields_are_checked() {
    assert!(refused(|task| task.command = vec![" ".into()]).contains("(a).command[0]: the program is empty"));
    assert!(refused(|task| task.command.push("x\0".into())).contains("(a).command[1]: it contains a NUL"));
    assert!(
        refused(|task| drop(task.env.insert("A=".into(), String::new())))
            .contains("(a).env: invalid variable name \"A=\"")
    );
    assert!(
        refused(|task| drop(task.env.insert("A".into(), "\0".into()))).contains("(a).env: it contains a NUL")
    );
    assert!(
        refused(|task| drop(task.platform.insert(String::new(), "x".into())))
            .contains("(a).platform: a property")
    );
    assert!(
        refused(|task| drop(task.platform.insert("Limit-files".into(), "1".into())))
            .contains("set it under `limits`")
    );
    assert!(
        refused(|task| task.inputs = vec!["ok".into(), "/x".into()])
            .contains("(a).inputs[1]: \"/x\" is an absolute")
    );
    assert!(refused(|task| task.inputs = vec!["../x/*.c".into()]).contains("leaves the workspace"));
    assert!(refused(|task| task.inputs = vec!["a[".into()]).contains("(a).inputs[0]: invalid glob"));
    assert!(
        refused(|task| task.outputs = vec![".".into()])
            .contains("(a).outputs[0]: it is the workspace itself")
    );
    assert!(refused(|task| task.folder = Some("..".into())).contains("(a).folder: \"..\" leaves"));
    assert!(refused(|task| task.weight = Some(2)).contains("(a).weight: allowed only in a judge"));
    assert!(refused(|task| task.retries = Some(101)).contains("(a).retries: it is 101: expected 1 to 100"));
    assert!(
        refused(|task| task.limits.cpu_ms = Some(0)).contains("(a).limits.cpu_ms: it is 0: expected 1 to")
    );
    let fetch = |url: &str| {
        refused(|task| {
            task.command.clear();
            task.fetch =
                Some(FetchStep { url: Some(url.into()), to: "x".into(), digest: None, size_bytes: None });
        })
    };
    for url in ["file:///etc/passwd", "http://", "https://a b", "x"] {
        assert!(fetch(url).contains("(a).fetch.url:"), "{url}");
    }
}

#[test]
fn the_farm_has_the_last_word_on_limits() {
    let task_max = TaskLimits { wall_ms: Some(1000), ..TaskLimits::default() };
    let limits = JobLimits { tasks_max: 2, task_max, ..JobLimits::NONE };
    let mut task = command("a");
    task.limits.wall_ms = Some(1000);
    assert!(Graph::new(&tasks(vec![task.clone()]), &limits).is_ok());
    task.limits.wall_ms = Some(1001);
    let error = Graph::new(&tasks(vec![task]), &limits).unwrap_err().to_string();
    assert_eq!(error, "job.tasks[0] (a).limits.wall_ms: it is 1001: expected 1 to 1000");
    let error = Graph::new(&tasks(vec![command("a"), command("b"), command("c")]), &limits).unwrap_err();
    assert_eq!(error.to_string(), "job.tasks: the job has 3 tasks, the limit is 2");
}

#[test]
fn a_cycle_is_told_whole() {
    let after = |id: &str, before: &str| TaskRequest { dependencies: vec![after(before)], ..command(id) };
    let error =
        graph(&tasks(vec![command("x"), after("c", "a"), after("a", "b"), after("b", "c"), after("y", "b")]));
    assert_eq!(
        error.unwrap_err().to_string(),
        "job.tasks[1] (c).dependencies: dependency cycle: c -> a -> b -> c"
    );
    let own = graph(&tasks(vec![after("a", "a")])).unwrap_err().to_string();
    assert!(own.ends_with("dependency cycle: a -> a"), "{own}");
    let reads = |id: &str, input: &str, output: &str| TaskRequest {
        inputs: vec![input.into()],
        outputs: vec![output.into()],
        ..command(id)
    };
    let implied = graph(&tasks(vec![reads("a", "y", "x"), reads("b", "x", "y")])).unwrap_err().to_string();
    assert!(implied.ends_with("a -> b -> a"), "{implied}");
    let long: Vec<TaskRequest> =
        (0..30).map(|at| after(&format!("t{at}"), &format!("t{}", (at + 1) % 30))).collect();
    let long = graph(&tasks(long)).unwrap_err().to_string();
    assert!(long.ends_with("t19 -> (10 more) -> t0"), "{long}");
}

#[test]
fn one_path_has_one_maker() {
    let makes = |id: &str, output: &str| TaskRequest { outputs: vec![output.into()], ..command(id) };
    let error = graph(&tasks(vec![makes("a", "out/x"), makes("b", "./out//x")])).unwrap_err().to_string();
    assert_eq!(error, r#"job.tasks[1] (b).outputs: "out/x" is already an output of job.tasks[0] (a)"#);
    let step = |id: &str| TaskRequest { command: Vec::new(), ..command(id) };
    let copy = TaskRequest { copy: Some(from_to("y", "out/x")), ..step("c") };
    let error = graph(&tasks(vec![makes("a", "out/x"), copy])).unwrap_err().to_string();
    assert!(error.starts_with("job.tasks[1] (c).copy.to"), "{error}");
    let folder = |id: &str| TaskRequest { make_folder: Some("out".into()), ..step(id) };
    let unpacked = TaskRequest { extract: Some(from_to("a.tar", "out")), ..step("unpack") };
    assert!(graph(&tasks(vec![folder("a"), folder("b"), unpacked])).is_ok(), "several may add to a folder");
}

#[test]
fn reading_what_another_makes_is_to_depend_on_it() {
    let makes = |id: &str, output: &str| TaskRequest { outputs: vec![output.into()], ..command(id) };
    let step = |id: &str| TaskRequest { command: Vec::new(), ..command(id) };
    let job = tasks(vec![
        makes("object", "obj/a.o"),
        makes("tree", "gen"),
        TaskRequest { inputs: vec!["obj/a.o".into(), "./gen/deep/x.h".into()], ..command("link") },
        TaskRequest { inputs: vec!["obj".into(), "gen/*.h".into(), "gent".into()], ..command("no") },
        TaskRequest { copy: Some(from_to("gen", "copy")), ..step("copy") },
        TaskRequest { folder: Some("copy/sub".into()), ..command("in-copy") },
        TaskRequest { remove: Some("obj/a.o".into()), ..step("rm") },
        TaskRequest { inputs: vec!["own".into()], outputs: vec!["own".into()], ..command("own") },
    ]);
    let graph = graph(&job).unwrap();
    assert_eq!(dependencies(&graph, 2), [0, 1]);
    assert_eq!(dependencies(&graph, 3), [0_usize; 0], "neither a folder around it nor a glob");
    assert_eq!(dependencies(&graph, 4), [1]);
    assert_eq!(dependencies(&graph, 5), [4]);
    assert_eq!(dependencies(&graph, 6), [0]);
    assert_eq!(dependencies(&graph, 7), [0_usize; 0]);
    assert_eq!(graph.tasks()[0].dependants.iter().map(|at| at.get()).collect::<Vec<_>>(), [2, 6]);
}

#[test]
fn defaults_are_merged_and_shared() {
    let job = job(
        r#"{"defaults": {"env": {"A": "1", "B": "1"}, "platform": {"hwgroup": "big"}, "limits": {"cpu_ms": 5, "files": 6}, "retries": 7},
            "tasks": [{"id": "a", "command": ["x"], "env": {"B": "2"}, "limits": {"files": 9}},
                      {"id": "b", "command": ["x"], "retries": 0, "priority": -3, "judge": true},
                      {"id": "c", "command": ["x"]}]}"#,
    );
    let graph = graph(&job).unwrap();
    let step = |at: usize| {
        let Step::Command(command) = &graph.tasks()[at].step else { panic!("task {at} is no command") };
        command.as_ref()
    };
    assert_eq!(step(0).env.values().map(String::as_str).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!((step(0).limits.common.cpu_ms, step(0).limits.common.files), (Some(5), Some(9)));
    assert!(std::sync::Arc::ptr_eq(&step(1).platform, &step(2).platform));
    let [a, b, c] = graph.tasks() else { panic!() };
    assert_eq!((a.retries, b.retries, a.priority, b.priority), (7, 0, DEFAULT_PRIORITY, -3));
    assert_eq!((b.judge, c.judge), (Some(DEFAULT_WEIGHT), None));
}

#[test]
fn the_order_has_dependencies_first_then_priority_then_the_job() {
    let mut job = tasks(vec![command("last"), command("b"), command("a"), command("urgent")]);
    job.tasks[0].dependencies = vec![after("a")];
    job.tasks[0].priority = Some(50);
    job.tasks[3].priority = Some(9);
    let graph = graph(&job).unwrap();
    let order: Vec<&str> = graph.order().iter().map(|at| graph.task(*at).unwrap().id.as_str()).collect();
    assert_eq!(order, ["urgent", "b", "a", "last"]);
}

/// Processor time that the check of `count` tasks takes, each made by `task`: other load of the machine is not counted.
fn timed(count: usize, task: impl Fn(usize) -> TaskRequest) -> Duration {
    let job = tasks((0..count).map(task).collect());
    let spent = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let before = spent();
    assert_eq!(graph(&job).unwrap().len(), count);
    spent().saturating_sub(before)
}

#[test]
fn fifty_thousand_tasks_are_checked_fast_whatever_their_shape() {
    const COUNT: usize = 50_000;
    let id = |at: usize| after(&format!("t{at}"));
    let chain = timed(COUNT, |at| TaskRequest {
        dependencies: (at > 0).then(|| id(at - 1)).into_iter().collect(),
        ..command(&format!("t{at}"))
    });
    let star = timed(COUNT, |at| TaskRequest {
        dependencies: if at + 1 == COUNT { (0..at).map(id).collect() } else { Vec::new() },
        ..command(&format!("t{at}"))
    });
    let layers = timed(COUNT, |at| TaskRequest {
        dependencies: (0..20).filter_map(|back| at.checked_sub(500 - back)).map(id).collect(),
        inputs: vec!["include/*.h".into(), format!("obj/layer/t{}.o", at.saturating_sub(500))],
        outputs: vec![format!("obj/layer/t{at}.o")],
        ..command(&format!("t{at}"))
    });
    for (shape, took) in [("chain", chain), ("star", star), ("layers", layers)] {
        assert!(took < Duration::from_secs(15), "{shape}: {took:?}");
    }
}

#[test]
fn folders_that_many_share_do_not_multiply() {
    let step = |id: String| TaskRequest { command: Vec::new(), ..command(&id) };
    let all = (0..10_000).map(|at| match at % 2 {
        0 => TaskRequest { make_folder: Some("x".into()), ..step(format!("m{at}")) },
        _ => TaskRequest { copy: Some(from_to("x/y", &format!("c{at}"))), ..step(format!("c{at}")) },
    });
    let error = graph(&tasks(all.collect())).unwrap_err().to_string();
    assert!(error.contains("more than 4000000 dependencies"), "{error}");
}

#[test]
fn inputs_that_many_tasks_make_together_count_once() {
    let step = |id: String| TaskRequest { command: Vec::new(), ..command(&id) };
    let makers = (0..2_000).map(|at| {
        let id = format!("m{at}");
        TaskRequest { make_folder: Some("x".into()), ..step(id) }
    });
    let inputs = (0..100_000).map(|at| format!("x/{at}")).chain(["x/1".to_owned()]);
    let reader = TaskRequest { inputs: inputs.collect(), ..command("reader") };
    let graph = graph(&tasks(makers.chain([reader]).collect())).unwrap();
    let reader = graph.tasks().last().unwrap();
    assert_eq!(reader.dependencies.len(), 2_000);
    let Step::Command(command) = &reader.step else { panic!("{:?}", reader.step) };
    assert_eq!(command.inputs.len(), 100_000);
}

#[test]
fn archives_are_unpacked_into_the_folder_that_they_lie_in() {
    let archive = |id: &str| TaskRequest { command: Vec::new(), ..command(id) };
    let fetched = |id: &str, to: &str| TaskRequest {
        fetch: Some(FetchStep {
            url: Some("http://localhost/a".into()),
            to: to.into(),
            digest: None,
            size_bytes: None,
        }),
        ..archive(id)
    };
    let unpacked = |id: &str, from: &str, to: &str| TaskRequest {
        extract: Some(FromTo { from: from.into(), to: to.into() }),
        ..archive(id)
    };
    let all = vec![
        fetched("a", "deps/a.tar"),
        fetched("b", "deps/b.tar"),
        unpacked("ea", "deps/a.tar", "deps"),
        unpacked("eb", "deps/b.tar", "deps"),
        TaskRequest { inputs: vec!["deps/x".into()], ..command("reader") },
    ];
    let graph = graph(&tasks(all)).unwrap();
    let of = |at: usize| graph.tasks()[at].dependencies.iter().map(|it| it.get()).collect::<Vec<_>>();
    assert_eq!((of(2), of(3), of(4)), (vec![0], vec![1], vec![2, 3]));
}

#[test]
fn services_that_tasks_share_are_checked_with_the_tasks_that_use_them() {
    let job = |services: &str, task: &str| {
        let text = format!(r#"{{"services": {services}, "tasks": [{{"id": "a", {task}}}]}}"#);
        Graph::new(&serde_json::from_str(&text).unwrap(), &JobLimits::NONE).map_err(|error| error.to_string())
    };
    let db = r#"[{"name": "db", "command": ["d"]}]"#;
    let shares = r#""command": ["x"], "shared_services": true"#;
    let good = job(db, shares).unwrap();
    let users: Vec<usize> = good.users_of_services().map(|(at, _)| at.get()).collect();
    assert_eq!((good.services().len(), users), (1, vec![0]));
    assert!(good.users_of_services().all(|(_, command)| !command.cache));
    let many: Vec<String> = (0..9).map(|at| format!(r#"{{"name": "s{at}", "command": ["d"]}}"#)).collect();
    for (services, task, expected) in [
        ("[]", shares, "job.tasks[0] (a).shared_services: the job has no services"),
        (db, r#""command": ["x"]"#, "job.services: no task uses the services"),
        (&format!("[{}]", many.join(",")), shares, "job.services: there are 9 services, at most 8"),
        (db, &format!(r#"{shares}, "services": {db}"#), "job.tasks[0] (a).shared_services: a task cannot"),
        (db, &format!(r#"{shares}, "interactor": {{"command": ["j"]}}"#), "interactor cannot have services"),
        (db, &format!(r#"{shares}, "cache": true"#), "always runs"),
        (db, r#""make_folder": "x", "shared_services": true"#, "only in a task with a command"),
    ] {
        let error = job(services, task).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_wrong_field_of_a_job_is_named() {
    let wrong = |text: &str| serde_json::from_str::<JobSource>(text).unwrap_err().to_string();
    assert!(wrong(r#"{"tasks": [{"id": "a", "comand": ["x"]}]}"#).contains("unknown field `comand`"));
    assert!(wrong(r#"{"tasks": [{"id": "a b"}]}"#).contains("invalid task id \"a b\""));
    assert!(wrong(r#"{"tasks": [], "digest": "sha256:00"}"#).contains("digest"));
    assert!(wrong("{}").contains("tasks"));
}
