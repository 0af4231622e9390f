//! Actions that get devices of the machine for themselves.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use farm::{Builder, Farm, SOON};
use nix::{
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::geteuid,
};
use reapi::{
    execution::{Action, Platform, platform::Property},
    protobuf::Duration,
};
use remote::{Executed, Remote, RemoteError};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{
    acting::{self, ACTING, SHA256, own, processes_with},
    check::until,
};

/// Nodes that only these tests have: each reads as zeros, like `/dev/zero`.
struct Nodes {
    folder: TempDir,
}

impl Nodes {
    /// `None` where this user may make no nodes.
    fn of(names: &[&str]) -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can make the nodes of devices");
            return None;
        }
        // The sandbox shows nothing of the machine's /dev, where TMPDIR may be.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for name in names {
            let path = folder.path().join(name);
            mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 5)).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        }
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A farm whose executor has two slots and these devices, of which each is a list of names.
    fn farm(&self, devices: &[&[&str]]) -> Builder {
        let entry = |names: &&[&str]| names.iter().map(|name| self.path(name)).collect::<Vec<_>>().join("+");
        let entries: Vec<String> = devices.iter().map(entry).collect();
        let setting = serde_json::json!({ "gpu": entries }).to_string();
        Farm::builder()
            .only(&ACTING)
            .env("FOREBAY_EXECUTOR_DEVICES", &setting)
            .env("FOREBAY_EXECUTOR_SLOTS", "2")
    }

    /// A script that prints the nodes it sees, those it can read from, and the variable.
    fn script(&self) -> String {
        let folder = self.folder.path().display();
        format!(
            "[ ! -d {folder} ] || ls {folder}; for node in {folder}/*; do head -c 2 $node 2>/dev/null | wc -c; done; \
             echo \"variable=$CUDA_VISIBLE_DEVICES\"; "
        )
    }
}

async fn asking(remote: &Remote, script: &str, gpus: &str, timeout: Option<i64>) -> model::BlobDigest {
    let properties = vec![Property { name: "resources:gpu".into(), value: gpus.into() }];
    let action = Action {
        platform: Some(Platform { properties }),
        timeout: timeout.map(|seconds| Duration { seconds, nanos: 0 }),
        ..Action::default()
    };
    acting::upload_as(remote, &acting::sh(script), action, &SHA256.empty()).await
}

/// What the actions wrote, sorted: it is not known which of them gets which device.
async fn sorted_outputs(
    remote: &Remote,
    actions: Vec<JoinHandle<Result<Executed, RemoteError>>>,
) -> Vec<String> {
    let mut said = Vec::new();
    for action in actions {
        said.push(acting::stdout(remote, &action.await.unwrap().unwrap().response).await);
    }
    said.sort();
    said
}

#[tokio::test]
async fn two_actions_at_once_get_different_devices_and_others_see_none() {
    let Some(nodes) = Nodes::of(&["a0", "a1", "ctl"]) else { return };
    // The user of actions can enter the folders above it, which those of the checkout may not allow.
    let go = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(go.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let shown = serde_json::json!([go.path()]).to_string();
    let farm =
        nodes.farm(&[&["a0", "ctl"], &["a1", "ctl"]]).env("FOREBAY_SANDBOX_READ_ONLY", &shown).start().await;
    let remote = acting::remote(&farm).await;
    let go = go.path().join("go");
    let mut waiting = Vec::new();
    for name in [own("first-of-two-"), own("second-of-two-")] {
        let script =
            format!("{} while [ ! -e {} ]; do sleep 0.02; done; : {name}", nodes.script(), go.display());
        waiting.push(acting::execute(&remote, asking(&remote, &script, "1", None).await));
        until("it runs", SOON, || !processes_with(&name).is_empty()).await;
    }
    fs::write(&go, "").unwrap();
    let said = sorted_outputs(&remote, waiting).await;
    assert_eq!(said, ["a0\nctl\n2\n2\nvariable=0\n", "a1\nctl\n2\n2\nvariable=0\n"]);
    // Both slots had devices before.
    for _ in 0..2 {
        let action = acting::upload(&remote, &format!("{} : $$ {}", nodes.script(), said.len())).await;
        let none = acting::executed(&remote, action).await;
        assert_eq!(acting::stdout(&remote, &none).await, "0\nvariable=\n");
    }
    let both = acting::executed(&remote, asking(&remote, &nodes.script(), "2", None).await).await;
    assert_eq!(acting::stdout(&remote, &both).await, "a0\na1\nctl\n2\n2\n2\nvariable=0,1\n");
}

#[tokio::test]
async fn a_killed_action_returns_its_device_when_all_its_processes_are_dead() {
    let Some(nodes) = Nodes::of(&["only"]) else { return };
    let farm = nodes.farm(&[&["only"]]).start().await;
    let remote = acting::remote(&farm).await;
    let marker = own("stubborn-device-");
    let stubborn = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done; : {marker}' & \
         while :; do sleep 1; done; : {marker}"
    );
    let killed = acting::execute(&remote, asking(&remote, &stubborn, "1", Some(2)).await);
    until("it runs", SOON, || !processes_with(&marker).is_empty()).await;
    let next = acting::executed(&remote, asking(&remote, &nodes.script(), "1", None).await).await;
    assert!(processes_with(&marker).is_empty(), "it has died before");
    assert_eq!(acting::stdout(&remote, &next).await, "only\n2\nvariable=0\n");
    let status = killed.await.unwrap().unwrap().response.status.unwrap();
    assert_eq!(status.code, i32::from(tonic::Code::DeadlineExceeded), "{status:?}");
}

#[tokio::test]
async fn more_devices_than_there_are_and_parts_of_one_are_refused() {
    let Some(nodes) = Nodes::of(&["a0"]) else { return };
    let farm = nodes.farm(&[&["a0"]]).start().await;
    let remote = acting::remote(&farm).await;
    for (gpus, says) in [("2", "available at most: 1"), ("0.5", "ask for a whole number")] {
        let action = asking(&remote, "true", gpus, None).await;
        let (code, message) = match remote.execute(&action, false, 0, |_, _| {}).await {
            Ok(executed) => {
                let status = executed.response.status.unwrap();
                (tonic::Code::from(status.code), status.message)
            }
            Err(RemoteError::Refused { status, .. }) => (status.code(), status.message().to_owned()),
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!(code, tonic::Code::FailedPrecondition, "{message}");
        assert!(message.contains(says), "{message}");
    }
}

#[tokio::test]
async fn without_a_sandbox_the_variable_has_the_positions_of_the_devices() {
    let Some(nodes) = Nodes::of(&["a0", "a1"]) else { return };
    let farm = nodes.farm(&[&["a0"], &["a1"]]).env("FOREBAY_SANDBOX", "none").start().await;
    let remote = acting::remote(&farm).await;
    let go: PathBuf = farm.folder().join("go");
    let mut waiting = Vec::new();
    for name in [own("bare-device-one-"), own("bare-device-two-")] {
        let go = go.display();
        let script =
            format!("echo \"$CUDA_VISIBLE_DEVICES\"; while [ ! -e {go} ]; do sleep 0.02; done; : {name}");
        waiting.push(acting::execute(&remote, asking(&remote, &script, "1", None).await));
        until("it runs", SOON, || !processes_with(&name).is_empty()).await;
    }
    fs::write(&go, "").unwrap();
    let said = sorted_outputs(&remote, waiting).await;
    assert_eq!(said, ["0\n", "1\n"]);
}
