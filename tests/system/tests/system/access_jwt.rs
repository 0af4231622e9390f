//! `forebay access` where users have JWTs: the commands of the documents, and a client in another language.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use farm::{Guard, Output, Port, bare_command};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};

use crate::{
    access::{Folder, nats},
    python::python,
};

const APPLY: &str = "apply --seeds seeds --nats-config users.conf --redis-acl users.acl";
/// Time within which a revoked user is disconnected.
const REVOKED_WITHIN: Duration = Duration::from_secs(5);

fn files(folder: &Folder, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path().join("seeds")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|found| found == end)).collect()
}

#[tokio::test]
async fn the_description_of_users_with_jwts_has_no_secrets_and_its_files_are_private() {
    let folder = Folder::new();
    let made = folder.json("init --jwt --seeds seeds --user-days 90").await;
    // 17 services; the operator, the farm and the servers have two keys each.
    assert_eq!(made["seeds"].as_array().unwrap().len(), 17 + 6);
    assert_eq!(folder.json("init --jwt --seeds seeds").await["changed"], false);
    assert!(folder.refused("init --jwt --seeds seeds --user-days 9").await.contains("user_days"));
    assert!(folder.refused("grant tenant one --group g").await.contains("--seeds"));
    let made = folder.json("grant tenant one --group g --priority batch --seeds seeds").await;
    assert_eq!(made["seeds"].as_array().unwrap().len(), 2);
    folder.json("grant publisher one/ci --seeds seeds").await;
    let first = folder.json(APPLY).await;
    assert_eq!(first["issued"].as_array().unwrap().len(), 18);
    assert_eq!(folder.json(APPLY).await["issued"], serde_json::json!([]));
    assert!(folder.refused(&format!("{APPLY} --reload 1")).await.contains("--push"));
    let text = fs::read_to_string(folder.path().join("access.toml")).unwrap();
    let config = fs::read_to_string(folder.path().join("users.conf")).unwrap();
    let secrets = [files(&folder, "seed"), files(&folder, "nk")].concat();
    assert_eq!(secrets.len(), 18 + 8);
    for path in &secrets {
        let secret = fs::read_to_string(path).unwrap();
        assert!(secret.starts_with('S'), "{}", path.display());
        assert!(!text.contains(secret.trim()) && !config.contains(secret.trim()), "{}", path.display());
    }
    for path in secrets.iter().chain(&files(&folder, "creds")) {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    // A lost key is not replaced by another one, which would make all users strangers.
    let signing = folder.path().join("seeds/TENANT_one.signing.nk");
    fs::rename(&signing, folder.path().join("elsewhere")).unwrap();
    let output = folder.run(APPLY).await;
    assert!(output.code == 1 && output.stderr.contains("TENANT_one.signing.nk"), "{output:?}");
    fs::rename(folder.path().join("elsewhere"), &signing).unwrap();
    // The keys of a tenant end with it.
    folder.json("revoke one --seeds seeds").await;
    assert!(!signing.exists() && !folder.path().join("seeds/one.ci.creds").exists());
    // Without JWTs there is nothing to push.
    let other = Folder::new();
    other.json("init --seeds seeds").await;
    assert!(other.refused(&format!("{APPLY} --push")).await.contains("--jwt"));
}

async fn line(lines: &mut Lines<BufReader<tokio::process::ChildStdout>>, within: Duration) -> String {
    tokio::time::timeout(within, lines.next_line()).await.unwrap().unwrap().unwrap_or_default()
}

/// Describes a tenant with a publisher, and writes the configuration of nats-server.
async fn describe(folder: &Folder) {
    folder.json("init --jwt --seeds seeds").await;
    folder.json("grant tenant one --group g --priority batch --seeds seeds").await;
    folder.json("grant publisher one/ci --seeds seeds").await;
    folder.json(APPLY).await;
}

async fn create_streams(folder: &Folder, url: &str) {
    let mut topology = bare_command(&["topology", "--apply", "--nats", url]);
    topology.current_dir(folder.path()).env("FOREBAY_SEED_FILE", "seeds/topology.1.creds");
    let output = Output::of(topology).await;
    assert_eq!(output.code, 0, "{output:?}");
}

#[tokio::test]
async fn a_push_gives_a_new_signing_key_to_servers_and_users_before_the_old_one_ends() {
    let folder = Folder::new();
    let (guard, port) = (Guard::start(folder.path()), Port::reserve());
    describe(&folder).await;
    let _process = nats(&folder, &port, &guard).await;
    let url = format!("nats://127.0.0.1:{}", port.number());
    create_streams(&folder, &url).await;
    let push = format!("{APPLY} --push --server {url}");
    folder.json(&push).await;
    let rotate = "rotate --signing-key TENANT_one --seeds seeds";
    assert_eq!(folder.json(rotate).await["seeds"], serde_json::json!(["seeds/TENANT_one.signing.next.nk"]));
    assert!(folder.refused(&format!("{rotate} --finish")).await.contains("--push"));
    // Without a push, servers do not know the new key.
    assert_eq!(folder.json(APPLY).await["issued"], serde_json::json!([]));
    let done = folder.json(&push).await;
    assert_eq!(done["updated"], serde_json::json!(["TENANT_one"]));
    assert_eq!(done["issued"], serde_json::json!(["seeds/one.ci.creds"]));
    assert_eq!(folder.json(&format!("{rotate} --finish")).await["changed"], true);
    // The push checks with the files of users that these reach the farm.
    let done = folder.json(&push).await;
    assert_eq!(done["updated"], serde_json::json!(["TENANT_one"]));
    assert_eq!((&done["issued"], &done["findings"]), (&serde_json::json!([]), &serde_json::json!([])));
    // What replaces nothing is refused.
    assert!(folder.refused("rotate one/ci --cancel --seeds seeds").await.contains("--signing-key"));
    assert!(folder.refused("rotate --signing-key FARM --seeds elsewhere").await.contains("not a folder"));
}

#[tokio::test]
async fn accounts_change_without_a_reload_and_python_uses_the_files_of_users() {
    let folder = Folder::new();
    let (guard, port) = (Guard::start(folder.path()), Port::reserve());
    describe(&folder).await;
    let _process = nats(&folder, &port, &guard).await;
    let url = format!("nats://127.0.0.1:{}", port.number());
    let push = format!("{APPLY} --push --server {url}");
    // The streams do not exist: what the tenant would publish has no receiver, which must not pass silently.
    let output = folder.run(&push).await;
    assert!(output.code == 1 && output.stderr.contains("user one/ci"), "{output:?}");
    create_streams(&folder, &url).await;
    let done = folder.json(&push).await;
    assert_eq!((&done["updated"], &done["findings"]), (&serde_json::json!([]), &serde_json::json!([])));
    let mut client = python("tests/system/python/creds.py");
    client.args([&url, "seeds/one.ci.creds", "_INBOX_one.ci", "g"]);
    client.args(["seeds/enqueuer.1.creds", "_INBOX_enqueuer.1"]).current_dir(folder.path());
    let mut client = client.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(line(&mut lines, farm::SOON).await, "seen");
    // A new tenant is there, and only its account has changed.
    folder.json("grant tenant two --group h --priority batch --seeds seeds").await;
    folder.json("grant publisher two/ci --seeds seeds").await;
    let done = folder.json(&push).await;
    assert_eq!(done["updated"], serde_json::json!(["TENANT_two"]));
    let issued: BTreeSet<&str> =
        done["issued"].as_array().unwrap().iter().filter_map(|path| path.as_str()).collect();
    assert_eq!(issued, BTreeSet::from(["seeds/two.ci.creds"]));
    // A revoked user is disconnected while the command runs, or soon after it.
    folder.json("revoke one/ci --seeds seeds").await;
    let done = folder.json(&push).await;
    assert_eq!(done["updated"], serde_json::json!(["TENANT_one"]));
    assert_eq!(line(&mut lines, REVOKED_WITHIN).await, "closed");
    // The tenant ends, with its account.
    folder.json("revoke two --seeds seeds").await;
    assert_eq!(folder.json(&push).await["closed"].as_array().unwrap().len(), 1);
}
