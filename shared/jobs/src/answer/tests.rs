use model::{Graph, Job, JobLimits, Step};
use prost_types::Value;
use reapi::{
    canonical::encode,
    digest::to_proto,
    execution::{DirectoryNode, FileNode, OutputDirectory, OutputFile, OutputSymlink},
    protobuf::Any,
};

use super::*;

fn graph(task: &serde_json::Value) -> Graph {
    let job: Job = serde_json::from_value(serde_json::json!({ "tasks": [task] })).unwrap();
    Graph::new(&job, &JobLimits::NONE).unwrap()
}

fn first(graph: &Graph) -> &Task {
    graph.tasks().first().unwrap()
}

fn status(code: Code) -> rpc::Status {
    rpc::Status { code: code.into(), message: "so it is".into(), details: Vec::new() }
}

fn ran(exit_code: i32, limit: Option<&str>) -> ActionResult {
    let number = |value| Value { kind: Some(Kind::NumberValue(value)) };
    let mut fields: std::collections::BTreeMap<String, Value> = [
        ("cpu_seconds".into(), number(1.5)),
        ("peak_memory_bytes".into(), number(4096.0)),
        ("voluntary_context_switches".into(), number(12.0)),
        ("involuntary_context_switches".into(), number(3.0)),
        ("processors".into(), number(4.0)),
        ("own_processors".into(), number(1.0)),
        ("steal_seconds".into(), number(0.25)),
        ("other_cpu_seconds".into(), number(0.5)),
    ]
    .into();
    if let Some(limit) = limit {
        fields.insert("limit".into(), Value { kind: Some(Kind::StringValue(limit.into())) });
    }
    let usage = Any {
        type_url: "type.googleapis.com/google.protobuf.Struct".into(),
        value: Struct { fields }.encode_to_vec(),
    };
    let metadata = ExecutedActionMetadata {
        worker: "executor-1".into(),
        virtual_execution_duration: Some(reapi::protobuf::Duration { seconds: 2, nanos: 500_000_000 }),
        auxiliary_metadata: vec![usage],
        ..ExecutedActionMetadata::default()
    };
    ActionResult { exit_code, execution_metadata: Some(metadata), ..ActionResult::default() }
}

#[test]
fn an_end_of_a_command_is_told_with_what_it_used() {
    let graph = graph(&serde_json::json!({"id": "a", "command": ["x"]}));
    let good = report(first(&graph), &status(Code::Ok), Some(&ran(0, None)), true, b"");
    assert_eq!((good.status, good.cached, good.exit_code), (TaskStatus::Succeeded, true, Some(0)));
    assert_eq!(good.executor.as_deref(), Some("executor-1"));
    assert_eq!((good.wall_ms, good.cpu_ms, good.memory_bytes), (Some(2500), Some(1500), Some(4096)));
    let figures = good.figures.unwrap();
    assert_eq!((figures.wall_us, figures.cpu_us, figures.memory_bytes), (2_500_000, 1_500_000, 4096));
    assert_eq!((figures.voluntary_switches, figures.involuntary_switches), (12, 3));
    let seen = figures.interference.unwrap();
    assert_eq!(
        (seen.processors, seen.own_processors, seen.steal_us, seen.other_us),
        (4, true, 250_000, 500_000)
    );
    let bad = report(first(&graph), &status(Code::Ok), Some(&ran(2, None)), false, b"");
    assert_eq!((bad.status, bad.reason.as_deref()), (TaskStatus::Failed, Some("exit code 2")));
}

#[test]
fn whose_fault_it_is_decides_whether_it_goes_elsewhere() {
    let graph = graph(&serde_json::json!({"id": "a", "command": ["x"]}));
    let over = ran(-1, Some("memory_bytes"));
    for (code, result, expected) in [
        (Code::DeadlineExceeded, None, TaskStatus::OverLimit),
        (Code::ResourceExhausted, Some(&over), TaskStatus::OverLimit),
        (Code::ResourceExhausted, None, TaskStatus::FarmFailed),
        (Code::Unavailable, None, TaskStatus::FarmFailed),
        (Code::Internal, None, TaskStatus::FarmFailed),
        (Code::Aborted, None, TaskStatus::FarmFailed),
        (Code::Cancelled, None, TaskStatus::FarmFailed),
        (Code::InvalidArgument, None, TaskStatus::Failed),
        (Code::FailedPrecondition, None, TaskStatus::Failed),
        (Code::Ok, None, TaskStatus::FarmFailed),
    ] {
        let report = report(first(&graph), &status(code), result, false, b"");
        assert_eq!(report.status, expected, "{code:?}");
        assert_eq!(report.exit_code, None);
        if code != Code::Ok {
            assert_eq!(report.reason.as_deref(), Some("so it is"));
        }
    }
}

#[test]
fn a_judge_gives_a_score_or_fails() {
    let graph = graph(&serde_json::json!({"id": "j", "command": ["x"], "judge": true}));
    let judge = |exit, text: &str| {
        report(first(&graph), &status(Code::Ok), Some(&ran(exit, None)), false, text.as_bytes())
    };
    assert_eq!(
        (judge(1, "0.5 or so").status, judge(1, "0.5 or so").score),
        (TaskStatus::Succeeded, Some(0.5))
    );
    for (exit, text) in [(0, "NaN"), (0, ""), (0, "2"), (3, "1")] {
        assert_eq!((judge(exit, text).status, judge(exit, text).score), (TaskStatus::Failed, None), "{text}");
    }
}

fn command(graph: &Graph) -> &CommandStep {
    let Step::Command(command) = &first(graph).step else { panic!() };
    command
}

#[test]
fn outputs_are_found_whatever_folder_the_command_starts_in() {
    let graph = graph(&serde_json::json!({"id": "a", "command": ["x"], "folder": "sub",
        "outputs": ["sub/out", "top", "tree", "link"]}));
    let digest = FUNCTION.digest(b"x");
    let file = |path: &str| OutputFile {
        path: path.into(),
        digest: Some(to_proto(&digest)),
        is_executable: path == "out",
        ..OutputFile::default()
    };
    let folder = OutputDirectory {
        path: "../tree".into(),
        tree_digest: Some(to_proto(&digest)),
        ..Default::default()
    };
    let link = OutputSymlink { path: "../link".into(), target: "top".into(), node_properties: None };
    let mut result = ActionResult {
        output_files: vec![file("out"), file("../top")],
        output_directories: vec![folder],
        output_symlinks: vec![link],
        ..ActionResult::default()
    };
    let Ok(made) = outputs(command(&graph), &result) else { panic!() };
    let paths: Vec<&str> = made.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["link", "sub/out", "top", "tree"]);
    let executable = made
        .iter()
        .filter(|(_, made)| matches!(made, ProducedOutput::Node(Node::File { executable: true, .. })));
    assert_eq!(executable.count(), 1);
    result.output_files.pop();
    let Err(why) = outputs(command(&graph), &result) else { panic!() };
    assert_eq!(why, "output top is missing");
}

#[test]
fn an_output_folder_is_read_as_it_was() {
    let file =
        FileNode { name: "f".into(), digest: Some(to_proto(&FUNCTION.digest(b"1"))), ..Default::default() };
    let leaf = Directory { files: vec![file], ..Directory::default() };
    let (leaf_digest, _) = encode(&leaf, FUNCTION);
    let node = |name: &str| DirectoryNode { name: name.into(), digest: Some(to_proto(&leaf_digest)) };
    let root = Directory { directories: vec![node("a"), node("b")], ..Directory::default() };
    let (root_digest, _) = encode(&root, FUNCTION);
    let tree = Tree { root: Some(root.clone()), children: vec![leaf] };
    let folder = folder_of(&tree.encode_to_vec()).unwrap();
    assert_eq!(folder.message().unwrap().0, root_digest);
    let broken = Tree { root: Some(root), children: Vec::new() };
    assert!(folder_of(&broken.encode_to_vec()).is_err());
    let evil = DirectoryNode { name: "../x".into(), digest: Some(to_proto(&leaf_digest)) };
    let evil = Directory { directories: vec![evil], ..Directory::default() };
    assert!(folder_of(&Tree { root: Some(evil), children: Vec::new() }.encode_to_vec()).is_err());
}
