//! `forebay bench`, `conform` and `sim` run the program `forebay-lab`.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use farm::{Output, bare_command, forebay_binary};
use tokio::process::Command;

/// A program called `forebay-lab` that says its place and its arguments and exits with 7.
fn write_lab(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let program = folder.join("forebay-lab");
    fs::write(&program, "#!/bin/sh\ndirname \"$0\"\nprintf '%s\\n' \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn the_lab_is_found_beside_forebay_and_in_the_path_and_missed_with_advice() {
    // In the folder of the binary, because a link to a file leads to no other file system.
    let folder = tempfile::tempdir_in(forebay_binary().parent().unwrap()).unwrap();
    let (own, elsewhere) = (folder.path().join("own"), folder.path().join("elsewhere"));
    fs::create_dir_all(&own).unwrap();
    fs::hard_link(forebay_binary(), own.join("forebay")).unwrap();
    let run = async |arguments: &[&str]| {
        let mut command = Command::new(own.join("forebay"));
        command.args(arguments).env("PATH", format!("{}:/usr/bin:/bin", elsewhere.display()));
        Output::of(command).await
    };
    let output = run(&["bench", "builds"]).await;
    assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{output:?}");
    assert!(output.stderr.contains("make lab") && output.stderr.lines().count() == 1, "{output:?}");

    let arguments = ["--json", "sim", "--wait", "1s", "run", "--policy", "n/a", "--", "-x y"];
    let said = |place: &Path| format!("{}\n{}\n", place.display(), arguments.join("\n"));
    write_lab(&elsewhere);
    let output = run(&arguments).await;
    assert_eq!((output.code, output.stdout), (7, said(&elsewhere)));
    write_lab(&own);
    let output = run(&arguments).await;
    assert_eq!((output.code, output.stdout), (7, said(&own)));
    let output = run(&["conform", "--help"]).await;
    assert_eq!((output.code, output.stdout), (7, format!("{}\nconform\n--help\n", own.display())));
}

#[tokio::test]
async fn the_commands_of_the_lab_are_listed_and_describe_themselves() {
    let listed = Output::of(bare_command(&["--help"])).await.stdout;
    for command in ["bench", "conform", "sim"] {
        assert!(listed.lines().any(|line| line.split_whitespace().next() == Some(command)), "{listed}");
        let output = Output::of(bare_command(&[command, "--help"])).await;
        assert_eq!(output.code, 0, "{output:?}");
        let usage = format!("Usage: forebay {command} ");
        assert!(output.stdout.contains(&usage) && output.stdout.contains('<'), "{output:?}");
    }
}
