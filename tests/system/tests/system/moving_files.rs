//! The commands `forebay cas` and `forebay exec`: uploads, downloads, and their messages.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use farm::{Farm, Output, SOON, bare_command};
use model::{BuildRequest, Outcome};
use prost::Message as _;
use reapi::{
    digest::to_proto,
    execution::{
        ActionResult, Directory, DirectoryNode, FileNode, OutputDirectory, OutputFile, OutputSymlink, Tree,
    },
};
use remote::Remote;

use crate::{
    acting,
    check::{ended_as, script},
};

async fn farm() -> Farm {
    Farm::builder().only(&["gateway"]).with_actions().start().await
}

/// The command line of a farm, at its Remote Execution API.
struct Cli<'a> {
    farm: &'a Farm,
}

impl Cli<'_> {
    async fn run(&self, args: &[&str]) -> Output {
        let mut all = args.to_vec();
        let grpc = self.farm.grpc_url();
        all.splice(1..1, ["--grpc", &grpc]);
        self.farm.cli(&all).await
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn make(folder: &Path) {
    for number in 0..1500 {
        let to = folder.join(format!("{}/{}", number % 7, number % 5));
        fs::create_dir_all(&to).unwrap();
        // Many files have equal content.
        fs::write(to.join(format!("{number}.txt")), format!("{}\n", number % 400)).unwrap();
    }
    fs::create_dir(folder.join("empty")).unwrap();
    fs::write(folder.join("empty.txt"), "").unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(folder.join("large"), &large).unwrap();
    fs::write(folder.join("again"), &large).unwrap();
    fs::write(folder.join("program"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(folder.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("large", folder.join("link")).unwrap();
}

#[tokio::test]
async fn a_folder_goes_up_and_comes_down_as_it_was() {
    let farm = farm().await;
    let cli = Cli { farm: &farm };
    let from = farm.folder().join("from");
    fs::create_dir(&from).unwrap();
    make(&from);
    let put = cli.run(&["cas", "put", text(&from)]).await;
    assert_eq!(put.code, 0, "{}", put.stderr);
    let digest = put.stdout.split_whitespace().next().unwrap();
    let to = farm.folder().join("to");
    let got = cli.run(&["cas", "get", digest, "--output", &format!("{}/", to.display())]).await;
    assert_eq!(got.code, 0, "{}", got.stderr);
    let same = Command::new("diff").arg("-r").args([&from, &to]).output().unwrap();
    assert!(same.status.success(), "{}", String::from_utf8_lossy(&same.stdout));
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("large"));
    let mode = |name: &str| fs::metadata(to.join(name)).unwrap().permissions().mode() & 0o111;
    assert!(mode("program") != 0 && mode("large") == 0);

    let listed = cli.run(&["cas", "get", digest]).await;
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    assert!(listed.stdout.contains("program") && listed.stdout.contains("folder"), "{}", listed.stdout);
    let raw = cli.run(&["cas", "get", digest, "--output", "-"]).await;
    assert!(raw.code == 0 && !raw.stdout.contains("KIND"), "{}", raw.stdout);

    let file = cli.run(&["cas", "put", text(&from.join("0/0/0.txt"))]).await;
    let digest = file.stdout.split_whitespace().next().unwrap();
    assert_eq!(cli.run(&["cas", "get", digest]).await.stdout, "0\n");
    let copy = farm.folder().join("copy");
    assert_eq!(cli.run(&["cas", "get", digest, "--output", text(&copy)]).await.code, 0);
    assert_eq!(fs::read(copy).unwrap(), b"0\n");
    let not_a_folder = cli.run(&["cas", "get", digest, "--output", &format!("{}/", to.display())]).await;
    assert_eq!(not_a_folder.code, 1, "{}", not_a_folder.stderr);
    assert!(not_a_folder.stderr.ends_with("is not a folder\n"), "{}", not_a_folder.stderr);
    let folder = put.stdout.split_whitespace().next().unwrap();
    let message = cli.run(&["cas", "get", folder, "--output", text(&farm.folder().join("message"))]).await;
    assert!(message.code == 0 && message.stderr.contains("Directory message"), "{}", message.stderr);
    let missing = format!("{}/5", "0".repeat(64));
    let missing = cli.run(&["cas", "get", &missing, "--output", text(&farm.folder().join("none"))]).await;
    assert!(missing.code == 1 && missing.stderr.contains("the store has no blob"), "{}", missing.stderr);
}

#[tokio::test]
async fn exec_says_what_was_not_made_and_what_was_cached() {
    let farm = farm().await;
    let cli = Cli { farm: &farm };
    let folder = farm.folder().join("work");
    fs::create_dir(&folder).unwrap();
    let dir = text(&folder);
    let command = ["sh", "-c", "sleep 1; mkdir out empty; echo a > out/a.txt"];
    let mut args = vec!["exec", "--dir", dir, "--progress", "always"];
    args.extend(["-o", "out/", "-o", "empty", "-o", "none.o", "-o", "out/*.log", "--"]);
    args.extend(command);
    let first = cli.run(&args).await;
    assert_eq!(first.code, 0, "{}", first.stderr);
    for missing in ["none.o", "out/*.log"] {
        let warning = format!("warning: the command created no output {missing:?}");
        assert!(first.stderr.contains(&warning), "{}", first.stderr);
    }
    assert_eq!(first.stderr.matches("warning: ").count(), 2, "{}", first.stderr);
    assert!(first.stderr.contains("running on executor-"), "{}", first.stderr);
    assert!(!first.stderr.contains("cached"), "{}", first.stderr);
    assert_eq!(fs::read(folder.join("out/a.txt")).unwrap(), b"a\n");

    args.insert(1, "--require-outputs");
    let second = cli.run(&args).await;
    assert_eq!(second.code, 1, "{}", second.stderr);
    assert!(second.stderr.contains("cached: "), "{}", second.stderr);

    let own = cli.run(&["exec", "--dir", dir, "--exit-code", "command", "--", "sh", "-c", "exit 77"]).await;
    assert!(own.code == 77 && own.stderr.contains("exit code 77"), "{} {}", own.code, own.stderr);
    let quiet = cli.run(&["exec", "--dir", dir, "--", "sh", "-c", "exit 77"]).await;
    assert!(quiet.code == 1 && !quiet.stderr.contains("cached"), "{} {}", quiet.code, quiet.stderr);
}

#[tokio::test]
async fn exec_says_that_it_speaks_to_the_wrong_port() {
    let farm = Farm::builder().only(&["gateway"]).start().await;
    let wrong = farm.cli(&["exec", "--grpc", &farm.http_url(), "--", "true"]).await;
    assert_eq!(wrong.code, 4, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("does not speak gRPC"), "{}", wrong.stderr);
}

#[tokio::test]
async fn exec_finds_the_gateway_by_the_bus() {
    let farm = farm().await;
    let nats = farm.servers.nats_url();
    let mut exec = bare_command(&["exec", "--nats", &nats, "--", "echo", "hello"]);
    exec.current_dir(farm.folder());
    let ran = Output::of(exec).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "hello\n"), "{}", ran.stderr);
    let mut exec = bare_command(&["exec", "--nats", &nats, "--", "echo hello | cat"]);
    exec.current_dir(farm.folder());
    let hint = Output::of(exec).await;
    assert_eq!(hint.code, 1, "{}", hint.stderr);
    assert!(hint.stderr.contains("sh -c"), "{}", hint.stderr);
}

#[tokio::test]
async fn exec_says_that_all_executors_drain() {
    let farm = farm().await;
    let executors = farm.cli(&["executors", "--json"]).await;
    let executors: serde_json::Value = serde_json::from_str(&executors.stdout).unwrap();
    let name = executors[0]["executor"].as_str().unwrap();
    let unknown = farm.cli(&["drain", "nosuch"]).await;
    assert!(
        unknown.code == 2 && unknown.stderr.contains("no worker or executor nosuch"),
        "{}",
        unknown.stderr
    );
    let drained = farm.cli(&["drain", name]).await;
    assert_eq!(drained.code, 0, "{}", drained.stderr);
    let began = std::time::Instant::now();
    loop {
        let dir = farm.folder().display().to_string();
        let mut exec =
            farm.command(&["exec", "--grpc", &farm.grpc_url(), "--dir", &dir, "--", "date", "+%N"]);
        exec.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).kill_on_drop(true);
        let child = exec.spawn().unwrap();
        let waited = tokio::time::timeout(std::time::Duration::from_secs(3), read_line(child)).await;
        if waited.is_ok_and(|line| line.contains("are draining")) {
            return;
        }
        assert!(began.elapsed() < 2 * SOON, "the draining is not reported");
    }
}

/// Returns the first line with the reason for waiting.
async fn read_line(mut child: tokio::process::Child) -> String {
    use tokio::io::AsyncBufReadExt as _;
    let mut lines = tokio::io::BufReader::new(child.stderr.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains("drain") || line.contains("assigned to") {
            return line;
        }
    }
    String::new()
}

/// Puts a result into the cache for the action that `forebay exec` has just run.
async fn forge(remote: &Remote, report: &str, result: ActionResult) {
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    let action = report["action"].as_str().unwrap().parse().unwrap();
    remote.update_action(&action, result).await.unwrap();
}

#[tokio::test]
async fn a_result_writes_below_its_folder_only_and_through_no_link() {
    let farm = farm().await;
    let (cli, remote) = (Cli { farm: &farm }, acting::remote(&farm).await);
    let [work, outside] = ["above/work", "outside"].map(|name| farm.folder().join(name));
    for folder in [&work, &outside] {
        fs::create_dir_all(folder).unwrap();
    }
    let evil = Some(to_proto(&acting::put(&remote, "evil").await));
    let file = |path: &str| OutputFile { path: path.into(), digest: evil.clone(), ..OutputFile::default() };
    let link = |path: &str, target: &str| OutputSymlink {
        path: path.into(),
        target: target.into(),
        ..OutputSymlink::default()
    };
    let folder = Directory {
        files: vec![FileNode { name: "f".into(), digest: evil.clone(), ..FileNode::default() }],
        ..Directory::default()
    };
    let tree = Tree { root: Some(folder.clone()), children: vec![] };
    let tree = Some(to_proto(&acting::put(&remote, tree.encode_to_vec()).await));
    let to_outside = outside.display().to_string();
    let directory = OutputDirectory { path: "out/a".into(), tree_digest: tree, ..OutputDirectory::default() };
    let results = [
        ActionResult { output_files: vec![file("out/../../pwned")], ..ActionResult::default() },
        ActionResult { output_symlinks: vec![link("out/../../pwned", "x")], ..ActionResult::default() },
        ActionResult {
            output_symlinks: vec![link("out/a", &to_outside)],
            output_files: vec![file("out/a/f")],
            ..ActionResult::default()
        },
        ActionResult {
            output_symlinks: vec![link("out/a", "../../../outside")],
            output_directories: vec![directory.clone()],
            ..ActionResult::default()
        },
    ];
    for (number, result) in results.into_iter().enumerate() {
        let args =
            ["exec", "--dir", text(&work), "--output", "out/", "--json", "--", "echo", &number.to_string()];
        let first = cli.run(&args).await;
        assert_eq!(first.code, 0, "{}", first.stderr);
        forge(&remote, &first.stdout, result).await;
        let second = cli.run(&args).await;
        assert_eq!(second.code, 1, "{number}: {} {}", second.stdout, second.stderr);
        assert!(second.stderr.contains("cannot "), "{number}: {}", second.stderr);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{number}");
        assert!(fs::symlink_metadata(farm.folder().join("above/pwned")).is_err(), "{number}");
        let _ = fs::remove_dir_all(work.join("out"));
    }
    // A link of an earlier result, or of an earlier download, is not followed either.
    fs::create_dir(work.join("out")).unwrap();
    std::os::unix::fs::symlink(&outside, work.join("out/a")).unwrap();
    let script = "mkdir -p out/a; echo x > out/a/f";
    let args = ["exec", "--dir", text(&work), "--output", "out/", "--", "sh", "-c", script];
    let refused = cli.run(&args).await;
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    let root = Directory {
        directories: vec![DirectoryNode {
            name: "a".into(),
            digest: Some(to_proto(&acting::put(&remote, folder.encode_to_vec()).await)),
        }],
        ..Directory::default()
    };
    let root = acting::put(&remote, root.encode_to_vec()).await.to_string();
    let got = cli.run(&["cas", "get", &root, "--output", &format!("{}/", work.join("out").display())]).await;
    assert_eq!(got.code, 1, "{}", got.stderr);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[tokio::test]
async fn outputs_of_a_build_are_written_through_no_link() {
    let farm = Farm::all().await;
    let [to, outside] = ["to", "outside"].map(|name| farm.folder().join(name));
    for folder in [&to, &outside] {
        fs::create_dir(folder).unwrap();
    }
    let request = BuildRequest { outputs: vec!["a/f".into()], ..script("mkdir a; echo x > a/f") };
    let build = farm.submit("g", request).await;
    ended_as(&farm, &build, Outcome::Succeeded).await;
    let id = build.id.to_string();
    let get = ["get", &id, "--output", "**", text(&to)];
    let got = farm.cli(&get).await;
    assert_eq!((got.code, fs::read(to.join("a/f")).unwrap().as_slice()), (0, &b"x\n"[..]), "{}", got.stderr);
    fs::remove_dir_all(to.join("a")).unwrap();
    std::os::unix::fs::symlink(&outside, to.join("a")).unwrap();
    let got = farm.cli(&get).await;
    assert_eq!(got.code, 1, "{}", got.stderr);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}
