//! Builds in the sandbox of their worker.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use bus::EventKind;
use farm::{Builder, Farm, SOON};
use model::{
    BuildKey, BuildRequest, BuildRequirements, Context, Outcome, State, WorkspaceKind, WorkspaceUse,
};

use crate::{
    acting,
    check::{ended_as, processes_of, script, until},
};

fn builder() -> Builder {
    Farm::builder().without("gateway").workspaces(1).env("FOREBAY_BUILD_SANDBOX", "bubblewrap")
}

/// Output of a build that succeeds.
async fn output(farm: &Farm, request: BuildRequest) -> String {
    let key = farm.submit("g", request).await;
    ended_as(farm, &key, Outcome::Succeeded).await;
    said(farm, &key).await
}

async fn said(farm: &Farm, key: &BuildKey) -> String {
    let log = farm.cli(&["logs", &key.to_string()]).await;
    assert_eq!(log.code, 0, "{log:?}");
    log.stdout
}

#[tokio::test]
async fn a_build_changes_only_its_workspace_and_sees_no_other_data() {
    let farm = builder().start().await;
    let data = farm.data();
    fs::write(data.join("secret"), "seen").unwrap();
    let text = format!(
        "exec 2>&1; echo a >file; echo b >\"$HOME/file\"; echo c >\"$TMPDIR/file\"; echo d >/tmp/forebay-file; cat file \"$HOME/file\" \"$TMPDIR/file\" /tmp/forebay-file
         cat {data}/secret; ls {data}; ls {data}/workspaces/*/ | head -20; echo x >/usr/forebay-file; echo x >/etc/forebay-file
         head -c 3 /etc/shadow; unshare -U true; tr '\\0' '\\n' </proc/1/environ; echo pids $(ls /proc | grep -c '^[0-9]')
         grep -c processor /proc/cpuinfo >/dev/null; cc --version | head -1; exit 0",
        data = data.display()
    );
    let mut request = script(&text);
    request.outputs = vec!["file".to_owned()];
    let key = farm.submit("g", request).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    let said = said(&farm, &key).await;
    assert!(said.starts_with("a\nb\nc\nd\n"), "{said}");
    assert!(!said.contains("seen") && !said.contains("FOREBAY_NATS_URL") && !said.contains("roo"), "{said}");
    for hint in ["/usr/forebay-file: Read-only", "/etc/forebay-file: Read-only", "Operation not permitted"] {
        assert!(said.contains(hint), "{hint}: {said}");
    }
    let pids: u32 = said.lines().find_map(|line| line.strip_prefix("pids ")?.parse().ok()).unwrap();
    assert!(pids < 10, "{said}");
    assert_eq!(record.result().unwrap().outputs.len(), 1);
    assert!(!std::path::Path::new("/tmp/forebay-file").exists());
}

#[tokio::test]
async fn s18_a_build_cannot_read_how_its_worker_reaches_the_servers() {
    let farm = builder().start().await;
    fs::write(farm.data().join("forebay.toml"), "nats_url = \"seed\"").unwrap();
    let server = farm.servers.nats_url().rsplit('/').next().unwrap().to_owned();
    let look = "exec 2>&1; for file in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/maps; do head -c 100000 $file | tr '\\0' '\\n'; done
                find / -xdev -name forebay.toml -exec cat {} +; echo looked";
    let said = output(&farm, script(look)).await;
    assert!(said.contains("looked") && said.contains("FOREBAY_BUILD_ID"), "it saw its own variables: {said}");
    assert!(!said.contains(&server) && !said.contains("seed"), "{server}: {said}");
}

#[tokio::test]
async fn builds_have_the_network_that_their_worker_gives_them() {
    let own = "python3 -c 'import socket as s; l = s.create_server((\"127.0.0.1\", 0)); \
               s.create_connection(l.getsockname()); print(\"own\")'";
    for (network, reaches) in [("host", true), ("loopback", false)] {
        let farm = builder().env("FOREBAY_BUILD_NETWORK", network).start().await;
        let port = farm.servers.nats_url().rsplit(':').next().unwrap().to_owned();
        let other = format!(
            "python3 -c 'import socket as s; s.create_connection((\"127.0.0.1\", {port})); print(\"other\")'"
        );
        let said = output(&farm, script(&format!("{own}; {other} 2>&1; exit 0"))).await;
        assert!(said.contains("own"), "{network}: {said}");
        assert_eq!(said.contains("other"), reaches, "{network}: {said}");
    }
}

#[tokio::test]
async fn a_tool_server_in_the_sandbox_serves_the_next_similar_build() {
    let farm = builder().start().await;
    let warm = |text: &str| BuildRequest { workspace: Some(WorkspaceUse::Warm), ..script(text) };
    let serve = "[ -e pid ] || { setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > pid; }; kill -0 $(cat pid); cat pid";
    let first = output(&farm, warm(serve)).await;
    let key = farm.submit("g", warm(serve)).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(record.invocation().unwrap().workspace_kind, Some(WorkspaceKind::Exact));
    assert_eq!(said(&farm, &key).await, first, "the same process");
    // A build of another group gets another workspace and none of the processes.
    let other = farm.submit("h", script("ls -A; ls /proc | grep -c '^[0-9]'")).await;
    ended_as(&farm, &other, Outcome::Succeeded).await;
    let seen = said(&farm, &other).await;
    assert!(!seen.contains("pid") && seen.trim().parse::<u32>().unwrap() < 8, "{seen}");
}

#[tokio::test]
async fn nothing_of_a_build_is_left_for_one_of_another_group() {
    // Files alone are removed from a sandbox that goes on; with other traces, it ends.
    for more in ["true", "ipcmk -M 100"] {
        leaves_nothing(more).await;
    }
}

async fn leaves_nothing(more: &str) {
    let farm = builder().start().await;
    // It leaves no files in its folder, so that the folder itself is used again.
    let leave = "exec 2>&1; echo secret >/tmp/left; echo secret >/dev/shm/left; MORE; setsid sleep 1000 & sleep 0.1; \
                 cd ..; mv build moved; ln -s /etc build; rm -rf build; echo x >x; ls -d build";
    let key = farm.submit("g", script(&leave.replace("MORE", more))).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let first = said(&farm, &key).await;
    assert!(first.contains("Read-only file system") || first.contains("busy"), "{first}");
    assert!(first.ends_with("build\n"), "its folder is still there: {first}");
    let other = farm
        .submit(
            "h",
            script("cat /tmp/left /dev/shm/left; ipcs -m | wc -l; ls -A; ls /proc | grep -c '^[0-9]'"),
        )
        .await;
    ended_as(&farm, &other, Outcome::Succeeded).await;
    let seen = said(&farm, &other).await;
    let shown: Vec<&str> = seen.lines().collect();
    assert!(!seen.contains("secret") && shown.first() == Some(&"4"), "{seen}");
    assert!(shown.last().unwrap().parse::<u32>().unwrap() < 8, "{seen}");
}

#[tokio::test]
async fn each_workspace_has_a_user_of_its_own_that_owns_what_was_fetched() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let farm = Farm::builder()
        .without("gateway")
        .workspaces(2)
        .env("FOREBAY_BUILD_SANDBOX", "bubblewrap")
        .env("FOREBAY_BUILD_UID", "41000")
        .start()
        .await;
    let source = crate::contexts::folder(&farm, "source");
    let git = "git init -q -b main .; mkdir deep; echo one > deep/file; git add .; git -c user.name=a -c user.email=a@b commit -qm x";
    crate::contexts::sh(&source, git);
    let text = |number: u32| {
        format!(
            "exec 2>&1; id -u; stat -c %u . deep deep/file .git \"$HOME\" \"$TMPDIR\" | sort -u; git log --format=%s
             echo two >> deep/file; git diff --stat | tail -1; echo x > \"$HOME/file\"; echo y > /tmp/file; cat /etc/shadow
             echo {number}; echo done > out"
        )
    };
    let request = |number| {
        let context =
            Context::Git { url: source.display().to_string(), revision: "main".into(), patch: None };
        let request = BuildRequest { context, workspace: Some(WorkspaceUse::Warm), ..script(&text(number)) };
        BuildRequest { outputs: vec!["out".to_owned()], ..request }
    };
    // The second one finds the workspace of the first, and what was fetched for it is its own as well.
    for number in 0..2 {
        let said = output(&farm, request(number)).await;
        let lines: Vec<&str> = said.lines().collect();
        let user: u32 = lines[0].parse().unwrap();
        assert!((41_000..41_002).contains(&user), "{said}");
        assert_eq!(lines[1..3], [lines[0], "x"], "{said}");
        assert!(said.contains("1 file changed") && said.contains("shadow: "), "{said}");
        crate::contexts::sh(
            &source,
            "echo more >> deep/more; git add .; git -c user.name=a -c user.email=a@b commit -qm x",
        );
    }
    // Two at a time have different users.
    let mut keys = Vec::new();
    for _ in 0..2 {
        let key = farm.submit("g", script("id -u; sleep 3")).await;
        farm.wait_until(&key, SOON, |record| record.state() == State::InProgress).await;
        keys.push(key);
    }
    let mut users = Vec::new();
    for key in &keys {
        ended_as(&farm, key, Outcome::Succeeded).await;
        users.push(said(&farm, key).await);
    }
    users.sort();
    assert_eq!(users, ["41000\n", "41001\n"]);
}

#[tokio::test]
async fn files_of_a_warm_workspace_stay() {
    // Its folder is below /tmp here, which is emptied after each command.
    let farm = builder().start().await;
    let files = "file \"$HOME/.cache/file\" ../bazel/file";
    let text = format!(
        "mkdir -p \"$HOME/.cache\"; cat {files} | wc -l; for it in {files}; do echo kept >>\"$it\"; done; touch /tmp/left"
    );
    let warm = || {
        let request = BuildRequest { workspace: Some(WorkspaceUse::Warm), ..script(&text) };
        BuildRequest { outputs: vec!["file".to_owned()], ..request }
    };
    for before in ["0\n", "3\n", "6\n"] {
        let key = farm.submit("g", warm()).await;
        let record = ended_as(&farm, &key, Outcome::Succeeded).await;
        assert_eq!(said(&farm, &key).await, before);
        assert_eq!(record.result().unwrap().outputs.len(), 1);
    }
}

#[tokio::test]
async fn actions_and_builds_do_not_see_what_the_settings_hide() {
    // Only root can make a folder there.
    let Ok(hidden) = tempfile::Builder::new().prefix("forebay-hidden-").tempdir_in("/opt") else { return };
    fs::set_permissions(hidden.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(hidden.path().join("key"), "secret").unwrap();
    let look = format!("cat {}/key; echo looked", hidden.path().display());
    for (setting, seen) in [("[]".to_owned(), true), (format!("[{:?}]", hidden.path()), false)] {
        let farm = builder().env("FOREBAY_SANDBOX_HIDDEN", &setting).start().await;
        let said = output(&farm, script(&look)).await;
        assert_eq!((said.contains("secret"), said.contains("looked")), (seen, true), "a build: {said}");
        let farm = acting::builder()
            .env("FOREBAY_SANDBOX", "bubblewrap")
            .env("FOREBAY_SANDBOX_HIDDEN", &setting)
            .start()
            .await;
        let remote = acting::remote(&farm).await;
        let action = acting::upload(&remote, &format!("{look} {setting:?}")).await;
        let said = acting::stdout(&remote, &acting::executed(&remote, action).await).await;
        assert_eq!((said.contains("secret"), said.contains("looked")), (seen, true), "an action: {said}");
    }
}

#[tokio::test]
async fn a_cancelled_build_leaves_no_process_in_its_sandbox() {
    let farm = builder().start().await;
    let key = farm.submit("g", script("setsid sleep 1000 & sleep 1000 & echo up; wait")).await;
    farm.wait_event(&key, SOON, &[EventKind::Console], |_| true).await;
    assert!(!processes_of(key.id).is_empty());
    farm.client().cancel(&key, None).await.unwrap();
    ended_as(&farm, &key, Outcome::Cancelled).await;
    until("its processes are dead", Duration::from_secs(5), || processes_of(key.id).is_empty()).await;
}

#[tokio::test]
async fn sources_are_fetched_outside_and_built_inside() {
    let farm = builder().env("FOREBAY_BUILD_NETWORK", "loopback").start().await;
    let repository = farm.folder().join("repository");
    fs::create_dir(&repository).unwrap();
    fs::write(
        repository.join("hello.c"),
        "int puts(const char *); int main(void) { return puts(\"hello\") < 0; }",
    )
    .unwrap();
    let git = |arguments: &[&str]| {
        let done =
            std::process::Command::new("git").arg("-C").arg(&repository).args(arguments).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"]);
    let mut request = script(
        "exec 2>&1; cc -o hello hello.c && ./hello && git log --oneline | wc -l
         shared=$(cat .git/objects/info/alternates) && touch \"$shared/x\"; test -d \"$shared\"",
    );
    // A warm workspace reads its objects from the repository of the worker.
    request.workspace = Some(WorkspaceUse::Warm);
    request.context =
        Context::Git { url: repository.display().to_string(), revision: "main".to_owned(), patch: None };
    let said = output(&farm, request).await;
    assert!(said.starts_with("hello\n1\n") && said.contains("Read-only file system"), "{said}");
}

#[tokio::test]
async fn a_worker_whose_machine_allows_no_sandbox_says_so() {
    let farm = Farm::builder().without("gateway").without("worker").start().await;
    let env = [("FOREBAY_BUILD_SANDBOX", "bubblewrap"), ("PATH", "/nowhere")];
    let mut worker = farm.start_unready("worker", &env);
    assert!(!worker.wait_exit(SOON).await.success());
    let log = worker.log_text();
    assert!(log.contains("bubblewrap not found") && log.contains("choose the sandbox `none`"), "{log}");
}

fn requiring(text: &str, asked: &[(&str, &str)]) -> BuildRequest {
    let requirements = asked.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    BuildRequest { requirements: BuildRequirements(requirements.collect()), ..script(text) }
}

/// Says whether a build sees the machine's `/tmp`, and whether it can make internet sockets.
fn look(farm: &Farm) -> String {
    let mark = farm.folder().join("mark");
    fs::write(&mark, "").unwrap();
    format!(
        "[ -e {} ] && echo outside || echo inside; python3 -c 'import socket; socket.socket()' 2>/dev/null && echo sockets || echo none",
        mark.display()
    )
}

#[tokio::test]
async fn a_build_may_ask_for_more_isolation_and_for_less_where_a_setting_allows_it() {
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let look = look(&farm);
    assert_eq!(output(&farm, script(&look)).await, "outside\nsockets\n");
    assert_eq!(output(&farm, requiring(&look, &[("sandbox", "bubblewrap")])).await, "inside\nsockets\n");
    assert_eq!(output(&farm, requiring(&look, &[("network", "none")])).await, "inside\nnone\n");
    assert_eq!(output(&farm, script(&look)).await, "outside\nsockets\n", "the next one asks for nothing");
    let strict = builder().start().await;
    let refused = requiring("true", &[("sandbox", "none")]);
    let reason = strict.client().create(&"g".parse().unwrap(), &refused, None).await.unwrap_err().to_string();
    assert!(reason.contains("sandbox") && reason.contains("offered: bubblewrap"), "{reason}");
    let open = builder().env("FOREBAY_BUILD_SANDBOX_BY_REQUEST", "true").start().await;
    let look = self::look(&open);
    assert_eq!(output(&open, script(&look)).await, "inside\nsockets\n");
    assert_eq!(output(&open, requiring(&look, &[("sandbox", "none")])).await, "outside\nsockets\n");
}

#[tokio::test]
async fn a_worker_chooses_the_sandbox_that_its_machine_supports() {
    let farm = Farm::builder()
        .without("gateway")
        .workspaces(1)
        .env("FOREBAY_BUILD_SANDBOX", "auto")
        // One of the system folders, which is a link.
        .env("FOREBAY_SANDBOX_READ_ONLY", r#"["/sbin"]"#)
        .start()
        .await;
    assert_eq!(output(&farm, script(&look(&farm))).await, "inside\nsockets\n");
    let without = Farm::builder()
        .without("gateway")
        .workspaces(1)
        .env("FOREBAY_BUILD_SANDBOX", "auto")
        .env("PATH", "/nowhere")
        .start()
        .await;
    let text = look(&without).replace("python3", "/usr/bin/python3");
    assert_eq!(output(&without, script(&text)).await, "outside\nsockets\n");
    let listed = without.cli(&["workers"]).await.stdout;
    assert!(listed.contains("sandbox=none"), "{listed}");
}

#[tokio::test]
async fn nothing_that_a_build_puts_beside_devices_stays_for_the_next() {
    let farm = builder().start().await;
    let text = "rm -f /dev/stdin; echo evil > /dev/stdin; echo secret > /dev/leak; exit 0";
    let key = farm.submit("one", script(text)).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let text = "echo good | cat /dev/stdin; [ -e /dev/leak ] || echo nothing; echo x > /dev/null; ls /dev/shm /dev/mqueue";
    let key = farm.submit("two", script(text)).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let found = said(&farm, &key).await;
    assert!(found.starts_with("good\nnothing\n"), "{found}");
}
