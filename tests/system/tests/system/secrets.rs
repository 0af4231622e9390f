//! Secrets of builds: who gets them, and that they show nowhere else.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::Path,
    sync::LazyLock,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bus::EventKind;
use client::{ClientError, WatchBody};
use farm::{Builder, Farm, SOON};
use model::{
    BuildKey, BuildRequest, Digest, ErrorCode, JobSource, Outcome, Priority, ReasonCode, SecretRequest,
    State, StoredJob, WorkspaceUse,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    acting::own,
    check::{ended_as, request, script, until, why_when},
};

/// A value that is found nowhere by chance.
fn value() -> &'static str {
    static VALUE: LazyLock<String> = LazyLock::new(|| own("s3cr3t/Vàlue+0f \"the\" group-4711-"));
    &VALUE
}

/// The folder with secrets of a machine.
struct Place {
    secrets: TempDir,
    /// Where files are written before they get their names.
    aside: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = || tempfile::Builder::new().prefix("forebay-keys-").tempdir().unwrap();
        Self { secrets: folder(), aside: folder() }
    }

    fn put(&self, group: &str, name: &str, value: &[u8]) {
        let folder = self.secrets.path().join(group);
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        // As an operator replaces a file: never half written, never open.
        let new = self.aside.path().join("new");
        fs::write(&new, value).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, folder.join(name)).unwrap();
    }

    fn remove(&self, group: &str, name: &str) {
        fs::remove_file(self.secrets.path().join(group).join(name)).unwrap();
    }

    fn folder(&self) -> &str {
        self.secrets.path().to_str().unwrap()
    }

    fn builder(&self) -> Builder {
        Farm::builder()
            .without("gateway")
            .workspaces(1)
            .env("FOREBAY_BUILD_SANDBOX", "bubblewrap")
            .env("FOREBAY_SECRETS_FOLDER", self.folder())
    }
}

/// A command that waits for [`go`].
const WAIT: &str = "until [ -e \"$FOREBAY_WORKSPACE/go\" ]; do sleep 0.05; done";

/// Lets the builds that run now go on.
fn go(farm: &Farm) {
    let inside = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    for worker in inside(&farm.data().join("workspaces")) {
        for workspace in inside(&worker).filter(|path| path.join("build").is_dir()) {
            fs::write(workspace.join("build/go"), "").unwrap();
        }
    }
}

/// A build that gets these secrets, each as `NAME` or `NAME=VARIABLE`.
fn with(secrets: &[&str], text: &str) -> BuildRequest {
    let secrets = secrets.iter().map(|secret| secret.parse::<SecretRequest>().unwrap()).collect();
    BuildRequest { secrets, ..script(text) }
}

async fn said(farm: &Farm, key: &BuildKey) -> String {
    let log = farm.cli(&["logs", &key.to_string()]).await;
    assert_eq!(log.code, 0, "{log:?}");
    log.stdout + &log.stderr
}

/// The output of a build that succeeds.
async fn output(farm: &Farm, request: BuildRequest) -> String {
    let key = farm.submit("g", request).await;
    ended_as(farm, &key, Outcome::Succeeded).await;
    said(farm, &key).await
}

/// How a value is written in what a farm must not contain.
fn spellings(value: &str) -> Vec<Vec<u8>> {
    let mut all = vec![value.as_bytes().to_vec()];
    for before in ["", "x", "xy"] {
        let encoded = STANDARD.encode(format!("{before}{value}"));
        let own = encoded.trim_end_matches('=');
        all.push(own.as_bytes()[4..own.len() - 1].to_vec());
    }
    all.push(model::hex(value.as_bytes()).into_bytes());
    all
}

fn holds(content: &[u8], value: &str) -> bool {
    spellings(value).iter().any(|spelling| content.windows(spelling.len()).any(|part| part == spelling))
}

/// The files below a folder that contain the value.
fn files_with(folder: &Path, value: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if holds(path.as_os_str().as_encoded_bytes(), value)
                || fs::read(&path).is_ok_and(|content| holds(&content, value))
            {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// Asserts that no event of the build and no file of the farm contains the value.
async fn assert_hidden(farm: &Farm, key: &BuildKey, value: &str) {
    for stored in farm.stored(key).await {
        assert!(!holds(&stored.payload, value), "{}: {:?}", stored.subject, stored.payload);
    }
    assert_eq!(files_with(farm.folder(), value), Vec::<String>::new());
}

/// Waits for console output that begins like this.
async fn printed(farm: &Farm, key: &BuildKey, begin: &[u8]) {
    let is_it = |event: &client::WatchEvent| match &event.body {
        WatchBody::Console(chunk) => chunk.data.starts_with(begin),
        WatchBody::Lifecycle(_) | WatchBody::Frame(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => false,
    };
    farm.wait_event(key, SOON, &[EventKind::Console], is_it).await;
}

/// Waits until no secret is in memory: other tests have some there for moments, and what this one left would stay.
async fn nothing_in_memory() {
    until("no secret is left in memory", SOON, || in_memory().is_empty()).await;
}

fn in_memory() -> Vec<String> {
    let entries = fs::read_dir("/dev/shm").unwrap().flatten();
    let entries = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("forebay-"));
    entries.flat_map(|entry| files_with(&entry.path(), value())).collect()
}

#[tokio::test]
async fn a_build_gets_its_secrets_as_a_file_and_as_a_variable() {
    let place = Place::new();
    place.put("g", "token", format!("{}\n", value()).as_bytes());
    place.put("g", "other", b"another value");
    let text = "id -u; stat -c '%a %u' \"$FOREBAY_SECRETS_DIR/token\"; ls -A \"$FOREBAY_SECRETS_DIR\"
                [ \"$TOKEN\" = \"$(cat \"$FOREBAY_SECRETS_DIR/token\")\" ] && echo same ${#TOKEN}
                wc -c <\"$FOREBAY_SECRETS_DIR/token\"; stat -f -c %T \"$FOREBAY_SECRETS_DIR/token\"
                (echo x >\"$FOREBAY_SECRETS_DIR/new\") 2>/dev/null || echo closed; env | grep -c another";
    let as_root = nix::unistd::geteuid().is_root();
    for uid in ["0", "41000"].into_iter().take(if as_root { 2 } else { 1 }) {
        let farm = place.builder().env("FOREBAY_BUILD_UID", uid).start().await;
        let key = farm.submit("g", with(&["token", "token=TOKEN"], &format!("{text}; exit 0"))).await;
        ended_as(&farm, &key, Outcome::Succeeded).await;
        let said = said(&farm, &key).await;
        let lines: Vec<&str> = said.lines().collect();
        let user = lines[0];
        let (mode, same) = (format!("400 {user}"), format!("same {}", value().len()));
        let with_line_break = (value().len() + 1).to_string();
        let expected = [&*mode, "token", &*same, &*with_line_break, "tmpfs", "closed", "0"];
        assert_eq!(lines[1..], expected, "{said}");
        if uid != "0" {
            assert_eq!(user, uid);
        }
        nothing_in_memory().await;
        assert_hidden(&farm, &key, value()).await;
        // Names are for all to see.
        let shown = farm.cli(&["get", &key.to_string()]).await.stdout;
        assert!(shown.contains("token token=TOKEN"), "{shown}");
        let json = farm.cli(&["get", "--json", &key.to_string()]).await.stdout;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let secrets = serde_json::json!([{"name": "token"}, {"name": "token", "variable": "TOKEN"}]);
        assert!(json.to_string().contains(&secrets.to_string()), "{json}");
    }
}

#[tokio::test]
async fn nothing_of_a_secret_is_left_for_the_next_build() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().start().await;
    let warm = |request: BuildRequest| BuildRequest { workspace: Some(WorkspaceUse::Warm), ..request };
    // A server that a build leaves in a warm workspace serves the next one, unless the build has secrets.
    let serve = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & cp \"$FOREBAY_SECRETS_DIR/token\" /tmp; echo kept >kept";
    let look =
        "cat kept; ls -A ../secrets; find /dev/shm -xdev -type f; cat /tmp/token 2>/dev/null || echo gone
                env | grep -c -e TOKEN -e SECRET; ls /proc | grep -c '^[0-9]'";
    let text = format!("if [ -e kept ]; then {look}; else {serve}; fi; exit 0");
    let first = farm.submit("g", warm(with(&["token", "token=TOKEN"], &text))).await;
    ended_as(&farm, &first, Outcome::Succeeded).await;
    assert!(crate::check::processes_of(first.id).is_empty());
    nothing_in_memory().await;
    let seen = output(&farm, warm(script(&text))).await;
    let lines: Vec<&str> = seen.lines().collect();
    let (found, processes) = lines.split_at(lines.len() - 1);
    assert_eq!(found, ["kept", "gone", "0"], "{seen}");
    assert!(processes[0].parse::<u32>().unwrap() < 8, "{seen}");
}

#[tokio::test]
async fn o3_secrets_are_masked_in_output_names_and_errors() {
    let place = Place::new();
    place.put("g", "token", format!("{}\n", value()).as_bytes());
    place.put("g", "name", b"file-name-4712");
    let farm = place.builder().with("gateway").start().await;
    let pieces = "python3 -c 'import os, sys, time
t = os.environb[b\"TOKEN\"]
for stream in sys.stdout.buffer, sys.stderr.buffer:
  for at in range(0, len(t), 5):
    stream.write(t[at:at + 5]); stream.flush(); time.sleep(0.01)
  stream.write(b\"|\\n\")
  stream.flush()
'";
    let text = format!(
        "echo \"plain $TOKEN.\"; echo \"error $TOKEN.\" >&2; {pieces}
         printf %s \"$TOKEN\" | base64 -w 0; echo; printf 'x%s' \"$TOKEN\" | base64; printf 'xy%s' \"$TOKEN\" | base64
         printf %s \"$TOKEN\" | od -An -v -tx1 | tr -d ' '; env; cat \"$FOREBAY_SECRETS_DIR/token\"; (set -x; : \"$TOKEN\")
         echo x >\"$NAME.txt\"; mkdir \"$NAME\"; echo y >\"$NAME/a\"; echo 'Ünharmed: not a secret'; printf 's3cr3t/V'; exit 3"
    );
    let mut request = with(&["token", "token=TOKEN", "name=NAME"], &text);
    request.outputs = vec!["*.txt".into(), "*/a".into(), "none".into()];
    let key = farm.submit("g", request).await;
    let record = ended_as(&farm, &key, Outcome::Failed).await;
    let said = said(&farm, &key).await;
    for line in ["plain ***.", "error ***.", "***|", "TOKEN=***", "NAME=***", "Ünharmed: not a secret"] {
        // What follows the last output of the other stream begins in its line.
        assert!(
            said.lines().any(|it| it.strip_prefix("***").unwrap_or(it) == line || it == line),
            "{line}: {said}"
        );
    }
    for value in [value(), "file-name-4712", "s3cr3t", "4711", "4712", "Vàlue"] {
        assert!(!said.contains(value), "{value}: {said}");
    }
    let result = record.result().unwrap();
    let names: Vec<&str> = result.outputs.iter().map(|output| output.path.as_str()).collect();
    assert_eq!(names, ["***.txt", "***/a"]);
    for value in [value(), "file-name-4712"] {
        assert_hidden(&farm, &key, value).await;
    }
    let kept = farm.cli(&["get", &key.to_string(), "--output", "***.txt", "-"]).await;
    assert_eq!(kept.stdout, "x\n", "{kept:?}");
    let json = farm.cli(&["watch", "--json", &key.to_string()]).await.stdout;
    assert!(json.contains("***") && !holds(json.as_bytes(), value()), "{json}");
    // An error that names what the build made.
    let request = BuildRequest {
        outputs: vec!["*.sock".into()],
        require_outputs: true,
        ..with(&["name=NAME"], "mkfifo \"$NAME.sock\"")
    };
    let failed = farm.submit("g", request).await;
    let record = ended_as(&farm, &failed, Outcome::Failed).await;
    let reason = &record.result().unwrap().reason.as_ref().unwrap().message;
    assert!(reason.contains("***.sock"), "{reason}");
    assert_hidden(&farm, &failed, "file-name-4712").await;
}

#[tokio::test]
async fn what_could_become_a_secret_does_not_delay_a_prompt() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().start().await;
    // Its last letters begin the secret.
    let text = format!("printf 'Continue? s3'; {WAIT}; printf 'x'");
    let key = farm.submit("g", with(&["token=TOKEN"], &text)).await;
    printed(&farm, &key, b"s3").await;
    go(&farm);
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(said(&farm, &key).await, "Continue? s3x");
}

#[tokio::test]
async fn o5_secrets_are_in_no_log_trace_core_dump_or_command_line() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().env("FOREBAY_LOG", "trace").without("worker").start().await;
    // The worker could leave a core dump.
    let folder = farm.folder().join("worker-here");
    fs::create_dir(&folder).unwrap();
    let mut command = farm.command(&["serve", "worker"]);
    command.current_dir(&folder).env("RUST_BACKTRACE", "full");
    let limited = |command: &mut tokio::process::Command| {
        let mut shell = tokio::process::Command::new("sh");
        let inner = command.as_std();
        shell.args(["-c", "ulimit -c unlimited; exec \"$0\" \"$@\""]).arg(inner.get_program());
        shell.args(inner.get_args()).current_dir(&folder);
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                shell.env(name, value);
            }
        }
        shell
    };
    let log = farm.folder().join("logs/worker-with-core.log");
    let mut worker = farm::Process::start("worker", limited(&mut command), &log, farm.servers.guard());
    let text = format!("echo \"$TOKEN\"; {WAIT}");
    let key = farm.submit("g", with(&["token", "token=TOKEN"], &text)).await;
    printed(&farm, &key, b"***").await;
    let command_lines: Vec<u8> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .flat_map(|entry| fs::read(entry.path().join("cmdline")).unwrap_or_default())
        .collect();
    assert!(command_lines.len() > 100 && !holds(&command_lines, value()));
    let doctor = farm.cli(&["doctor"]).await;
    assert!(!holds(format!("{doctor:?}").as_bytes(), value()), "{doctor:?}");
    // A program that is not protected leaves one here, if the machine allows core dumps at all.
    let mut other = tokio::process::Command::new("sh");
    other.args(["-c", "ulimit -c unlimited; kill -QUIT $$"]).current_dir(&folder);
    let is_possible = other.status().await.unwrap().core_dumped();
    eprintln!("core dumps are possible here: {is_possible}");
    for entry in fs::read_dir(&folder).unwrap().flatten() {
        fs::remove_file(entry.path()).unwrap();
    }
    worker.signal(Signal::SIGQUIT);
    let status = worker.wait_exit(SOON).await;
    assert!(!status.core_dumped(), "{status:?}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    assert_hidden(&farm, &key, value()).await;
}

#[tokio::test]
async fn s18_a_build_cannot_read_the_secrets_of_its_worker() {
    let place = Place::new();
    place.put("g", "mine", b"the value of mine");
    place.put("g", "other", value().as_bytes());
    place.put("h", "theirs", value().as_bytes());
    let farm = place.builder().start().await;
    let look = format!(
        "exec 2>&1; cat {folder}/*/* /dev/shm/forebay-*/*/*; ls {folder}; find / -xdev \\( -name theirs -o -name other \\) 2>/dev/null
         for file in /proc/[0-9]*/environ; do tr '\\0' '\\n' <$file; done; ls /proc/1/root/dev/shm; echo looked",
        folder = place.folder()
    );
    let seen = output(&farm, with(&["mine"], &look)).await;
    assert!(seen.contains("looked") && seen.contains("FOREBAY_SECRETS_DIR"), "{seen}");
    assert!(!holds(seen.as_bytes(), value()) && !seen.contains("theirs"), "{seen}");
    assert!(!seen.contains("FOREBAY_SECRETS_FOLDER"), "{seen}");
    // A context cannot name the folder either.
    let context = model::Context::Directory { path: place.folder().to_owned(), ignore_files: false };
    let key = farm.submit("g", BuildRequest { context, ..script("cat */*") }).await;
    let record = ended_as(&farm, &key, Outcome::Failed).await;
    assert_eq!(record.result().unwrap().reason.as_ref().unwrap().code, ReasonCode::ContextUnavailable);
}

#[tokio::test]
async fn a_secret_that_the_group_does_not_have_is_refused_at_once() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    place.put("h", "theirs", value().as_bytes());
    let farm = place.builder().start().await;
    let create = async |group: &str, request: &BuildRequest| {
        let error = farm.client().create(&group.parse().unwrap(), request, None).await.unwrap_err();
        assert!(
            matches!(&error, ClientError::Api(api) if api.error == ErrorCode::InvalidRequest),
            "{error:?}"
        );
        error.to_string()
    };
    let of_other = create("g", &with(&["token", "theirs"], "true")).await;
    let absent = create("g", &with(&["token", "absent"], "true")).await;
    assert!(of_other.contains("no worker has the secret theirs for the group g; it has token"), "{of_other}");
    assert_eq!(of_other.replace("theirs", "absent"), absent);
    let none = create("i", &with(&["token"], "true")).await;
    assert!(none.contains("for the group i; it has none"), "{none}");
    let published = farm.publish("g", Priority::Batch, &with(&["theirs"], "true")).await;
    ended_as(&farm, &published, Outcome::Rejected).await;
    // Nothing else shows what other groups have.
    let mut asks = script("true");
    asks.requirements.0.insert("gpu".into(), "1".into());
    let unknown = create("g", &asks).await;
    assert!(unknown.contains("known properties") && !unknown.contains("secrets/"), "{unknown}");
    for (name, value) in [("secrets/h", "theirs"), ("secrets/g", "token")] {
        let mut asks = script("true");
        asks.requirements.0.insert(name.into(), value.into());
        let refused = create("g", &asks).await;
        assert!(refused.contains("field secrets") && !refused.contains("offered"), "{refused}");
    }
    // The tasks of a job are actions.
    let job = JobSource::Stored(StoredJob { digest: Digest::of(b"a job"), size_bytes: Some(5) });
    let of_job = BuildRequest { job: Some(job), command: Vec::new(), ..with(&["token"], "") };
    let refused = create("g", &of_job).await;
    assert!(refused.contains("the tasks of a job are actions"), "{refused}");
}

#[tokio::test]
async fn the_command_line_asks_for_secrets() {
    let place = Place::new();
    place.put("default", "token", value().as_bytes());
    let farm = place.builder().start().await;
    let submit = async |secrets: &[&str]| {
        let flags = secrets.iter().flat_map(|secret| ["--secret", *secret]);
        let words: Vec<&str> = ["submit", "--follow"].into_iter().chain(flags).collect();
        let text = "echo \"got $TOKEN\" $(ls \"$FOREBAY_SECRETS_DIR\")";
        farm.cli(&[&words[..], &["--", "sh", "-c", text]].concat()).await
    };
    let done = submit(&["token=TOKEN", "token"]).await;
    assert!(done.code == 0 && done.stdout.contains("got *** token"), "{done:?}");
    for (bad, why) in [("a/b", "secret name"), ("token=PATH", "farm sets it"), ("absent", "it has token")] {
        let refused = submit(&[bad]).await;
        assert!(refused.code == 2 && refused.stderr.contains(why), "{refused:?}");
    }
}

#[tokio::test]
async fn a_build_waits_for_a_secret_that_vanished_and_never_runs_without() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().start().await;
    let blocks = farm.submit("g", script(WAIT)).await;
    farm.wait_until(&blocks, SOON, |record| record.state() == State::InProgress).await;
    let key = farm.submit("g", with(&["token=TOKEN"], "echo ${#TOKEN}")).await;
    place.remove("g", "token");
    why_when(&farm, &key, |why| why.reason.contains("no live worker offers")).await;
    go(&farm);
    ended_as(&farm, &blocks, Outcome::Succeeded).await;
    let other = farm.submit("g", script("true")).await;
    ended_as(&farm, &other, Outcome::Succeeded).await;
    let (_, record) = farm.wait_until(&key, SOON, |_| true).await;
    assert_eq!(record.state(), State::Enqueued, "{record:?}");
    place.put("g", "token", value().as_bytes());
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(said(&farm, &key).await, format!("{}\n", value().len()));
    // A new name is known at once, too.
    place.put("g", "late", b"another value");
    let began = std::time::Instant::now();
    while let Err(error) = farm.client().create(&"g".parse().unwrap(), &with(&["late"], "true"), None).await {
        assert!(began.elapsed() < SOON, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_secret_that_vanishes_from_a_worker_that_offered_it_is_awaited() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().without("worker").start().await;
    let worker = farm.spawn("worker").await;
    // The offer waits for the worker, which does not see the file go.
    worker.pause();
    let key = farm.submit("g", with(&["token=TOKEN"], "echo ${#TOKEN}")).await;
    place.remove("g", "token");
    worker.resume();
    why_when(&farm, &key, |why| why.reason.contains("no live worker offers")).await;
    let (_, record) = farm.wait_until(&key, SOON, |_| true).await;
    assert_eq!(record.state(), State::Enqueued, "{record:?}");
    place.put("g", "token", value().as_bytes());
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(said(&farm, &key).await, format!("{}\n", value().len()));
}

#[tokio::test]
async fn the_next_worker_gives_the_secrets_again() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().without("worker").start().await;
    let worker = farm.spawn("worker").await;
    let text = format!("echo $FOREBAY_ATTEMPT ${{#TOKEN}} $(wc -c <$FOREBAY_SECRETS_DIR/token); {WAIT}");
    let key = farm.submit("g", with(&["token", "token=TOKEN"], &text)).await;
    printed(&farm, &key, b"1 ").await;
    worker.kill9();
    let _next = farm.spawn("worker").await;
    printed(&farm, &key, b"2 ").await;
    nothing_in_memory().await;
    go(&farm);
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert!(said(&farm, &key).await.contains(&format!("2 {0} {0}\n", value().len())));
    assert_hidden(&farm, &key, value()).await;
}

#[tokio::test]
async fn a_secret_that_is_no_text_is_a_file_only() {
    let place = Place::new();
    place.put("g", "binary", b"\x00\x01\xff\xfe key");
    let farm = place.builder().start().await;
    assert_eq!(output(&farm, with(&["binary"], "wc -c <$FOREBAY_SECRETS_DIR/binary")).await, "8\n");
    let key = farm.submit("g", with(&["binary=KEY"], "true")).await;
    let record = ended_as(&farm, &key, Outcome::Failed).await;
    let reason = record.result().unwrap().reason.clone().unwrap();
    assert_eq!(reason.code, ReasonCode::SecretUnavailable);
    assert!(
        reason.message.contains("the secret binary of the group g") && reason.message.contains("as a file")
    );
}

#[tokio::test]
async fn a_worker_that_cannot_keep_secrets_does_not_start() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().without("worker").start().await;
    let inside = farm.folder().join("secrets");
    fs::create_dir(&inside).unwrap();
    for (name, value, why) in [
        ("FOREBAY_BUILD_SANDBOX", "none", "without a sandbox"),
        ("FOREBAY_BUILD_SANDBOX_BY_REQUEST", "true", "without a sandbox"),
        ("FOREBAY_SECRETS_FOLDER", "/nowhere", "No such file"),
        ("FOREBAY_SECRETS_FOLDER", "secrets", "expected an absolute path"),
        // Anyone may write there, and builds may copy from there.
        ("FOREBAY_SECRETS_FOLDER", "/tmp", "others may read or change it"),
        ("FOREBAY_SECRETS_FOLDER", inside.to_str().unwrap(), "context_paths"),
    ] {
        let mut worker = farm.start_unready("worker", &[(name, value)]);
        let status = worker.wait_exit(SOON).await;
        let log = worker.log_text();
        assert!(!status.success() && log.contains(why), "{name}={value}: {log}");
    }
    // What can be read by others is not offered, and the log says so.
    let open = place.secrets.path().join("g/open");
    fs::write(&open, value()).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let worker = farm.spawn("worker").await;
    until("the log names the file", SOON, || worker.log_text().contains("others may read or change it"))
        .await;
    let error =
        farm.client().create(&"g".parse().unwrap(), &with(&["open"], "true"), None).await.unwrap_err();
    assert!(error.to_string().contains("it has token"), "{error}");
    assert!(!holds(worker.log_text().as_bytes(), value()));
}

#[tokio::test]
async fn a_build_without_secrets_pays_nothing() {
    let place = Place::new();
    place.put("g", "token", value().as_bytes());
    let farm = place.builder().start().await;
    // The same sandbox serves one build after another, and the value is not masked in a build that does not have it.
    let look = request(&["sh", "-c", &format!("readlink /proc/self/ns/mnt; echo '{}'", value())]);
    let first = output(&farm, look.clone()).await;
    let again = BuildRequest { id: Some(model::BuildId::generate()), ..look };
    assert_eq!(output(&farm, again).await, first);
    assert!(first.contains(value()), "{first}");
}
