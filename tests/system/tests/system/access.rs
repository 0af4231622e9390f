//! `forebay access`: the description of users, and its application to running servers.

use std::{os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use farm::{Guard, Output, Port, Process, SOON, bare_command, tool};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

/// A folder in which commands run.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("forebay-test-").tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs `forebay access` with these words.
    pub(crate) async fn run(&self, words: &str) -> Output {
        let words: Vec<&str> = ["access"].into_iter().chain(words.split_whitespace()).collect();
        let mut command = bare_command(&words);
        command.current_dir(self.path());
        Output::of(command).await
    }

    /// The output of a command that succeeds, as JSON.
    pub(crate) async fn json(&self, words: &str) -> Value {
        let output = self.run(&format!("{words} --json")).await;
        assert_eq!(output.code, 0, "{words}: {output:?}");
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{words}: {error}: {output:?}"))
    }

    /// A command that fails with 2; returns what it says.
    pub(crate) async fn refused(&self, words: &str) -> String {
        let output = self.run(words).await;
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{words}: {output:?}");
        output.stderr
    }
}

#[tokio::test]
async fn users_are_described_changed_and_removed() {
    let folder = Folder::new();
    assert!(folder.refused("list").await.contains("forebay access init"));
    let made = folder.json("init --seeds seeds").await;
    assert_eq!((made["changed"].as_bool(), made["seeds"].as_array().unwrap().len()), (Some(true), 17));
    assert_eq!(folder.json("init --seeds seeds").await["changed"], false);
    folder.json("grant tenant payments --group payments --priority batch").await;
    let made = folder.json("grant publisher payments/ci --seeds seeds").await;
    assert_eq!(made["seeds"][0], "seeds/payments.ci.seed");
    let seed = folder.path().join("seeds/payments.ci.seed");
    assert_eq!(seed.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let secret = std::fs::read_to_string(&seed).unwrap();
    assert_eq!(folder.json("grant publisher payments/ci --seeds seeds").await["changed"], false);
    assert_eq!(std::fs::read_to_string(&seed).unwrap(), secret);
    let shown = folder.json("show payments/ci").await;
    let publish: Vec<&str> = shown["publish"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(publish.contains(&"forebay.build.request.payments.batch"), "{publish:?}");
    assert_eq!(shown["inbox"], "_INBOX_payments.ci");
    let listed = folder.json("list").await;
    assert_eq!(listed["tenants"][0]["users"][0]["name"], "payments/ci");
    assert!(folder.run("list").await.stdout.contains("payments/ci"));
    // A rotation, in two steps that may be repeated.
    folder.json("rotate payments/ci --seeds seeds").await;
    assert!(folder.refused("rotate payments/ci --seeds seeds").await.contains("two keys"));
    let next = std::fs::read_to_string(folder.path().join("seeds/payments.ci.next.seed")).unwrap();
    assert_eq!(folder.json("rotate payments/ci --finish --seeds seeds").await["changed"], true);
    assert_eq!(folder.json("rotate payments/ci --finish --seeds seeds").await["changed"], false);
    assert_eq!(std::fs::read_to_string(&seed).unwrap(), next);
    // A later user of the same name has another key.
    folder.json("revoke payments/ci --seeds seeds").await;
    assert!(!seed.exists());
    assert_eq!(folder.json("revoke payments/ci --seeds seeds").await["changed"], false);
    folder.json("grant publisher payments/ci --seeds seeds").await;
    assert!(![secret, next].contains(&std::fs::read_to_string(&seed).unwrap()));
    folder.json("revoke payments --seeds seeds").await;
    assert!(!seed.exists());
    assert_eq!(folder.json("list").await["tenants"], serde_json::json!([]));
}

#[tokio::test]
async fn invalid_users_are_refused() {
    let folder = Folder::new();
    folder.json("init --seeds seeds").await;
    folder.json("grant tenant one --group g --priority batch").await;
    let before = std::fs::read_to_string(folder.path().join("access.toml")).unwrap();
    for (words, wanted) in [
        ("grant tenant two --group g", "group g belongs to tenant one"),
        ("grant tenant worker --group h", "no role"),
        ("grant tenant two", "--group"),
        ("grant publisher two/ci --seeds seeds", "tenant two does not exist"),
        ("grant publisher one/ci --group h --seeds seeds", "group h"),
        ("grant publisher one/ci --priority emergency --seeds seeds", "emergency"),
        ("grant publisher one/ci --priority now --seeds seeds", "now"),
        ("grant publisher ci --seeds seeds", "TENANT/USER"),
        ("grant service cook/1 --seeds seeds", "enqueuer"),
        ("grant service gateway/a.b --seeds seeds", "letters"),
        ("rotate one --seeds seeds", "name one of them"),
        ("rotate one/ci --seeds seeds", "does not exist"),
        ("show one/ci", "does not exist"),
    ] {
        let said = folder.refused(words).await;
        assert!(said.contains(wanted), "{words}: {said}");
    }
    assert!(!folder.path().join("seeds/one.ci.seed").exists(), "a refused user has a key");
    assert_eq!(std::fs::read_to_string(folder.path().join("access.toml")).unwrap(), before);
    std::fs::write(folder.path().join("access.toml"), format!("{before}\ncolour = 1\n")).unwrap();
    let said = folder.refused("list").await;
    assert!(said.contains("access.toml") && said.contains("colour"), "{said}");
}

/// Starts a nats-server that includes the users of the folder.
pub(crate) async fn nats(folder: &Folder, port: &Port, guard: &Guard) -> Process {
    let config = folder.path().join("nats.conf");
    let streams = folder.path().join("streams");
    let text = format!(
        "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: \"{}\" }}\ninclude users.conf\n",
        port.number(),
        streams.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(tool("nats-server"));
    command.arg("--config").arg(&config);
    let process = Process::start("nats", command, &folder.path().join("nats.log"), guard);
    let ready = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port.number())).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, ready).await.unwrap();
    process
}

#[tokio::test]
async fn what_is_applied_is_checked_with_the_keys_of_each_tenant() {
    let folder = Folder::new();
    let (guard, port) = (Guard::start(folder.path()), Port::reserve());
    folder.json("init --seeds seeds").await;
    let apply = "apply --seeds seeds --nats-config users.conf --redis-acl users.acl";
    let steps = folder.json(apply).await;
    assert_eq!(steps["commands"].as_array().unwrap().len(), 3);
    let process = nats(&folder, &port, &guard).await;
    let apply = format!("{apply} --reload {} --server nats://127.0.0.1:{}", process.pid(), port.number());
    folder.json("grant tenant one --group g --priority batch").await;
    folder.json("grant publisher one/ci --seeds seeds").await;
    // The streams do not exist: what the tenant would publish has no receiver, which must not pass silently.
    let output = folder.run(&apply).await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(
        output.stderr.contains("user one/ci") && output.stderr.contains("do not reach the farm"),
        "{output:?}"
    );
    // A key that is elsewhere cannot be checked.
    std::fs::rename(folder.path().join("seeds/one.ci.seed"), folder.path().join("elsewhere")).unwrap();
    let output = folder.run(&apply).await;
    assert!(output.code == 1 && output.stderr.contains("cannot be checked"), "{output:?}");
    folder.json("revoke one --seeds seeds").await;
    let done = folder.json(&apply).await;
    assert_eq!(done["findings"], serde_json::json!([]));
}
