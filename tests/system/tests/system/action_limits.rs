//! Actions that request too much, or forbidden things.

use std::time::{Duration, Instant};

use farm::SOON;
use model::{CommandLimits, TaskLimits};
use policy::actions::limits;
use prost::Message as _;
use prost_types::{Struct, value::Kind};
use reapi::{
    digest::to_proto,
    execution::{
        Action, ActionResult, Directory, DirectoryNode, ExecuteOperationMetadata, FileNode, Platform,
        platform::Property,
    },
    rpc,
};
use remote::RemoteError;

use crate::acting::{self, SHA256, processes_with};

/// Time limit for decisions that run nothing.
const AT_ONCE: Duration = Duration::from_secs(3);

fn asking_for(name: &str, value: &str) -> Action {
    let properties = vec![Property { name: name.into(), value: value.into() }];
    Action { platform: Some(Platform { properties }), ..Action::default() }
}

fn reason(metadata: &ExecuteOperationMetadata) -> Option<String> {
    let all = &metadata.partial_execution_metadata.as_ref()?.auxiliary_metadata;
    let any = all.iter().find(|any| any.type_url.ends_with("/google.rpc.Status"))?;
    Some(rpc::Status::decode(any.value.as_slice()).ok()?.message)
}

#[tokio::test]
async fn an_output_folder_may_be_as_deep_as_the_limit() {
    let farm = acting::builder().start().await;
    let remote = acting::remote(&farm).await;
    let deep = |levels: usize| format!("mkdir -p kept{}", "/d".repeat(levels));
    for levels in [200, 255] {
        let response = acting::executed(&remote, acting::upload(&remote, &deep(levels)).await).await;
        let result = response.result.unwrap();
        assert_eq!((result.exit_code, result.output_directories.len()), (0, 1), "{levels} levels");
    }
    let action = acting::upload(&remote, &deep(300)).await;
    let refused = acting::executed(&remote, action).await.status.unwrap();
    assert!(refused.message.contains("deep"), "{refused:?}");
}

#[tokio::test]
async fn a_known_pool_without_executors_says_so_until_one_joins() {
    let farm = acting::builder().start().await;
    let mut executor = farm.take("executor");
    executor.term();
    executor.wait_exit(SOON).await;
    let remote = acting::remote(&farm).await;
    let action = acting::upload(&remote, "echo out").await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let client = remote.clone();
    let execution = tokio::spawn(async move {
        let progress = |_: &str, metadata: &ExecuteOperationMetadata| {
            let _ = tell.send(reason(metadata));
        };
        client.execute(&action, false, 0, progress).await
    });
    let why = async {
        loop {
            if let Some(why) = told.recv().await.expect("it waits") {
                return why;
            }
        }
    };
    let why = tokio::time::timeout(SOON, why).await.expect("a reason is given");
    assert!(why.contains("no executor is live; those that could run the action left"), "{why}");
    farm.keep(farm.spawn("executor").await);
    let executed = tokio::time::timeout(SOON, execution).await.expect("it runs").unwrap().unwrap();
    assert_eq!(acting::stdout(&remote, &executed.response).await, "out\n");
}

#[tokio::test]
async fn what_no_pool_offers_is_refused_at_once() {
    let farm = acting::builder().start().await;
    let remote = acting::remote(&farm).await;
    for (name, value, says) in [
        ("Flavour", "sour", ["ISA", "OSFamily", "Pool"]),
        ("OSFamily", "plan9", ["OSFamily", "plan9", "linux"]),
    ] {
        let (command, root) = (acting::sh("true"), SHA256.empty());
        let action = acting::upload_as(&remote, &command, asking_for(name, value), &root).await;
        let began = Instant::now();
        let error = remote.execute(&action, false, 0, |_, _| {}).await.unwrap_err();
        let RemoteError::Refused { status, .. } = error else { panic!("{error:?}") };
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status:?}");
        for part in [name, value].into_iter().chain(says) {
            assert!(status.message().contains(part), "{part}: {}", status.message());
        }
    }
    let (command, root) = (acting::sh("echo out"), SHA256.empty());
    let fits = acting::upload_as(&remote, &command, asking_for("OSFamily", "Linux"), &root).await;
    let response = acting::executed(&remote, fits).await;
    assert_eq!(acting::stdout(&remote, &response).await, "out\n");
    assert_eq!(acting::histories(&farm).await.len(), 1, "a refused action leaves no record");
}

#[tokio::test]
async fn a_diamond_of_inputs_is_refused_and_harms_nobody() {
    let farm = acting::builder().start().await;
    let remote = acting::remote(&farm).await;
    let content = acting::put(&remote, "content").await;
    let file = FileNode { name: "file".into(), digest: Some(to_proto(&content)), ..FileNode::default() };
    let leaf = Directory { files: vec![file], ..Directory::default() };
    let mut root = acting::put(&remote, leaf.encode_to_vec()).await;
    let mut small = root;
    for depth in 1..=30 {
        let twice = ["a", "b"].map(|name| DirectoryNode { name: name.into(), digest: Some(to_proto(&root)) });
        let directory = Directory { directories: twice.into(), ..Directory::default() };
        root = acting::put(&remote, directory.encode_to_vec()).await;
        if depth == 6 {
            small = root;
        }
    }
    // Two to the power of thirty files cannot be created.
    let action = acting::upload_as(&remote, &acting::sh("true"), Action::default(), &root).await;
    let began = Instant::now();
    let (code, message) = match remote.execute(&action, false, 0, |_, _| {}).await {
        Ok(executed) => {
            let status = executed.response.status.unwrap();
            (status.code, status.message)
        }
        Err(RemoteError::Refused { status, .. }) => (status.code().into(), status.message().to_owned()),
        Err(error) => panic!("{error:?}"),
    };
    assert!(began.elapsed() < AT_ONCE, "{:?}: {message}", began.elapsed());
    assert_eq!(code, i32::from(tonic::Code::InvalidArgument), "{message}");
    // Two to the power of six files can be created.
    let command = acting::sh("find . -name file | wc -l; cat a/b/a/b/a/b/file");
    let action = acting::upload_as(&remote, &command, Action::default(), &small).await;
    let response = acting::executed(&remote, action).await;
    assert_eq!(acting::stdout(&remote, &response).await, "64\ncontent");
}

#[tokio::test]
async fn a_quarter_of_a_gibibyte_of_stdout_is_kept() {
    let farm = acting::builder().start().await;
    let remote = acting::remote(&farm).await;
    let action = acting::upload(&remote, "head -c 268435456 /dev/zero").await;
    let response = acting::executed(&remote, action).await;
    assert_eq!(response.status.as_ref().map_or(0, |status| status.code), 0, "{:?}", response.status);
    let result = response.result.unwrap();
    assert_eq!((result.exit_code, result.stdout_raw.len()), (0, 0));
    let digest = reapi::digest::from_proto(&result.stdout_digest.unwrap(), SHA256).unwrap();
    let (mut read, mut zeros) = (0, true);
    let all = remote.read_to(&digest, async |piece| {
        read += piece.len();
        zeros &= piece.iter().all(|byte| *byte == 0);
        Ok(())
    });
    all.await.unwrap();
    assert_eq!((digest.size, read, zeros), (256 << 20, 256 << 20, true));
}

#[tokio::test]
async fn what_an_action_leaves_in_the_background_is_dead() {
    for sandbox in ["none", "bubblewrap"] {
        let farm = acting::builder().env("FOREBAY_SANDBOX", sandbox).start().await;
        let remote = acting::remote(&farm).await;
        let marker = format!("marker-{}-{sandbox}", std::process::id());
        let script = format!(
            "(sleep 1000; : {marker}) & setsid sh -c 'trap \"\" TERM HUP; sleep 1000; : {marker}' & echo out"
        );
        let action = acting::upload(&remote, &script).await;
        let began = Instant::now();
        let response = acting::executed(&remote, action).await;
        assert_eq!(acting::stdout(&remote, &response).await, "out\n", "{sandbox}");
        assert!(began.elapsed() < SOON, "{sandbox}: it waited for its children");
        assert_eq!(processes_with(&marker), [0_u32; 0], "{sandbox}");
    }
}

#[tokio::test]
async fn an_action_that_writes_to_its_inputs_changes_no_blob() {
    for sandbox in ["none", "bubblewrap"] {
        let farm = acting::builder().env("FOREBAY_SANDBOX", sandbox).start().await;
        let remote = acting::remote(&farm).await;
        let (plain, tool) =
            (acting::put(&remote, "plain\n").await, acting::put(&remote, "#!/bin/sh\necho tool\n").await);
        let file = |name: &str, digest, is_executable| FileNode {
            name: name.into(),
            digest: Some(to_proto(&digest)),
            is_executable,
            ..FileNode::default()
        };
        let files = vec![file("plain", plain, false), file("tool", tool, true)];
        let root = Directory { files, ..Directory::default() };
        let root = acting::put(&remote, root.encode_to_vec()).await;
        let attack = "for f in plain tool; do echo x >> $f; chmod 777 $f; echo x > $f; true > $f; cp /bin/sh $f; \
                      dd if=/dev/zero of=$f bs=1 count=1 conv=notrunc; truncate -s 1 $f; done 2> /dev/null; \
                      rm -f plain; echo mine > plain; cat plain";
        let action = acting::upload_as(&remote, &acting::sh(attack), Action::default(), &root).await;
        let response = acting::executed(&remote, action).await;
        // The action may replace the file.
        assert_eq!(acting::stdout(&remote, &response).await, "mine\n", "{sandbox}");
        for (digest, content) in [(plain, "plain\n"), (tool, "#!/bin/sh\necho tool\n")] {
            assert_eq!(remote.read(&digest).await.unwrap(), content.as_bytes(), "{sandbox}");
        }
        // Other actions read the original file.
        farm.replace("executor", &[]).await;
        let reader = acting::sh("cat plain; ./tool");
        let action = acting::upload_as(&remote, &reader, Action::default(), &root).await;
        let response = acting::executed(&remote, action).await;
        assert_eq!(acting::stdout(&remote, &response).await, "plain\ntool\n", "{sandbox}");
    }
}

/// Creates an action with only these limits.
fn limited(limits: &TaskLimits) -> Action {
    let property = |(name, value)| Property { name, value };
    let all = CommandLimits { common: *limits, ..CommandLimits::default() };
    let properties = limits::properties(&all).into_iter().map(property).collect();
    let timeout = limits.wall_ms.map(|millis| reapi::protobuf::Duration {
        seconds: i64::try_from(millis / 1000).unwrap(),
        nanos: i32::try_from(millis % 1000 * 1_000_000).unwrap(),
    });
    Action { platform: Some(Platform { properties }), timeout, ..Action::default() }
}

/// Returns the limit that was exceeded according to the result's metadata: its name, the limit and the usage.
fn broken(result: &ActionResult) -> Option<(String, f64, f64)> {
    let metadata = result.execution_metadata.as_ref()?;
    let of = |any: &reapi::protobuf::Any| Struct::decode(any.value.as_slice()).ok();
    let fields = metadata.auxiliary_metadata.iter().find_map(of)?.fields;
    let Some(Kind::StringValue(name)) = fields.get("limit")?.kind.clone() else { panic!("{fields:?}") };
    let number = |name: &str| match fields.get(name).and_then(|value| value.kind.clone()) {
        Some(Kind::NumberValue(number)) => number,
        other => panic!("{name}: {other:?}"),
    };
    Some((name, number("limit_allowed"), number("limit_used")))
}

#[tokio::test]
async fn what_uses_more_than_it_may_fails_by_its_own_fault() {
    let none = TaskLimits::default();
    let cases = [
        ("cpu_ms", TaskLimits { cpu_ms: Some(300), ..none }, "while :; do :; done"),
        ("wall_ms", TaskLimits { wall_ms: Some(2000), ..none }, "sleep 1000"),
        (
            "memory_bytes",
            TaskLimits { memory_bytes: Some(50_000_000), ..none },
            "dd if=/dev/zero of=/dev/null bs=90M count=100000",
        ),
        ("processes", TaskLimits { processes: Some(20), ..none }, "b() { b | b & }; b; sleep 1000"),
        ("files", TaskLimits { files: Some(9), ..none }, "i=0; while :; do i=$((i+1)); : >f$i; done"),
        ("disk_bytes", TaskLimits { disk_bytes: Some(1_000_000), ..none }, "cat /dev/zero >kept"),
        ("output_bytes", TaskLimits { output_bytes: Some(1000), ..none }, "while :; do echo more; done"),
    ];
    for sandbox in ["none", "bubblewrap"] {
        let farm = acting::builder().env("FOREBAY_SANDBOX", sandbox).start().await;
        let remote = acting::remote(&farm).await;
        for (name, limits, script) in &cases {
            let root = SHA256.empty();
            let action = acting::upload_as(&remote, &acting::sh(script), limited(limits), &root).await;
            let response = acting::executed(&remote, action).await;
            let status = response.status.clone().unwrap_or_default();
            let (code, property) = match *name {
                "wall_ms" => (tonic::Code::DeadlineExceeded, "timeout".to_owned()),
                _ => (tonic::Code::ResourceExhausted, format!("limit-{}", name.replace('_', "-"))),
            };
            assert_eq!(status.code, i32::from(code), "{sandbox} {name}: {status:?}");
            assert!(status.message.contains(&property), "{sandbox} {name}: {}", status.message);
            let (limit, allowed, used) = broken(response.result.as_ref().unwrap()).expect("it is reported");
            assert!(limit == *name && used > allowed && allowed > 0.0, "{limit} {allowed} {used}");
            // An action within the limits is not affected.
            let small = acting::sh("echo kept >kept; sleep 0.2; cat kept");
            let action = acting::upload_as(&remote, &small, limited(limits), &root).await;
            let response = acting::executed(&remote, action).await;
            assert_eq!(acting::stdout(&remote, &response).await, "kept\n", "{sandbox} {name}");
            assert_eq!(broken(response.result.as_ref().unwrap()), None);
        }
        // None of them was retried.
        for records in acting::histories(&farm).await.values() {
            assert_eq!(records.len(), 2, "{sandbox}: {records:?}");
        }
    }
}

#[tokio::test]
async fn limits_that_say_nothing_or_too_much_are_refused_at_once() {
    let farm = acting::builder().env("FOREBAY_ACTION_PROCESSES_MAX", "30").start().await;
    let remote = acting::remote(&farm).await;
    for (name, value, code, says) in [
        ("limit-cpu-ms", "0", tonic::Code::InvalidArgument, "above 0"),
        ("limit-memory-bytes", "1e9", tonic::Code::InvalidArgument, "above 0"),
        ("limit-cpu", "7", tonic::Code::InvalidArgument, "limit-cpu-ms"),
        ("limit-processes", "31", tonic::Code::FailedPrecondition, "at most 30"),
    ] {
        let (command, root) = (acting::sh("true"), SHA256.empty());
        let action = acting::upload_as(&remote, &command, asking_for(name, value), &root).await;
        let error = remote.execute(&action, false, 0, |_, _| {}).await.unwrap_err();
        let RemoteError::Refused { status, .. } = error else { panic!("{error:?}") };
        assert_eq!(status.code(), code, "{status:?}");
        for part in [name, value, says] {
            assert!(status.message().contains(part), "{part}: {}", status.message());
        }
    }
    // The limit in the settings applies to actions without their own.
    let action =
        acting::upload(&remote, "i=0; while [ $i -lt 40 ]; do sleep 9 & i=$((i+1)); done; wait").await;
    let response = acting::executed(&remote, action).await;
    let (limit, allowed, _) = broken(response.result.as_ref().unwrap()).expect("it is reported");
    assert_eq!((limit.as_str(), allowed.to_string().as_str()), ("processes", "30"));
}
