//! Checks 123–128: how the command is run.

use reapi::execution::command::EnvironmentVariable;
use tonic::Code;

use crate::{
    check::{Check, check},
    context::Cx,
    job::{Inputs, Job},
    names::fresh_text,
    stop::{Judged, has_code, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(
        123,
        H,
        Must,
        Execution,
        "the working directory must be among the inputs; if empty, it is the root",
        working_directory
    ),
    check!(
        124,
        H,
        Must,
        Execution,
        "programs are found by path, from the working directory, or in PATH",
        program
    ),
    check!(
        125,
        H,
        Must,
        Execution,
        "the environment is the command's, without the worker's own",
        environment
    ),
    check!(126, H, Must, Execution, "parents of outputs exist, output directories do not", parents),
    check!(
        127,
        H,
        Must,
        Execution,
        "output_paths replaces the older lists, and kinds are found after the run",
        output_paths
    ),
    check!(128, H, Must, Execution, "missing outputs are left out", absent_outputs),
];

async fn working_directory(cx: &Cx) -> Judged {
    let what = "an absent working directory";
    let status = cx.refusal(&Job::program(["/bin/true"]).within("not/there"), what).await?;
    has_code(Some(&status), &[Code::FailedPrecondition, Code::InvalidArgument], what)?;
    let inputs = Inputs::default().file("top", fresh_text()).file("w/x/inner", fresh_text());
    for (directory, script) in
        [("", "test -f top"), ("w", "test -f x/inner"), ("w/x", "test -f inner && test -f ../../top")]
    {
        let job = Job::sh(script).inputs(inputs.clone()).within(directory);
        let run = cx.run(&job).await?;
        need!(run.exited(0).is_ok(), "in the working directory {directory:?}, {script:?} fails");
    }
    pass()
}

async fn program(cx: &Cx) -> Judged {
    let tool = "#!/bin/sh\necho ran from $0 in $(basename \"$(pwd)\")\n";
    let inputs =
        Inputs::default().program("top.sh", tool).program("w/tool.sh", tool).program("w/bin/deep.sh", tool);
    let text = fresh_text();
    let cases = [
        ("./tool.sh", "w", true),
        ("../top.sh", "w", true),
        ("bin/deep.sh", "w", true),
        // Relative to the input root, the program would exist.
        ("w/tool.sh", "w", false),
        // Only a search in PATH would find it.
        ("tool.sh", "w", false),
    ];
    for (program, directory, runs) in cases {
        let job = Job::program([program, &text]).inputs(inputs.clone()).within(directory);
        let prepared = cx.prepare(&job);
        cx.client.put_all(&prepared.all()).await?;
        let is_run = match cx.execute(&prepared, &job).await {
            Ok(running) => running.finish().await?.exited(0).is_ok(),
            Err(_) => false,
        };
        let verb = if runs { "does not run" } else { "runs" };
        need!(is_run == runs, "the program {program:?} in the working directory {directory:?} {verb}");
    }
    let output = cx.output(&Job::program(["/bin/echo", &text])).await?;
    need!(output.trim() == text, "an absolute program printed {output:?}");
    let output = cx.output(&Job::program(["echo", &text])).await?;
    need!(output.trim() == text, "a program of PATH printed {output:?}");
    pass()
}

/// Variables that a shell or a sandbox sets itself and that leak nothing about the worker.
const HARMLESS: [&str; 17] = [
    "PATH",
    "HOME",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "TMPDIR",
    "TMP",
    "TEMP",
    "USER",
    "LOGNAME",
    "LANG",
    "TZ",
    "SHELL",
    "HOSTNAME",
    "TERM",
    "container",
];

async fn environment(cx: &Cx) -> Judged {
    let mut job = Job::program(["/usr/bin/env"]);
    let text = fresh_text();
    for (name, value) in
        [("CONFORM_VALUE", text.as_str()), ("CONFORM_EMPTY", ""), ("CONFORM_ODD", "a b=c'\"$x")]
    {
        let variable = EnvironmentVariable { name: name.into(), value: value.into() };
        job.command.environment_variables.push(variable);
    }
    let output = cx.output(&job).await?;
    for line in [
        format!("CONFORM_VALUE={text}"),
        "CONFORM_EMPTY=".into(),
        "CONFORM_ODD=a b=c'\"$x".into(),
        "PATH=/usr/bin:/bin".into(),
    ] {
        need!(output.lines().any(|found| found == line), "the environment lacks {line:?}");
    }
    let leaked: Vec<&str> = output
        .lines()
        .filter_map(|line| line.split_once('=').map(|(name, _)| name))
        .filter(|name| !name.starts_with("CONFORM_") && !name.starts_with("LC_") && !HARMLESS.contains(name))
        .collect();
    need!(leaked.is_empty(), "the environment holds {} that the command did not set", leaked.join(", "));
    pass()
}

async fn parents(cx: &Cx) -> Judged {
    let inputs = Inputs::default().file("w/in", fresh_text());
    let script = "test -d a/b && test ! -e a/b/out && test -d c && test ! -e c/tree && echo x > a/b/out";
    let new = Job::sh(script).outputs(["a/b/out", "c/tree"]).inputs(inputs.clone()).within("w");
    let script = "test -d d/e && test ! -e d/e/out && test -d f/g && test ! -e f/g/tree && echo x > d/e/out";
    let old =
        Job::sh(script).output_files(["d/e/out"]).output_directories(["f/g/tree"]).inputs(inputs).within("w");
    for (what, job, path) in
        [("output_paths", new, "a/b/out"), ("output_files and output_directories", old, "d/e/out")]
    {
        let run = cx.run(&job).await?;
        let (code, _) = run.status();
        let result = run.result()?;
        need!(
            code == Code::Ok && result.exit_code == 0,
            "with {what}, the parents of outputs do not exist, or the outputs do"
        );
        need!(
            result.output_files.iter().any(|file| file.path == path),
            "with {what}, the output {path} is missing"
        );
    }
    pass()
}

async fn output_paths(cx: &Cx) -> Judged {
    let script = "echo 1 > file; mkdir dir; echo 2 > dir/in; ln -s file link; echo 3 > old; mkdir olddir; echo 4 > olddir/in";
    let job =
        Job::sh(script).outputs(["file", "dir", "link"]).output_files(["old"]).output_directories(["olddir"]);
    let run = cx.ok(&job).await?;
    let result = run.result()?;
    let files: Vec<&str> = result.output_files.iter().map(|file| &*file.path).collect();
    let directories: Vec<&str> = result.output_directories.iter().map(|directory| &*directory.path).collect();
    need!(files == ["file"], "the output files are {files:?}");
    need!(directories == ["dir"], "the output directories are {directories:?}");
    need!(result.output_symlinks.iter().any(|link| link.path == "link"), "the output symlink is missing");
    pass()
}

async fn absent_outputs(cx: &Cx) -> Judged {
    for code in [0, 3] {
        let job = Job::sh(&format!("echo 1 > here; exit {code}")).outputs(["here", "not-here", "nor/here"]);
        let run = cx.run(&job).await?;
        let result = run.exited(code)?;
        let files: Vec<&str> = result.output_files.iter().map(|file| &*file.path).collect();
        need!(files == ["here"], "with exit code {code}, the output files are {files:?}");
        need!(result.output_directories.is_empty(), "an absent output became a directory");
        let job =
            Job::sh(&format!("exit {code}")).output_files(["not-here"]).output_directories(["nor-here"]);
        let run = cx.run(&job).await?;
        let result = run.exited(code)?;
        need!(
            result.output_files.is_empty() && result.output_directories.is_empty(),
            "absent outputs are named"
        );
    }
    pass()
}
