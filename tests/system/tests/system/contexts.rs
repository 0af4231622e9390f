//! Contents of a workspace: folders, git revisions, archives; and the outputs that are kept.

use std::{
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use farm::{Farm, Output};
use model::{BuildRecord, BuildRequest, Context, Digest, Outcome, ReasonCode};

use crate::check::{ended, ended_as, script};

async fn farm() -> Farm {
    Farm::builder().start().await
}

/// Runs `text` in a workspace with this content, keeps `out.txt`, and returns that output and the record.
pub(crate) async fn run_in(farm: &Farm, context: Context, text: &str) -> (String, BuildRecord) {
    let key =
        farm.submit("g", BuildRequest { context, outputs: vec!["out.txt".into()], ..script(text) }).await;
    let record = ended_as(farm, &key, Outcome::Succeeded).await;
    let output = farm.cli(&["get", &key.id.to_string(), "--output", "out.txt", "-"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    (output.stdout, record)
}

pub(crate) async fn assert_unavailable(farm: &Farm, context: Context, named: &str) {
    let key = farm.submit("g", BuildRequest { context, ..script("echo ran") }).await;
    let record = ended_as(farm, &key, Outcome::Failed).await;
    let result = record.result().unwrap();
    let reason = result.reason.as_ref().unwrap();
    assert_eq!(reason.code, ReasonCode::ContextUnavailable, "{reason:?}");
    assert!(reason.message.contains(named), "{reason:?} names no {named}");
    assert_eq!((result.command_started_at_us, result.log.stdout_bytes), (None, 0));
}

pub(crate) fn sh(folder: &Path, text: &str) -> String {
    let output = Command::new("/bin/sh").args(["-ec", text]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) fn folder(farm: &Farm, name: &str) -> PathBuf {
    let path = farm.folder().join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_folder_is_copied_and_left_as_it_was() {
    let farm = farm().await;
    let source = folder(&farm, "source with blanks");
    sh(
        &source,
        "mkdir -p deep/er; echo one > a.txt; echo two > deep/er/.b; ln -s a.txt link; chmod +x a.txt",
    );
    let context = Context::Directory { path: text(&source), ignore_files: false };
    let (out, record) =
        run_in(&farm, context, "cat link deep/er/.b > out.txt; test -x a.txt; rm a.txt; pwd > /dev/null")
            .await;
    assert_eq!(out, "one\ntwo\n");
    assert!(source.join("a.txt").exists() && !source.join("out.txt").exists());
    assert!(record.result().unwrap().preparation_seconds.is_some_and(|seconds| seconds > 0.0));
    let kept = &record.result().unwrap().outputs;
    assert_eq!(kept[0].digest, Digest::of(b"one\ntwo\n"));
    assert_eq!((kept[0].path.as_str(), kept[0].size_bytes, kept.len()), ("out.txt", 8, 1));
    assert_unavailable(
        &farm,
        Context::Directory { path: text(&farm.folder().join("nowhere")), ignore_files: false },
        "nowhere not found on this worker",
    )
    .await;
}

#[tokio::test]
async fn a_git_revision_is_a_branch_a_tag_or_a_commit_and_takes_a_patch() {
    let farm = farm().await;
    let repository = folder(&farm, "repository");
    let first = sh(
        &repository,
        "git init -q -b main . && git config user.email t@example.com && git config user.name t
         echo first > file && git add file && git commit -qm first && git tag v1 && git rev-parse HEAD",
    );
    sh(&repository, "echo second > file && git commit -qam second && git checkout -qb topic/x");
    sh(&repository, "echo third > file && git commit -qam third && git checkout -q main");
    let url = text(&repository);
    let git = |revision: &str, patch: Option<&str>| Context::Git {
        url: url.clone(),
        revision: revision.to_owned(),
        patch: patch.map(str::to_owned),
    };
    for (revision, wanted) in [
        ("main", "second"),
        ("topic/x", "third"),
        ("v1", "first"),
        (first.as_str(), "first"),
        (&first[..10], "first"),
    ] {
        let (out, _) = run_in(&farm, git(revision, None), "cp file out.txt").await;
        assert_eq!(out.trim(), wanted, "{revision}");
    }
    let patch = "diff --git a/file b/file\n--- a/file\n+++ b/file\n@@ -1 +1 @@\n-second\n+patched\n";
    let (out, _) = run_in(&farm, git("main", Some(patch)), "cp file out.txt").await;
    assert_eq!(out, "patched\n");
    assert_unavailable(&farm, git("v1", Some(patch)), "patch").await;
    assert_unavailable(&farm, git("no-such-branch", None), "no-such-branch").await;
    let nowhere =
        Context::Git { url: text(&farm.folder().join("nowhere.git")), revision: "main".into(), patch: None };
    assert_unavailable(&farm, nowhere, "nowhere.git not found on this worker").await;
}

/// Serves the files of a folder over HTTP.
async fn serve(folder: &Path) -> String {
    let folder = folder.to_owned();
    let file = async move |axum::extract::Path(name): axum::extract::Path<String>| {
        std::fs::read(folder.join(name)).map_err(|_| axum::http::StatusCode::NOT_FOUND)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().route("/{name}", axum::routing::get(file));
    tokio::spawn(async { axum::serve(listener, router).await });
    url
}

#[tokio::test]
async fn an_archive_comes_by_path_or_by_url_and_must_have_its_digest() {
    let farm = farm().await;
    let source = folder(&farm, "source");
    sh(
        &source,
        "echo packed > file; tar -czf ../pack.tar.gz file; tar -cf ../pack.tar file; echo no > ../bad.tar",
    );
    let url = serve(farm.folder()).await;
    let path = farm.folder().join("pack.tar.gz");
    let digest = Digest::of(&std::fs::read(&path).unwrap());
    let archive = |location: &str, digest: Option<&Digest>| Context::Archive {
        location: location.to_owned(),
        digest: digest.cloned(),
    };
    let by_url = format!("{url}/pack.tar.gz");
    for context in [
        archive(&text(&path), None),
        archive(&text(&path), Some(&digest)),
        archive(&text(&farm.folder().join("pack.tar")), None),
        archive(&by_url, None),
        archive(&by_url, Some(&digest)),
    ] {
        let (out, _) = run_in(&farm, context, "cp file out.txt").await;
        assert_eq!(out, "packed\n");
    }
    let wrong = Digest::of(b"something else");
    assert_unavailable(&farm, archive(&text(&path), Some(&wrong)), wrong.as_str()).await;
    assert_unavailable(&farm, archive(&by_url, Some(&wrong)), wrong.as_str()).await;
    assert_unavailable(
        &farm,
        archive(&text(&farm.folder().join("nowhere.tar")), None),
        "nowhere.tar not found",
    )
    .await;
    assert_unavailable(&farm, archive(&text(&farm.folder().join("bad.tar")), None), "bad.tar").await;
    assert_unavailable(&farm, archive(&format!("{url}/missing.tar"), None), "missing.tar").await;
    assert_unavailable(&farm, archive("http://127.0.0.1:1/x.tar", None), "127.0.0.1:1").await;
}

#[tokio::test]
async fn c5_outputs_are_kept_by_glob_and_links_out_of_the_workspace_are_not() {
    let farm = farm().await;
    let secret = folder(&farm, "outside");
    std::fs::write(secret.join("secret.txt"), "secret").unwrap();
    let make = format!(
        "mkdir -p a/b; printf one > a/1.txt; printf two > a/b/2.txt; printf no > a/b/3.log; printf '\\0\\377' > bin.txt
         chmod +x bin.txt; ln -s {outside}/secret.txt stolen.txt; ln -s {outside} folder; ln -s a/1.txt inside.txt
         ln -s nowhere dangling.txt; ln -s .. a/b/loop",
        outside = secret.display()
    );
    let outputs = vec!["*.txt".into(), "a/**/*.txt".into(), "folder/**".into(), "none/*".into()];
    let key = farm.submit("g", BuildRequest { outputs, ..script(&make) }).await;
    let record = ended_as(&farm, &key, Outcome::Succeeded).await;
    let kept: Vec<(&str, u64, bool)> = record
        .result()
        .unwrap()
        .outputs
        .iter()
        .map(|file| (file.path.as_str(), file.size_bytes, file.executable))
        .collect();
    let wanted =
        [("a/1.txt", 3, false), ("a/b/2.txt", 3, false), ("bin.txt", 2, true), ("inside.txt", 3, false)];
    assert_eq!(kept, wanted);

    let fetched = farm.folder().join("fetched");
    let output = farm.cli(&["get", &key.id.to_string(), "--output", "bin.txt", &text(&fetched)]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(std::fs::read(&fetched).unwrap(), b"\0\xff");
    assert_ne!(std::fs::metadata(&fetched).unwrap().permissions().mode() & 0o111, 0);
    let output = farm.cli(&["get", &key.id.to_string(), "--output", "stolen.txt", "-"]).await;
    assert_eq!(output.code, 2, "{output:?}");
    assert!(output.stderr.contains("output files: a/1.txt, a/b/2.txt"), "{output:?}");
    assert!(!output.stdout.contains("secret"));
    outputs_go_into_pipes_and_links(&farm, &key.id.to_string()).await;
}

/// Downloads outputs of the build above: several at once, through a symlink, and into a pipe and a device, which stay.
async fn outputs_go_into_pipes_and_links(farm: &Farm, id: &str) {
    let to = folder(farm, "to");
    sh(&to, "mkfifo pipe; echo old > file; ln -s file link");
    let at = |name: &str| text(&to.join(name));
    let (link, plain) = (at("link"), at("plain"));
    let both = ["get", id, "--output", "./a//1.txt", &link, "--output", "bin.txt", &plain];
    let output = farm.cli(&both).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("file"));
    assert_eq!(std::fs::read(at("file")).unwrap().len(), 3);
    assert_eq!(std::fs::read(&plain).unwrap(), b"\0\xff");

    let reader = Command::new("cat").arg(at("pipe")).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let output = farm.cli(&["get", id, "--output", "bin.txt", &at("pipe")]).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!(reader.wait_with_output().unwrap().stdout, b"\0\xff");
    assert!(std::fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
    let output = farm.cli(&["get", id, "--output", "bin.txt", "/dev/full"]).await;
    assert!(output.code == 1 && output.stderr.contains("/dev/full"), "{output:?}");
    assert!(std::fs::metadata("/dev/full").unwrap().file_type().is_char_device());
    let output = farm.cli(&["get", id, "--output", "bin.txt", &at("none/x")]).await;
    assert!(output.code == 1 && output.stderr.contains("does not exist"), "{output:?}");
    assert!(!to.join("none").exists());
}

#[tokio::test]
async fn nothing_of_one_build_is_left_to_the_next() {
    let farm = Farm::builder().without("gateway").workspaces(1).start().await;
    let dirty =
        farm.submit("g", script("echo x > left; echo y > $TMPDIR/left; ln -s / root; mkdir -m 000 d")).await;
    ended_as(&farm, &dirty, Outcome::Succeeded).await;
    let look = farm.submit("g", script("ls -A . \"$TMPDIR\" | grep -q left && exit 9; exit 0")).await;
    ended_as(&farm, &look, Outcome::Succeeded).await;
    assert!(Path::new("/etc").exists());
}

#[tokio::test]
async fn outputs_of_a_failed_build_are_kept_too() {
    let farm = farm().await;
    let request = BuildRequest { outputs: vec!["report".into()], ..script("echo bad > report; exit 3") };
    let key = farm.submit("g", request).await;
    let record = ended(&farm, &key).await;
    let result = record.result().unwrap();
    assert_eq!((result.outcome, result.exit_code, result.outputs.len()), (Outcome::Failed, Some(3), 1));
    let output: Output = farm.cli(&["get", &key.id.to_string(), "--output", "report", "-"]).await;
    assert_eq!(output.stdout, "bad\n");
}

#[tokio::test]
async fn outputs_that_are_not_made_or_cannot_be_kept_are_named() {
    let farm = farm().await;
    let make = r"mkdir d; echo x > d/a; mkfifo d/pipe; ln -s /etc/passwd d/out; ln -s nowhere d/lost; ln -s ../d d/folder
        ln -s a d/link; echo x > d/$(printf 'b\377')";
    let outputs: Vec<String> = ["d/*", "report.xml", "logs/**"].map(Into::into).into();
    let request = BuildRequest { outputs, ..script(make) };
    let key = farm.submit("g", request.clone()).await;
    let result = ended_as(&farm, &key, Outcome::Succeeded).await.result().unwrap().clone();
    assert_eq!(result.outputs.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(), ["d/a", "d/link"]);
    assert_eq!(result.outputs_missing, ["report.xml", "logs/**"]);
    let left_out: Vec<&str> = result.outputs_not_kept.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(left_out, ["d/b\u{fffd}", "d/folder", "d/lost", "d/out", "d/pipe"]);
    assert_eq!(result.outputs_not_kept_count, 5);
    assert!(result.outputs_not_kept.iter().all(|it| !it.reason.is_empty()));
    for command in ["get", "watch"] {
        let told = farm.cli(&[command, &key.id.to_string()]).await;
        let told = format!("{}{}", told.stdout, told.stderr);
        assert!(told.contains("no file matches the output report.xml") && told.contains("d/pipe"), "{told}");
    }
    // A build that requires its outputs says so.
    let again = BuildRequest { require_outputs: true, outputs: request.outputs, ..script(make) };
    let key = farm.submit("g", again).await;
    let result = ended_as(&farm, &key, Outcome::Failed).await.result().unwrap().clone();
    assert_eq!(result.reason.as_ref().unwrap().code, ReasonCode::OutputMissing);
    assert!(result.reason.unwrap().message.contains("report.xml and 1 more"));
    assert_eq!((result.exit_code, result.outputs.len()), (Some(0), 2));
    let wanted = BuildRequest { require_outputs: true, outputs: vec!["a".into()], ..script("echo > a") };
    let key = farm.submit("g", wanted).await;
    assert!(ended_as(&farm, &key, Outcome::Succeeded).await.result().unwrap().outputs_missing.is_empty());
}

#[tokio::test]
async fn c3_an_archive_that_unpacks_to_too_much_is_stopped() {
    let farm = Farm::builder().env("FOREBAY_UNPACKED_BYTES_MAX", "4000000").start().await;
    let source = folder(&farm, "source");
    sh(
        &source,
        "mkdir small; head -c 3000000 /dev/zero > small/a; tar -czf ../small.tar.gz -C small .
         mkdir large; for i in 1 2 3 4 5 6; do head -c 1000000 /dev/zero > large/$i; done; tar -czf ../large.tar.gz -C large .
         mkdir sparse; truncate -s 1T sparse/a; tar -czSf ../sparse.tar.gz -C sparse .",
    );
    let archive = |name: &str| Context::Archive { location: text(&farm.folder().join(name)), digest: None };
    run_in(&farm, archive("small.tar.gz"), "ls > out.txt").await;
    for workspace in [model::WorkspaceUse::Fresh, model::WorkspaceUse::Warm] {
        for name in ["large.tar.gz", "sparse.tar.gz"] {
            let context = archive(name);
            let key = farm
                .submit("g", BuildRequest { context, workspace: Some(workspace), ..script("echo ran") })
                .await;
            let record = ended_as(&farm, &key, Outcome::Failed).await;
            let reason = record.result().unwrap().reason.clone().unwrap();
            assert_eq!(reason.code, ReasonCode::ContextUnavailable, "{reason:?}");
            let told = farm.cli(&["watch", &key.id.to_string()]).await;
            let told = format!("{}{}", told.stdout, told.stderr);
            assert!(name.starts_with("sparse") || told.contains("unpacked_bytes_max"), "{told}");
        }
    }
}

#[tokio::test]
async fn a_folder_is_copied_without_a_farms_data_and_what_ignore_files_name() {
    let farm = farm().await;
    let source = folder(&farm, "source");
    sh(&source, "echo a > a; echo o > a.o; echo '*.o' > .gitignore; mkdir data; echo > data/.forebay-data");
    let context = |path: &Path, ignore_files| Context::Directory { path: text(path), ignore_files };
    let (out, _) = run_in(&farm, context(&source, false), "ls > out.txt").await;
    assert_eq!(out, "a\na.o\nout.txt\n");
    let (out, _) = run_in(&farm, context(&source, true), "ls > out.txt").await;
    assert_eq!(out, "a\nout.txt\n");
}

/// Returns the bytes of blobs that the gateway has received.
async fn received(farm: &Farm) -> u64 {
    let urls = farm.metrics_urls();
    let (_, url) = urls.iter().find(|(name, _)| name.starts_with("gateway")).unwrap();
    let metrics = crate::http::client().get(url).send().await.unwrap().text().await.unwrap();
    let line = metrics.lines().find(|line| line.starts_with("forebay_cas_written_bytes_total"));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_second_submit_of_a_folder_uploads_only_what_changed() {
    let farm = farm().await;
    let source = folder(&farm, "source");
    sh(&source, "for d in $(seq 50); do mkdir $d; for f in $(seq 100); do echo $d $f > $d/$f; done; done");
    let dir = text(&source);
    let submit = ["submit", "--follow", "--dir", &dir, "--", "sh", "-c", "cat */* | wc -l; cat 7/7"];
    let output = farm.cli(&submit).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "5000\n7 7\n"), "{output:?}");
    let first = received(&farm).await;
    std::fs::write(source.join("7/7"), "changed\n").unwrap();
    let output = farm.cli(&submit).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "5000\nchanged\n"), "{output:?}");
    assert!(output.stderr.contains("uploaded 3 of 5051 blobs"), "{output:?}");
    // The file, its folder with 100 entries, and the whole folder with 50 entries.
    let second = received(&farm).await;
    assert!((1..20_000).contains(&(second - first)) && first > 100_000, "{first} {second}");
    let output = farm.cli(&submit).await;
    assert!(output.code == 0 && !output.stderr.contains("uploaded"), "{output:?}");
    assert_eq!(received(&farm).await, second);
}

#[tokio::test]
async fn a_submitted_folder_arrives_as_it_is() {
    let farm = farm().await;
    let source = folder(&farm, "source with blanks");
    sh(
        &source,
        "mkdir -p deep/empty data; echo one > a.txt; chmod +x a.txt; ln -s a.txt link; ln -s /nowhere abs
         mkfifo pipe; echo > data/.forebay-data; echo o > a.o; echo '*.o' > .gitignore; echo /deep/x > .forebayignore
         echo x > deep/x",
    );
    let dir = text(&source);
    let look = "LC_ALL=C ls -A . deep; test -x a.txt; test ! -x .gitignore; cat link; readlink abs";
    let submit = ["submit", "--follow", "--dir", &dir, "--ignore-files", "--", "sh", "-ec", look];
    let output = farm.cli(&submit).await;
    let entries = ".:\n.forebayignore\n.gitignore\na.txt\nabs\ndeep\nlink\n\ndeep:\nempty\n";
    assert_eq!((output.code, output.stdout), (0, format!("{entries}one\n/nowhere\n")), "{}", output.stderr);
    let there = farm.cli(&["submit", "--follow", "--worker-dir", &dir, "--", "cat", "a.o"]).await;
    assert_eq!((there.code, there.stdout.as_str()), (0, "o\n"), "{there:?}");

    sh(&source, "echo x > $(printf 'b\\377')");
    let output = farm.cli(&["submit", "--dir", &dir, "--", "true"]).await;
    assert!(output.code == 2 && output.stderr.contains("cannot upload "), "{output:?}");
}

#[tokio::test]
async fn a_folder_is_not_submitted_without_a_gateway() {
    let farm = Farm::builder().without("gateway").start().await;
    let dir = text(&folder(&farm, "source"));
    let output = farm.cli(&["submit", "--no-wait", "--dir", &dir, "--", "true"]).await;
    assert_eq!(output.code, 4, "{output:?}");
    for advice in ["forebay serve gateway", "--worker-dir"] {
        assert!(output.stderr.contains(advice), "{output:?}");
    }
    let output = farm.cli(&["submit", "--no-wait", "--follow", "--worker-dir", &dir, "--", "ls"]).await;
    assert_eq!(output.code, 0, "{output:?}");
    let key = farm.submit("g", BuildRequest { outputs: vec!["out".into()], ..script("echo > out") }).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    let output = farm.cli(&["get", "--no-wait", &key.id.to_string(), "--output", "out", "-"]).await;
    assert!(output.code == 4 && output.stderr.contains("no gateway"), "{output:?}");
}
