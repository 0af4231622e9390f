//! The commands `forebay exec` and `forebay cas`.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use farm::{Farm, Output, Process, SOON};
use model::Outcome;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    acting::{self, Outside, processes_with},
    check::{ended_as, script, until},
};

async fn exec(farm: &Farm, args: &[&str]) -> Output {
    let url = farm.grpc_url();
    let all: Vec<&str> = ["exec", "--grpc", &url].into_iter().chain(args.iter().copied()).collect();
    farm.cli(&all).await
}

async fn cas(farm: &Farm, args: &[&str]) -> Output {
    let url = farm.grpc_url();
    let all: Vec<&str> = ["cas", "--grpc", &url].into_iter().chain(args.iter().copied()).collect();
    let output = farm.cli(&all).await;
    assert_eq!(output.code, 0, "{args:?}: {output:?}");
    output
}

fn folder(farm: &Farm, name: &str) -> String {
    let path = farm.folder().join(name);
    fs::create_dir(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn exec_runs_a_command_and_brings_back_what_it_made() {
    let farm = acting::builder().start().await;
    let dir = folder(&farm, "work");
    fs::write(Path::new(&dir).join("in.txt"), "content\n").unwrap();
    fs::write(Path::new(&dir).join("secret"), "").unwrap();
    let script = "[ ! -e secret ] && cat in.txt && mkdir -p out && cp in.txt out/a.txt && echo no > out/b.log; echo w >&2";
    let args = ["--dir", &dir, "--input", "*.txt", "--output", "out/*.txt", "--", "/bin/sh", "-c", script];
    let output = exec(&farm, &args).await;
    assert_eq!((output.code, output.stdout.as_str()), (0, "content\n"), "{output:?}");
    assert_eq!(output.stderr, "w\n");
    let out = Path::new(&dir).join("out");
    assert_eq!(fs::read_to_string(out.join("a.txt")).unwrap(), "content\n");
    assert!(!out.join("b.log").exists(), "it was not requested");

    fs::remove_dir_all(&out).unwrap();
    let json: Vec<&str> = ["--json"].into_iter().chain(args).collect();
    let output = exec(&farm, &json).await;
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(output.code, 0, "{output:?}");
    assert_eq!((&report["exit_code"], &report["cached"]), (&0.into(), &true.into()), "{report}");
    assert_eq!((&report["stdout"], &report["stderr"]), (&"content\n".into(), &"w\n".into()), "{report}");
    assert_eq!(report["outputs"], serde_json::json!(["out/a.txt"]), "{report}");
    assert!(report["executor"].as_str().unwrap().starts_with("executor-"), "{report}");
    assert_eq!(fs::read_to_string(out.join("a.txt")).unwrap(), "content\n");
    let again: Vec<&str> = ["--json", "--no-cache"].into_iter().chain(args).collect();
    let report: Value = serde_json::from_str(&exec(&farm, &again).await.stdout).unwrap();
    assert_eq!(report["cached"], false, "{report}");
}

#[tokio::test]
async fn exec_says_by_its_exit_code_how_it_went() {
    let farm = acting::builder().start().await;
    let output = exec(&farm, &["--", "/bin/sh", "-c", "echo bad >&2; exit 7"]).await;
    assert_eq!(output.code, 1, "{output:?}");
    assert!(output.stderr.starts_with("bad\n") && output.stderr.contains("exit code 7"), "{output:?}");
    let output = exec(&farm, &["--json", "--", "/bin/sh", "-c", "exit 7"]).await;
    let report: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((output.code, &report["exit_code"]), (1, &7.into()), "{output:?}");
    let output = exec(&farm, &["--timeout", "300ms", "--", "sleep", "100"]).await;
    assert!(output.code == 1 && output.stderr.contains("time limit"), "{output:?}");
    let output = exec(&farm, &["--", "no-such-program"]).await;
    assert!(output.code == 1 && output.stderr.contains("no-such-program"), "{output:?}");
    for (args, says) in [
        (&["--output", "../x", "--", "true"][..], "../x"),
        (&["--env", "A", "--", "true"], "NAME=VALUE"),
        (&["--output", "x", "--dir", "/no/such/folder", "--", "true"], "/no/such/folder"),
        (&["--dir", "/etc/passwd", "--", "true"], "not a folder"),
        (&[], "COMMAND"),
    ] {
        let output = exec(&farm, args).await;
        assert_eq!(output.code, 2, "{args:?}: {output:?}");
        assert!(output.stderr.contains(says) && output.stdout.is_empty(), "{args:?}: {output:?}");
    }
    let output = farm.cli(&["exec", "--grpc", "grpc://127.0.0.1:1", "--no-wait", "--", "true"]).await;
    assert_eq!(output.code, 4, "{output:?}");
}

#[tokio::test]
async fn exec_that_is_interrupted_cancels() {
    let farm = acting::builder().start().await;
    let outside = Outside::of(&farm);
    let (url, script) = (farm.grpc_url(), outside.script());
    let command = farm.command(&["exec", "--grpc", &url, "--", "/bin/sh", "-c", &script]);
    let log = farm.folder().join("logs/exec.log");
    let mut process = Process::start("exec", command, &log, farm.servers.guard());
    outside.begun(1).await;
    process.signal(Signal::SIGINT);
    let status = process.wait_exit(SOON).await;
    assert_eq!(status.code(), Some(3), "{status}: {}", process.log_tail());
    let go = format!("{}/go", outside.path().display());
    until("the action is dead", SOON, || processes_with(&go).is_empty()).await;
}

#[tokio::test]
async fn folders_go_into_the_store_and_come_back() {
    let farm = acting::builder().start().await;
    let dir = folder(&farm, "tree");
    let tree = Path::new(&dir);
    fs::create_dir_all(tree.join("sub/empty")).unwrap();
    fs::write(tree.join("sub/file"), "content").unwrap();
    fs::write(tree.join("program"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("sub/file", tree.join("link")).unwrap();
    let large = vec![7_u8; 5 << 20];
    fs::write(tree.join("large"), &large).unwrap();

    let put = cas(&farm, &["put", &dir]).await.stdout;
    let (digest, path) = put.trim().split_once("  ").unwrap();
    assert_eq!(path, dir);
    let listed = cas(&farm, &["ls", "--recursive", digest]).await.stdout;
    let lines: Vec<Vec<&str>> = listed.lines().skip(1).map(|it| it.split_whitespace().collect()).collect();
    let names: Vec<(&str, &str)> = lines.iter().map(|words| (words[0], words[1])).collect();
    let wanted = [
        ("file", "large"),
        ("link", "link"),
        ("program", "program"),
        ("folder", "sub"),
        ("folder", "sub/empty"),
        ("file", "sub/file"),
    ];
    assert_eq!(names, wanted, "{listed}");

    let copy = format!("{}/", farm.folder().join("copy").display());
    cas(&farm, &["get", digest, "--output", &copy]).await;
    let copy = Path::new(&copy);
    assert_eq!(fs::read_to_string(copy.join("sub/file")).unwrap(), "content");
    assert_eq!(fs::read(copy.join("large")).unwrap(), large);
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("sub/file"));
    assert_eq!(fs::metadata(copy.join("program")).unwrap().permissions().mode() & 0o111, 0o111);
    assert!(copy.join("sub/empty").is_dir());
    let again = cas(&farm, &["put", copy.to_str().unwrap().trim_end_matches('/')]).await.stdout;
    assert_eq!(again.split_whitespace().next(), Some(digest), "the copy is another folder");

    let file = tree.join("sub/file");
    let put = cas(&farm, &["--json", "put", file.to_str().unwrap()]).await.stdout;
    let put: Value = serde_json::from_str(&put).unwrap();
    let digest = put["digest"].as_str().unwrap();
    assert_eq!(cas(&farm, &["get", digest]).await.stdout, "content");
    let url = farm.grpc_url();
    let unknown = format!("{}/3", "0".repeat(64));
    let output = farm.cli(&["cas", "--grpc", &url, "get", &unknown]).await;
    assert!(output.code == 1 && output.stderr.contains(&unknown), "{output:?}");
}

#[tokio::test]
async fn a_build_may_run_actions() {
    let farm = Farm::builder().env("FOREBAY_SANDBOX", "none").with_actions().start().await;
    let forebay = farm::forebay_binary();
    let exec = format!("'{}' exec --grpc {}", forebay.display(), farm.grpc_url());
    let body = format!(
        "echo content > in && {exec} --input in --output out -- cp in out && cmp in out && ! {exec} -- false"
    );
    let key = farm.submit("g", script(&body)).await;
    ended_as(&farm, &key, Outcome::Succeeded).await;
    assert_eq!(acting::histories(&farm).await.len(), 2);
}
