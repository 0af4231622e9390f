//! What builds cannot get as their sources: files of the worker's machine, servers that only it reaches, and commands
//! that run outside of the sandbox.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, extract::Request, http::StatusCode, response::IntoResponse as _, response::Redirect};
use farm::Farm;
use model::{BuildRequest, Context, JobSource, Outcome, WorkspaceUse};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    check::{ended, ended_as, script},
    contexts::{assert_unavailable, folder, run_in, sh, text},
};

fn git(url: &str) -> Context {
    Context::Git { url: url.to_owned(), revision: "main".to_owned(), patch: None }
}

fn archive(location: &str) -> Context {
    Context::Archive { location: location.to_owned(), digest: None }
}

fn directory(path: &Path) -> Context {
    Context::Directory { path: text(path), ignore_files: false }
}

/// Creates a repository with the file `file`.
fn repository(at: &Path) {
    fs::create_dir_all(at).unwrap();
    sh(
        at,
        "git init -q -b main . && git config user.email t@example.com && git config user.name t
         echo content > file && git add file && git commit -qm first",
    );
}

/// A folder that is not one of the farm's, with a repository, an archive and a file.
fn outside() -> TempDir {
    let outside = tempfile::tempdir().unwrap();
    repository(&outside.path().join("repository"));
    sh(outside.path(), "echo SECRET > secret; tar -cf pack.tar secret");
    outside
}

#[tokio::test]
async fn c1_git_reads_only_repositories_in_the_folders_of_the_settings() {
    let farm = Farm::builder().without("gateway").start().await;
    let outside = outside();
    let other = text(&outside.path().join("repository"));
    let own = folder(&farm, "own");
    repository(&own);
    let at = |name: &str| text(&farm.folder().join(name));
    sh(
        farm.folder(),
        &format!(
            "ln -s {other} link; mkdir named file; ln -s {other}/.git named/.git; echo gitdir: {other}/.git > file/.git
             git init -q -b main borrowed; echo {other}/.git/objects > borrowed/.git/objects/info/alternates
             git clone -q --bare own bare; mv bare/objects bare/moved; ln -s {other}/.git/objects bare/objects
             git init -q -b main common; echo {other}/.git > common/.git/commondir; mkdir suffix; ln -s {other}/.git suffix.git",
        ),
    );
    let around = format!("{}/../{}/repository", at(""), outside.path().file_name().unwrap().display());
    let encoded = format!("file://{}", other.replace('/', "%2f").replacen("%2f", "/", 1));
    let linked = ["link", "named", "file", "borrowed", "bare", "common", "suffix"].map(at);
    for url in [other.clone(), format!("file://{other}"), encoded, around].into_iter().chain(linked) {
        assert_unavailable(&farm, git(&url), "context_paths").await;
    }
    for url in
        ["git://127.0.0.1/r", "HTTP://127.0.0.1/r", "a::b", "file://localhost/r", "ssh://-oProxyCommand=id/r"]
    {
        assert_unavailable(&farm, git(url), url).await;
    }
    let reference = Context::Git { url: text(&own), revision: "main:refs/heads/x".into(), patch: None };
    assert_unavailable(&farm, reference, "main:refs/heads/x").await;
    let submodule = folder(&farm, "submodule");
    repository(&submodule);
    let mark = at("mark");
    sh(
        &submodule,
        &format!(
            "git -c protocol.file.allow=always submodule --quiet add {other} sub
             git config -f .gitmodules submodule.sub.url 'ext::touch {mark}'
             git config -f .gitmodules submodule.sub.update '!touch {mark}'; git add . && git commit -qm submodule",
        ),
    );
    for url in [text(&own), format!("file://{}", text(&own)), text(&submodule)] {
        let request = BuildRequest { context: git(&url), ..script("test -e file && ! test -e sub/file") };
        let key = farm.submit("g", request).await;
        ended_as(&farm, &key, Outcome::Succeeded).await;
    }
    assert!(!Path::new(&mark).exists());
}

#[tokio::test]
async fn c1_the_variables_of_a_request_run_nothing_while_its_sources_are_fetched() {
    let farm = Farm::builder().without("gateway").start().await;
    let own = folder(&farm, "own");
    repository(&own);
    let mark = text(&farm.folder().join("mark"));
    sh(
        farm.folder(),
        &format!("printf '#!/bin/sh\\ntouch {mark}\\ncat\\n' > touch; chmod +x touch; tar -cf pack.tar own"),
    );
    let touch = text(&farm.folder().join("touch"));
    let mut env = vec![
        ("TAR_OPTIONS".to_owned(), format!("--use-compress-program={touch}")),
        ("GIT_CONFIG_COUNT".to_owned(), "2".to_owned()),
        ("GIT_TRACE".to_owned(), mark.clone()),
    ];
    let programs = ["GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_EXTERNAL_DIFF"];
    env.extend(programs.map(|name| (name.to_owned(), touch.clone())));
    for (number, key) in ["core.sshCommand", "core.fsmonitor"].iter().enumerate() {
        env.push((format!("GIT_CONFIG_KEY_{number}"), (*key).to_owned()));
        env.push((format!("GIT_CONFIG_VALUE_{number}"), touch.clone()));
    }
    for (context, outcome) in [
        (git("ssh://git@127.0.0.1:1/r"), Outcome::Failed),
        (git(&text(&own)), Outcome::Succeeded),
        (archive(&text(&farm.folder().join("pack.tar"))), Outcome::Succeeded),
    ] {
        let request = BuildRequest { context, env: env.iter().cloned().collect(), ..script("exit 0") };
        let key = farm.submit("g", request).await;
        ended_as(&farm, &key, outcome).await;
        assert!(!Path::new(&mark).exists());
    }
}

#[tokio::test]
async fn c2_files_of_the_machine_are_read_only_in_the_folders_of_the_settings() {
    let farm = Farm::builder().without("gateway").start().await;
    let outside = outside();
    sh(farm.folder(), &format!("ln -s {} link; mkdir own; echo x > own/file", text(outside.path())));
    let link = farm.folder().join("link");
    for path in ["/", "/root", "/etc", "/proc/self/root", "/nowhere"].map(PathBuf::from).into_iter().chain([
        outside.path().to_owned(),
        link.clone(),
        farm.folder().join("own/../link"),
        farm.folder().join(".."),
    ]) {
        assert_unavailable(&farm, directory(&path), "context_paths").await;
    }
    for path in [farm.data(), farm.folder().join("own/../data")] {
        assert_unavailable(&farm, directory(&path), "data folder").await;
    }
    for location in [outside.path().join("pack.tar"), link.join("pack.tar"), "/etc/passwd".into()] {
        assert_unavailable(&farm, archive(&text(&location)), "context_paths").await;
    }
    farm.replace("worker", &[("FOREBAY_CONTEXT_PATHS", "[]")]).await;
    assert_unavailable(&farm, directory(&farm.folder().join("own")), "context_paths").await;
}

#[tokio::test]
async fn c3_an_archive_writes_and_links_nothing_outside_of_its_workspace() {
    let farm = Farm::builder().without("gateway").start().await;
    let (outside, evil) = (outside(), folder(&farm, "evil"));
    let out = text(outside.path());
    sh(
        &evil,
        &format!(
            "echo x > a; ln a b
             tar -P -cf ../up.tar --transform='s,^a$,../../../../../escaped,' a
             tar -P -cf ../root.tar --transform='s,^a$,{out}/escaped,' a
             ln -s {out} l; tar -cf ../through.tar l; tar -P -cf ../hard-through.tar --transform='s,^a$,l/secret,h' l a b
             rm l; mkdir l; echo x > l/escaped; tar -rf ../through.tar l/escaped
             tar -P -cf ../hard.tar --transform='s,^a$,{out}/secret,h' a b
             tar -cf ../twice.tar a; ln -sf {out}/escaped a; tar -rf ../twice.tar a; rm a; echo x > a; tar -rf ../twice.tar a",
        ),
    );
    let before = sh(outside.path(), "ls -lA --time-style=full-iso");
    let names = ["up.tar", "root.tar", "through.tar", "hard-through.tar", "hard.tar", "twice.tar"];
    for (name, workspace) in
        names.iter().flat_map(|name| [(name, WorkspaceUse::Fresh), (name, WorkspaceUse::Warm)])
    {
        let context = archive(&text(&farm.folder().join(name)));
        let key = farm
            .submit("g", BuildRequest { context, workspace: Some(workspace), ..script("cat b; exit 0") })
            .await;
        ended(&farm, &key).await;
        let shown = farm.cli(&["watch", &key.id.to_string()]).await;
        assert!(!format!("{}{}", shown.stdout, shown.stderr).contains("SECRET"), "{name}: {shown:?}");
        assert_eq!(sh(outside.path(), "ls -lA --time-style=full-iso"), before, "{name}");
        assert_eq!(
            sh(farm.folder(), "find . -name escaped -not -path './evil/*' -not -path '*/build/*'"),
            "",
            "{name}"
        );
    }
    // Only root can make devices.
    let made = Command::new("mknod").args([&text(&evil.join("disk")), "b", "7", "0"]).status().unwrap();
    if made.success() {
        sh(&evil, "tar -cf ../device.tar disk a");
        assert_unavailable(&farm, archive(&text(&farm.folder().join("device.tar"))), "device.tar").await;
    }
}

/// A server on a loopback address, which counts the requests to it.
struct Server {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Server {
    /// Answers `GET /PATH` by `answer`.
    async fn start(
        answer: impl Fn(&str) -> axum::response::Response + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&requests);
        let router = Router::new().fallback(async move |request: Request| {
            count.fetch_add(1, Ordering::Relaxed);
            answer(&request.uri().path_and_query().unwrap().to_string())
        });
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { port, requests }
    }

    async fn of_files(folder: &Path) -> Self {
        let folder = folder.to_owned();
        Self::start(move |path| {
            let path = path.split('?').next().unwrap().trim_start_matches('/');
            fs::read(folder.join(path)).map_or_else(
                |_| StatusCode::NOT_FOUND.into_response(),
                axum::response::IntoResponse::into_response,
            )
        })
        .await
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
}

#[tokio::test]
async fn c4_sources_come_from_no_closed_address_and_through_no_redirect_to_one() {
    let files = outside();
    sh(
        files.path(),
        "git clone -q --bare repository repository.git; git -C repository.git update-server-info",
    );
    let (open, closed) = (Server::of_files(files.path()).await, Server::of_files(files.path()).await);
    let port = closed.port;
    let redirecting = Server::start(move |path| {
        Redirect::temporary(&format!("http://localhost:{port}{path}")).into_response()
    })
    .await;
    let hosts = [&open, &redirecting].map(|server| format!("127.0.0.1:{}", server.port));
    let farm = Farm::builder().env("FOREBAY_FETCH_HOSTS", json!(hosts).to_string()).start().await;
    for host in [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "u:p@localhost",
    ] {
        assert_unavailable(&farm, archive(&format!("http://{host}:{port}/pack.tar")), "fetch_hosts").await;
        assert_unavailable(&farm, git(&format!("http://{host}:{port}/repository.git")), "fetch_hosts").await;
    }
    for url in ["ssh://git@127.0.0.1/r", "git@localhost:r", "ssh://2130706433:1/r", "ssh://[::1]/r"] {
        assert_unavailable(&farm, git(url), "fetch_hosts").await;
    }
    assert_unavailable(&farm, archive("http://169.254.169.254/latest/meta-data"), "fetch_hosts").await;
    assert_unavailable(&farm, archive(&redirecting.url("pack.tar")), "fetch_hosts").await;
    assert_unavailable(&farm, git(&redirecting.url("repository.git")), "fetch_hosts").await;
    let job = json!({"tasks": [{"id": "a", "fetch": {"url": closed.url("secret"), "to": "x"}}]});
    let job: JobSource = serde_json::from_value(job).unwrap();
    let request = BuildRequest { job: Some(job), command: Vec::new(), ..script("") };
    let key = farm.submit("g", request).await;
    ended_as(&farm, &key, Outcome::Failed).await;
    let shown = farm.cli(&["watch", &key.id.to_string()]).await;
    assert!(format!("{}{}", shown.stdout, shown.stderr).contains("fetch_hosts"), "{shown:?}");
    assert_eq!(closed.requests(), 0);
    assert!(redirecting.requests() > 1);

    let (out, _) = run_in(&farm, archive(&open.url("pack.tar")), "cp secret out.txt").await;
    assert_eq!(out, "SECRET\n");
    let (out, _) = run_in(&farm, git(&open.url("repository.git")), "cp file out.txt").await;
    assert_eq!(out, "content\n");
}
