use model::{Job, JobLimits};
use proptest::prelude::*;

use super::*;
use crate::{tree::FUNCTION, visible::IndirectDependencies};

/// Parses tasks in the format of a request.
fn graph(tasks: &serde_json::Value) -> Arc<Graph> {
    let job: Job = serde_json::from_value(serde_json::json!({ "tasks": tasks })).unwrap();
    Arc::new(Graph::new(&job, &JobLimits::NONE).unwrap())
}

fn file(text: &str) -> Node {
    let content = Arc::new(Content::remote(FUNCTION.digest(text.as_bytes())));
    Node::File { content, executable: false }
}

fn tree(paths: &[&str]) -> Arc<Folder> {
    let mut root = Arc::default();
    for path in paths {
        Folder::insert_at(&mut root, path, file(path));
    }
    root
}

fn paths(folder: &Folder) -> Vec<String> {
    fn walk(folder: &Folder, place: &str, all: &mut Vec<String>) {
        for (name, node) in folder.entries() {
            let path = join(place, name);
            match node {
                Node::Folder(below) if below.is_empty() => all.push(format!("{path}/")),
                Node::Folder(below) => walk(below, &path, all),
                Node::File { .. } | Node::Link(_) => all.push(path),
            }
        }
    }
    let mut all = Vec::new();
    walk(folder, "", &mut all);
    all
}

/// Runs all tasks in the order of the graph: commands make their outputs. Returns what each command saw, or why
/// it could not start.
fn run(graph: &Arc<Graph>, base: &[&str]) -> Vec<Result<Vec<String>, String>> {
    let order: Vec<TaskIndex> = graph.order().to_vec();
    run_in(graph, base, &order)
}

fn run_in(graph: &Arc<Graph>, base: &[&str], order: &[TaskIndex]) -> Vec<Result<Vec<String>, String>> {
    run_on(graph, tree(base), order)
}

fn run_on(graph: &Arc<Graph>, base: Arc<Folder>, order: &[TaskIndex]) -> Vec<Result<Vec<String>, String>> {
    let job_files = JobFiles::new(Arc::clone(graph), base);
    let mut indirect = IndirectDependencies::new(graph, job_files.watched());
    let mut saw = vec![Ok(Vec::new()); graph.len()];
    for index in order {
        let seen = indirect.begin(graph, *index);
        let task = graph.task(*index).unwrap();
        let added = |path: &JobPath, node| Effect::Adds(vec![(path.as_str().to_owned(), node)]);
        let effect = match &task.step {
            Step::Command(command) => {
                let root = job_files.input_root(*index, command, &seen);
                saw[index.get()] = root.map(|root| paths(&root)).map_err(|error| error.to_string());
                let made = |path: &JobPath| (path.as_str().to_owned(), file(task.id.as_str()));
                Effect::Adds(command.outputs.iter().map(made).collect())
            }
            Step::Copy { from, to } => match job_files.source(*index, from, &seen) {
                Ok(node) => added(to, node),
                Err(error) => {
                    saw[index.get()] = Err(error.to_string());
                    continue;
                }
            },
            Step::Rename { from, to, replace } => match job_files.entry(*index, from, &seen) {
                Ok(node) => {
                    Effect::Moves { from: from.to_string(), to: to.to_string(), node, replace: *replace }
                }
                Err(error) => {
                    saw[index.get()] = Err(error.to_string());
                    continue;
                }
            },
            Step::Exists { path, .. } => {
                let found = job_files.source(*index, path, &seen);
                saw[index.get()] = found.map(|_| Vec::new()).map_err(|error| error.to_string());
                Effect::Adds(Vec::new())
            }
            Step::Archive { to, .. } | Step::Truncate { to, .. } => added(to, file("made")),
            Step::MakeFolder(path) => added(path, Node::Folder(Arc::default())),
            Step::Remove(path) => Effect::Removes(path.as_str().to_owned()),
            Step::Extract { to, .. } => added(to, Node::Folder(tree(&["in/archive", "top"]))),
            Step::Fetch { to, .. } => added(to, file("fetched")),
            Step::Compare(compare) => {
                let both = [&compare.found, &compare.expected];
                let found = both.map(|path| job_files.source(*index, path, &seen).map(|_| path.to_string()));
                let found: Result<Vec<String>, _> = found.into_iter().collect();
                saw[index.get()] = found.map_err(|error| error.to_string());
                Effect::Adds(Vec::new())
            }
        };
        job_files.record_effect(*index, effect);
    }
    saw
}

#[test]
fn a_command_sees_what_it_names_and_nothing_else() {
    let graph = graph(&serde_json::json!([
        {"id": "a", "command": ["cc"], "inputs": ["src/a.c", "include/**", "*.mk"], "outputs": ["obj/a.o"]},
        {"id": "b", "command": ["ld"], "inputs": ["obj/a.o", "lib"], "outputs": ["prog"], "folder": "obj/deep"},
    ]));
    let saw = run(&graph, &["src/a.c", "src/b.c", "include/x/y.h", "lib/1", "lib/2/3", "top.mk"]);
    assert_eq!(saw[0], Ok(vec!["include/x/y.h".into(), "src/a.c".into(), "top.mk".into()]));
    assert_eq!(saw[1], Ok(vec!["lib/1".into(), "lib/2/3".into(), "obj/a.o".into(), "obj/deep/".into()]));
}

#[test]
fn a_missing_input_is_named_and_so_is_the_task_that_is_not_depended_on() {
    let graph = graph(&serde_json::json!([
        {"id": "gen", "command": ["gen"], "outputs": ["src/deep/gen.h"]},
        {"id": "cc", "command": ["cc"], "inputs": ["src/deep"], "outputs": ["a.o"]},
        {"id": "no", "command": ["cc"], "inputs": ["src/none.c"], "outputs": ["b.o"]},
    ]));
    let saw = run(&graph, &["src/a.c"]);
    let why = saw[1].clone().unwrap_err();
    assert!(why.contains("src/deep does not exist") && why.contains("task gen"), "{why}");
    assert_eq!(saw[2], Err("src/none.c does not exist".to_owned()));
}

#[test]
fn a_glob_sees_through_any_number_of_steps_but_not_sideways() {
    let graph = graph(&serde_json::json!([
        {"id": "one", "command": ["x"], "outputs": ["out/one"]},
        {"id": "two", "command": ["x"], "outputs": ["out/two"], "dependencies": ["one"]},
        {"id": "side", "command": ["x"], "outputs": ["out/side"]},
        {"id": "three", "command": ["x"], "inputs": ["out/*"], "outputs": ["three"], "dependencies": ["two"]},
        {"id": "all", "command": ["x"], "inputs": ["out/**"], "outputs": ["all"], "dependencies": ["three", "side"]},
        {"id": "none", "command": ["x"], "inputs": ["out/*"], "outputs": ["none"]},
    ]));
    let saw = run(&graph, &["out/base"]);
    let named = |names: &[&str]| Ok(names.iter().map(|name| format!("out/{name}")).collect::<Vec<_>>());
    assert_eq!(saw[3], named(&["base", "one", "two"]));
    assert_eq!(saw[4], named(&["base", "one", "side", "two"]));
    assert_eq!(saw[5], named(&["base"]));
}

#[test]
fn steps_change_what_those_see_that_depend_on_them() {
    let graph = graph(&serde_json::json!([
        {"id": "copy", "copy": {"from": "src", "to": "build/src"}},
        {"id": "drop", "remove": "build/src/b.c", "dependencies": ["copy"]},
        {"id": "empty", "make_folder": "build/empty/one"},
        {"id": "before", "command": ["x"], "inputs": ["build/src"], "outputs": ["1"], "dependencies": ["copy"]},
        {"id": "after", "command": ["x"], "inputs": ["build"], "outputs": ["2"], "dependencies": ["drop", "empty"]},
        {"id": "unpack", "extract": {"from": "src/a.tar", "to": "build/src/un"}, "dependencies": ["drop"]},
        {"id": "late", "command": ["x"], "inputs": ["build/src"], "outputs": ["3"], "dependencies": ["unpack"]},
        {"id": "gone", "copy": {"from": "nowhere", "to": "x"}},
    ]));
    let saw = run(&graph, &["src/a.tar", "src/b.c"]);
    let strings = |all: &[&str]| Ok(all.iter().map(|it| (*it).to_owned()).collect::<Vec<String>>());
    assert_eq!(saw[3], strings(&["build/src/a.tar", "build/src/b.c"]));
    assert_eq!(saw[4], strings(&["build/empty/one/", "build/src/a.tar"]));
    assert_eq!(saw[6], strings(&["build/src/a.tar", "build/src/un/in/archive", "build/src/un/top"]));
    assert_eq!(saw[7], Err("nowhere does not exist".to_owned()));
}

#[test]
fn what_is_renamed_is_gone_from_where_it_was() {
    let graph = graph(&serde_json::json!([
        {"id": "make", "command": ["x"], "outputs": ["out/a"]},
        {"id": "move", "rename": {"from": "out/a", "to": "new/b"}},
        {"id": "folder", "rename": {"from": "src", "to": "kept/src"}},
        {"id": "link", "rename": {"from": "current", "to": "latest"}},
        {"id": "behind", "rename": {"from": "current/x", "to": "y"}},
        {"id": "gone", "rename": {"from": "nowhere", "to": "z"}},
        {"id": "outside", "rename": {"from": "leaves", "to": "left"}},
        {"id": "after", "command": ["x"], "inputs": ["**"], "dependencies": ["move", "folder", "link", "outside"]},
        {"id": "before", "command": ["x"], "inputs": ["out/*"], "dependencies": ["make"]},
        {"id": "next", "exists": {"path": "new/b"}},
    ]));
    let mut base = tree(&["src/one", "src/two", "v1/x"]);
    Folder::insert_at(&mut base, "current", Node::Link("v1".into()));
    Folder::insert_at(&mut base, "leaves", Node::Link("../..".into()));
    let saw = run_on(&graph, base, graph.order());
    let strings = |all: &[&str]| Ok(all.iter().map(|it| (*it).to_owned()).collect::<Vec<String>>());
    assert_eq!(saw[7], strings(&["kept/src/one", "kept/src/two", "latest", "left", "new/b", "v1/x"]));
    assert_eq!(saw[8], strings(&["out/a"]));
    let behind = "current/x leads through symlink current: use the path without symlinks";
    assert_eq!(saw[4], Err(behind.to_owned()));
    assert_eq!((saw[5].clone(), saw[9].clone()), (Err("nowhere does not exist".to_owned()), Ok(Vec::new())));
}

#[test]
fn only_files_that_a_task_reads_are_hashed_in_advance() {
    let graph = graph(&serde_json::json!([
        {"id": "a", "command": ["x"], "inputs": ["one", "glob/*.c"], "outputs": ["out"]},
        {"id": "b", "copy": {"from": "copied", "to": "there"}},
    ]));
    let job_files =
        JobFiles::new(Arc::clone(&graph), tree(&["one", "two", "glob/a.c", "glob/b.h", "copied/x"]));
    let mut wanted: Vec<_> =
        job_files.wanted_files().iter().map(|content| content.digest().unwrap().hex()).collect();
    wanted.sort();
    let mut expected: Vec<_> =
        ["one", "glob/a.c", "copied/x"].map(|path| FUNCTION.digest(path.as_bytes()).hex()).into();
    expected.sort();
    assert_eq!(wanted, expected);
}

/// Layers of tasks, each of which reads by globs and depends on some tasks of the layer before.
fn layered() -> impl Strategy<Value = Vec<Vec<usize>>> {
    prop::collection::vec(prop::collection::vec(0..6_usize, 0..3), 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The files that tasks see do not depend on the order in which tasks ran; they are those made by their
    /// direct and indirect dependencies.
    #[test]
    fn what_is_seen_depends_on_dependencies_alone(back in layered(), draw in any::<u64>()) {
        let tasks: Vec<_> = back
            .iter()
            .enumerate()
            .map(|(at, back)| {
                let earlier: Vec<String> =
                    back.iter().filter_map(|back| at.checked_sub(back + 1)).map(|to| format!("t{to}")).collect();
                serde_json::json!({"id": format!("t{at}"), "command": ["x"], "inputs": ["out/**"],
                    "outputs": [format!("out/{at}/x")], "dependencies": earlier})
            })
            .collect();
        let graph = graph(&tasks.into());
        // Another valid order: always one of the ready tasks, drawn at random.
        let (mut order, mut draw) = (Vec::new(), draw);
        while order.len() < graph.len() {
            let ready: Vec<TaskIndex> = graph
                .indexed()
                .filter(|(index, task)| {
                    !order.contains(index) && task.dependencies.iter().all(|it| order.contains(it))
                })
                .map(|(index, _)| index)
                .collect();
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            order.push(ready[(draw >> 33) as usize % ready.len()]);
        }
        let saw = run_in(&graph, &[], &order);
        prop_assert_eq!(&saw, &run(&graph, &[]));
        for (index, task) in graph.indexed() {
            let mut behind: Vec<usize> = Vec::new();
            let mut next = task.dependencies.clone();
            while let Some(at) = next.pop() {
                if !behind.contains(&at.get()) {
                    behind.push(at.get());
                    next.extend(&graph.task(at).unwrap().dependencies);
                }
            }
            let mut expected: Vec<String> = behind.iter().map(|at| format!("out/{at}/x")).collect();
            expected.sort();
            let mut seen = saw[index.get()].clone().unwrap();
            seen.sort();
            prop_assert_eq!(seen, expected);
        }
    }
}

#[test]
fn of_alternatives_only_their_own_files_are_seen() {
    let graph = graph(&serde_json::json!([
        {"id": "source", "command": ["x"], "outputs": ["out/source"]},
        {"id": "one", "command": ["x"], "outputs": ["out/one"], "dependencies": ["source"]},
        {"id": "two", "command": ["x"], "outputs": ["out/two"], "dependencies": ["source"]},
        {"id": "either", "command": ["x"], "inputs": ["out/*"], "outputs": ["out/either"],
            "dependencies": [{"any": ["one", "two"]}]},
        {"id": "after", "command": ["x"], "inputs": ["out/*"], "outputs": ["after"], "dependencies": ["either"]},
        {"id": "last", "command": ["x"], "inputs": ["out/*"], "dependencies": ["after", "one"]},
    ]));
    let saw = run(&graph, &[]);
    let named = |names: &[&str]| Ok(names.iter().map(|name| format!("out/{name}")).collect::<Vec<_>>());
    assert_eq!(saw[3], named(&["one", "two"]));
    assert_eq!(saw[4], named(&["either", "one", "two"]));
    assert_eq!(saw[5], named(&["either", "one", "source", "two"]));
    let job_files = JobFiles::new(Arc::clone(&graph), Arc::default());
    for (index, task) in graph.indexed() {
        let Step::Command(command) = &task.step else { panic!() };
        let made = |path: &JobPath| (path.as_str().to_owned(), file(task.id.as_str()));
        job_files.record_effect(index, Effect::Adds(command.outputs.iter().map(made).collect()));
        let again = job_files.input_root(index, command, &job_files.visible_to(index)).unwrap();
        assert_eq!(Ok(paths(&again)), saw[index.get()], "{} runs again", task.id);
    }
}

#[test]
fn a_command_may_start_behind_a_symlink() {
    let graph = graph(&serde_json::json!([
        {"id": "a", "command": ["cc"], "inputs": ["current"], "folder": "current"},
        {"id": "b", "command": ["cc"], "inputs": ["current/x"], "folder": "current/sub"},
    ]));
    let mut base = tree(&["v1/x", "v1/sub/y"]);
    Folder::insert_at(&mut base, "current", Node::Link("v1".into()));
    let job_files = JobFiles::new(Arc::clone(&graph), base);
    let (index, task) = graph.indexed().next().unwrap();
    let Step::Command(command) = &task.step else { panic!() };
    let root = job_files.input_root(index, command, &VisibleEffects::default()).unwrap();
    assert_eq!(paths(&root), ["current", "v1/sub/y", "v1/x"]);
}

#[test]
fn what_many_tasks_made_together_is_put_together_once() {
    let producers = (0..20_000).map(|at| {
        serde_json::json!({"id": format!("m{at}"), "command": ["cc"], "outputs": [format!("src/{at}.o")]})
    });
    let inputs: Vec<String> = (0..20_000).map(|at| format!("src/{at}.o")).collect();
    let link = serde_json::json!({"id": "link", "command": ["ld"], "inputs": inputs});
    let graph = graph(&producers.chain([link]).collect());
    let base: Vec<String> = (0..20_000).map(|at| format!("src/{at}.c")).collect();
    let base: Vec<&str> = base.iter().map(String::as_str).collect();
    let began = std::time::Instant::now();
    let saw = run(&graph, &base);
    assert_eq!(saw.last().unwrap().as_ref().unwrap().len(), 20_000);
    // One view per input would copy a folder of 40,000 files 20,000 times.
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn who_made_a_file_is_known_and_sees_again_what_it_saw() {
    let graph = graph(&serde_json::json!([
        {"id": "a", "command": ["cc"], "outputs": ["x/a"]},
        {"id": "b", "command": ["cc"], "inputs": ["x"], "dependencies": ["a"], "outputs": ["b"]},
        {"id": "c", "command": ["cc"], "inputs": ["x"], "dependencies": ["b"], "outputs": ["c"]},
        {"id": "d", "copy": {"from": "c", "to": "d"}, "dependencies": ["c"]},
    ]));
    let job_files = JobFiles::new(Arc::clone(&graph), tree(&["base"]));
    let mut indirect = IndirectDependencies::new(&graph, job_files.watched());
    for index in graph.order() {
        let task = graph.task(*index).unwrap();
        let seen = indirect.begin(&graph, *index);
        let (Step::Command(command), again) = (&task.step, job_files.visible_to(*index)) else { continue };
        let roots = [seen, again].map(|seen| paths(&job_files.input_root(*index, command, &seen).unwrap()));
        assert_eq!(roots[0], roots[1], "{}", task.id);
        let made = |path: &JobPath| (path.as_str().to_owned(), file(task.id.as_str()));
        job_files.record_effect(*index, Effect::Adds(command.outputs.iter().map(made).collect()));
    }
    let digest = |text: &str| FUNCTION.digest(text.as_bytes());
    let producers = |text: &str| {
        job_files.producers(&[digest(text)].into()).iter().map(|at| at.get()).collect::<Vec<_>>()
    };
    assert_eq!((producers("a"), producers("c"), producers("base")), (vec![0], vec![2], vec![]));
}

#[test]
fn what_a_command_is_judged_by_is_not_seen_by_it() {
    let graph = graph(&serde_json::json!([
        {"id": "wanted", "command": ["x"], "outputs": ["wanted"]},
        {"id": "test", "command": ["x"], "inputs": ["in"], "outputs": ["found"],
         "compare": {"found": "found", "expected": "wanted"}},
        {"id": "judge", "compare": {"found": "found", "expected": "in"}},
        {"id": "unseen", "compare": {"found": "found", "expected": "elsewhere"}},
    ]));
    let dependencies = |at: usize| -> Vec<usize> {
        graph.tasks()[at].dependencies.iter().map(|index| index.get()).collect()
    };
    assert_eq!((dependencies(1), dependencies(2)), (vec![0], vec![1]), "the expected file is waited for");
    let saw = run(&graph, &["in"]);
    assert_eq!(saw[1].as_ref().unwrap(), &["in"]);
    assert_eq!(saw[2].as_ref().unwrap(), &["found", "in"]);
    assert_eq!(saw[3].as_ref().unwrap_err(), "elsewhere does not exist");
    // The worker itself finds the expected file.
    let job_files = JobFiles::new(Arc::clone(&graph), tree(&["in"]));
    let mut indirect = IndirectDependencies::new(&graph, job_files.watched());
    let all: Vec<TaskIndex> = graph.indexed().map(|(index, _)| index).collect();
    let _ = indirect.begin(&graph, all[0]);
    job_files.record_effect(all[0], Effect::Adds(vec![("wanted".to_owned(), file("text"))]));
    let seen = indirect.begin(&graph, all[1]);
    let wanted = JobPath::parse("wanted").unwrap();
    assert!(matches!(job_files.expected(all[1], &wanted, &seen), Ok(Node::File { .. })));
}
