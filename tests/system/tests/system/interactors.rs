//! Actions and tasks with an interactor, which talks with their command.

use farm::{Builder, Farm, SOON};
use model::{BlobDigest, Outcome, TaskStatus};
use reapi::{
    canonical::encode,
    execution::{Action, Directory, DirectoryNode, ExecuteResponse, FileNode, Platform, platform::Property},
};
use remote::{Remote, RemoteError, Source};
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    acting::{self, ACTING, SHA256, processes_with},
    check::until,
    images::refusal,
    jobs::{self, Ended},
    services::rounds,
};

/// An interactor with a secret number in the file `secret`: it answers each guess, accepts the right one,
/// and rejects more than ten.
const INTERACTOR: &str = r#"secret=$(cat secret)
for try in 1 2 3 4 5 6 7 8 9 10; do
    read guess || { echo "no guess" >&2; exit 3; }
    echo "guess $guess" >&2
    if [ "$guess" -eq "$secret" ]; then echo right; cat > /dev/null; exit 0; fi
    if [ "$guess" -lt "$secret" ]; then echo higher; else echo lower; fi
done
exit 1"#;

/// A command that finds the number from 1 to 1000.
const SEARCH: &str = r"low=1; high=1000
while :; do
    middle=$(((low + high) / 2)); echo $middle; read answer
    case $answer in higher) low=$((middle + 1));; lower) high=$((middle - 1));; right) exit 0;; esac
done";

fn acting_builder() -> Builder {
    Farm::builder().only(&ACTING)
}

async fn job_farm() -> Farm {
    jobs::start(Farm::builder().with_actions().workspaces(1)).await
}

/// A task with an interactor.
fn task(id: &str, script: &str, interactor: &str) -> Value {
    let mut task = jobs::sh(id, script);
    task["inputs"] = json!(["plain"]);
    task["interactor"] = json!({"command": ["/bin/sh", "-c", interactor], "inputs": ["secret"]});
    task
}

/// Runs these tasks and one before them that makes the files `secret` and `plain`.
async fn run(farm: &Farm, tasks: &[Value]) -> Ended {
    let mut make = jobs::sh("make", "echo 700 > secret; echo plain > plain");
    make["outputs"] = json!(["secret", "plain"]);
    let tasks: Vec<Value> = [make].into_iter().chain(tasks.iter().cloned()).collect();
    jobs::run(farm, jobs::request(jobs::job(&tasks.into()))).await
}

/// What the interactor of a task wrote to standard error.
async fn log(farm: &Farm, ended: &Ended, id: &str) -> String {
    let digest = ended.task(id).service_logs.get("interactor.stderr");
    let digest = digest.unwrap_or_else(|| panic!("{:#?}", ended.task(id)));
    jobs::content(farm, &model::Digest::from_sha256(digest.hash)).await
}

#[tokio::test]
async fn a_task_talks_with_its_interactor_which_decides_its_verdict() {
    let farm = job_farm().await;
    let mut limited =
        task("never-right", "trap '' PIPE; while :; do echo 1; read answer || exit 0; done", INTERACTOR);
    limited["interactor"]["limits"] = json!({"memory_bytes": 100_000_000, "processes": 10});
    let tasks = [
        task("right", SEARCH, INTERACTOR),
        limited,
        task("silent", "exit 4", INTERACTOR),
        task("own-fault", &format!("({SEARCH}); exit 5"), INTERACTOR),
        task("broken-interactor", "read line", "exec /no/such/program"),
    ];
    let ended = run(&farm, &tasks).await;
    let codes = |id: &str| {
        let report = ended.task(id);
        (report.status, report.exit_code, report.interactor.as_ref().map(|interactor| interactor.exit_code))
    };
    assert_eq!(codes("right"), (TaskStatus::Succeeded, Some(0), Some(0)), "{:#?}", ended.reports);
    assert_eq!(codes("never-right"), (TaskStatus::Failed, Some(0), Some(1)));
    assert_eq!(codes("silent"), (TaskStatus::Failed, Some(4), Some(3)));
    assert_eq!(codes("own-fault"), (TaskStatus::Failed, Some(5), Some(0)));
    assert_eq!(codes("broken-interactor").0, TaskStatus::Failed);
    assert_eq!(ended.reason("never-right"), "its interactor ended with exit code 1");
    let both = "its interactor ended with exit code 3, the command with exit code 4";
    assert_eq!(ended.reason("silent"), both);
    assert!(ended.reason("own-fault").starts_with("exit code 5, although"), "{}", ended.reason("own-fault"));
    assert!(log(&farm, &ended, "right").await.ends_with("guess 700\n"));
    assert_eq!(log(&farm, &ended, "silent").await, "no guess\n");
    assert!(ended.task("right").figures.is_some(), "the command is measured");
    let again = run(&farm, &tasks[..1]).await;
    let report = again.task("right");
    let interactor = report.interactor.as_ref().map(|interactor| interactor.exit_code);
    assert_eq!(
        (again.outcome(), report.cached, interactor),
        (Outcome::Succeeded, true, Some(0)),
        "{report:#?}"
    );
}

#[tokio::test]
async fn the_command_sees_nothing_of_its_interactor() {
    let farm = job_farm().await;
    // Each looks while the other waits for it.
    let look = "ls -aR . /tmp; cat secret .forebay/secret; cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
    let spy = format!(": mark-of-command; read go; ({look}) >&2; exit 0");
    let mut spying =
        task("spy", &spy, &format!(": mark-of-interactor; echo go; ({look}) >&2; read end; exit 0"));
    spying["outputs"] = json!([]);
    let ended = run(&farm, &[spying]).await;
    assert_eq!(ended.status("spy"), TaskStatus::Succeeded, "{:#?}", ended.reports);
    let seen = jobs::console(&farm, &ended.record.build.key()).await;
    assert!(seen.contains("mark-of-command") && seen.contains("plain"), "{seen}");
    for hidden in ["700", "mark-of-interactor"] {
        assert!(!seen.contains(hidden), "the command sees {hidden}: {seen}");
    }
    let listed = seen.split("mark-of-command").next().unwrap();
    assert!(!listed.lines().any(|line| line == "secret" || line == ".forebay"), "{listed}");
    let of_interactor = log(&farm, &ended, "spy").await;
    assert!(of_interactor.contains("700") && of_interactor.contains("mark-of-interactor"), "{of_interactor}");
    assert!(
        !of_interactor.contains("plain") && !of_interactor.contains("mark-of-command"),
        "{of_interactor}"
    );
}

#[tokio::test]
async fn two_that_wait_for_each_other_end_at_the_time_limit_and_it_is_said() {
    let farm = job_farm().await;
    let limited = |id: &str, script: &str, interactor: &str| {
        let mut task = task(id, script, interactor);
        // The start of both must be a small part of it, also on a busy machine.
        task["limits"] = json!({"wall_ms": 4000});
        task
    };
    let busy = "while :; do :; done";
    let mut impatient = limited("impatient", "sleep 100", "sleep 100");
    impatient["interactor"]["limits"] = json!({"wall_ms": 300});
    let tasks =
        [limited("both-read", "read line", "read line"), limited("busy", busy, "read line"), impatient];
    let ended = run(&farm, &tasks).await;
    for id in ["both-read", "busy"] {
        assert_eq!(ended.status(id), TaskStatus::OverLimit, "{:#?}", ended.task(id));
        assert!(ended.reason(id).contains("its time limit"), "{}", ended.reason(id));
    }
    assert!(ended.reason("both-read").contains("deadlock"), "{}", ended.reason("both-read"));
    assert_eq!(ended.status("impatient"), TaskStatus::Failed, "{:#?}", ended.task("impatient"));
    let reason = ended.reason("impatient");
    assert!(reason.contains("the interactor was killed after ") && reason.contains("is 0.3 s"), "{reason}");
}

#[tokio::test]
async fn processor_time_of_the_interactor_is_not_that_of_the_command_and_each_has_its_own_limit() {
    let farm = job_farm().await;
    let busy = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done";
    let mut cheap = task("cheap", "read line; exit 0", &format!("{busy}; echo done; read line; exit 0"));
    cheap["limits"] = json!({"cpu_ms": 300});
    cheap["measure"] = json!({"runs": 2, "max_disturbed": 0});
    let mut dear = task("dear", "read line; exit 0", &format!("{busy}; {busy}; {busy}; echo done"));
    dear["interactor"]["limits"] = json!({"cpu_ms": 200});
    let ended = run(&farm, &[cheap, dear]).await;
    let report = ended.task("cheap");
    assert_eq!(report.status, TaskStatus::Succeeded, "{report:#?}");
    assert_eq!(report.measurement.as_ref().unwrap().cpu.n, 2);
    let (own, other) = (report.cpu_ms.unwrap(), report.interactor.as_ref().unwrap().cpu_ms);
    assert!(other > 2 * own && other > 100, "{report:#?}");
    assert_eq!(ended.status("dear"), TaskStatus::Failed, "{:#?}", ended.task("dear"));
    assert!(ended.reason("dear").contains("the interactor used "), "{}", ended.reason("dear"));
}

/// An action of the command line `argv` with an interactor, over an input root with `secret` in the folder `judge`.
async fn action(remote: &Remote, interactor: &Value, script: &str) -> BlobDigest {
    let secret = acting::put(remote, "700").await;
    let file = FileNode {
        name: "secret".to_owned(),
        digest: Some(reapi::digest::to_proto(&secret)),
        ..FileNode::default()
    };
    let (judge, of_judge) = encode(&Directory { files: vec![file], ..Directory::default() }, SHA256);
    let node = DirectoryNode { name: "judge".to_owned(), digest: Some(reapi::digest::to_proto(&judge)) };
    let (root, of_root) = encode(&Directory { directories: vec![node], ..Directory::default() }, SHA256);
    remote.upload(&[(judge, Source::Bytes(of_judge)), (root, Source::Bytes(of_root))].into()).await.unwrap();
    let property = Property { name: "forebay-interactor".to_owned(), value: interactor.to_string() };
    let action = Action { platform: Some(Platform { properties: vec![property] }), ..Action::default() };
    let mut command = acting::sh(script);
    command.output_paths.clear();
    acting::upload_as(remote, &command, action, &root).await
}

async fn execute(remote: &Remote, action: BlobDigest) -> Result<ExecuteResponse, RemoteError> {
    let ended = tokio::time::timeout(4 * SOON, remote.execute(&action, false, 0, |_, _| {})).await;
    ended.expect("the execution ends").map(|executed| executed.response)
}

#[tokio::test]
async fn any_action_has_an_interactor_by_a_property() {
    let farm = acting_builder().start().await;
    let remote = acting::remote(&farm).await;
    let interactor = json!({"command": ["/bin/sh", "-c", INTERACTOR], "folder": "judge"});
    let found = format!("test ! -e judge || exit 9; {SEARCH}");
    let response = execute(&remote, action(&remote, &interactor, &found).await).await.unwrap();
    assert_eq!(response.result.as_ref().unwrap().exit_code, 0, "{response:#?}");
    assert!(response.server_logs.contains_key("interactor.stderr"), "{response:#?}");
    assert!(execute(&remote, action(&remote, &interactor, &found).await).await.unwrap().cached_result);
    // Its exit code is that of the action, whose result is not cached then.
    for _ in 0..2 {
        let rejected = execute(&remote, action(&remote, &interactor, "exit 0").await).await.unwrap();
        assert_eq!(rejected.result.as_ref().unwrap().exit_code, 3, "{rejected:#?}");
        assert!(!rejected.cached_result);
    }
}

#[tokio::test]
async fn what_is_wrong_with_an_interactor_is_said() {
    let farm = acting_builder().env("FOREBAY_ACTION_MEMORY_BYTES_MAX", "400000000").start().await;
    let remote = acting::remote(&farm).await;
    let command = json!(["/bin/true"]);
    for (interactor, code, expected) in [
        (json!("judge"), Code::InvalidArgument, "expected an interactor as JSON"),
        (json!({"command": []}), Code::InvalidArgument, "the command of the interactor is invalid"),
        (
            json!({"command": command, "folder": "../x"}),
            Code::InvalidArgument,
            "the folder of the interactor",
        ),
        (
            json!({"command": command, "folder": "nowhere"}),
            Code::FailedPrecondition,
            "the folder \"nowhere\" of the interactor is not in the input root",
        ),
        (
            json!({"command": command, "limits": {"memory_bytes": 500_000_000}}),
            Code::FailedPrecondition,
            "the interactor: ",
        ),
        (json!({"command": ["/no/judge"]}), Code::FailedPrecondition, "the interactor cannot be started"),
    ] {
        let (found, message) = refusal(execute(&remote, action(&remote, &interactor, "true").await).await);
        assert_eq!(found, code, "{interactor}: {message}");
        assert!(message.contains(expected), "{interactor}: {message}");
    }
    let plain = Farm::builder().only(&ACTING).env("FOREBAY_SANDBOX", "none").start().await;
    let remote = acting::remote(&plain).await;
    let interactor = json!({ "command": command });
    let (code, message) = refusal(execute(&remote, action(&remote, &interactor, "true").await).await);
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.contains("an executor runs actions with an interactor if"), "{message}");
}

#[tokio::test]
async fn chaos_a_killed_executor_leaves_nothing_of_its_interactor() {
    let farm = acting_builder().start().await;
    let remote = acting::remote(&farm).await;
    for round in 0..rounds() {
        let marker = acting::own(&format!("88{round}66.5"));
        let interactor =
            json!({"command": ["/bin/sh", "-c", format!("trap '' TERM; sleep {marker} & sleep {marker}")]});
        let action = action(&remote, &interactor, &format!("sleep {marker}")).await;
        let running = acting::execute(&remote, action);
        // Two of the interactor and one of the command.
        until("all run", SOON, || processes_with(&format!("sleep\0{marker}")).len() >= 3).await;
        let mut executor = farm.take("executor");
        executor.kill9();
        executor.wait_exit(SOON).await;
        until("its processes are dead", SOON, || processes_with(&marker).is_empty()).await;
        running.abort();
        farm.keep(farm.spawn("executor").await);
        let left = || {
            std::fs::read_dir(farm.data().join("executor/0/slots"))
                .is_ok_and(|slots| slots.flatten().all(|slot| !slot.path().join("interactor").exists()))
        };
        until("its files are gone", SOON, left).await;
    }
}
