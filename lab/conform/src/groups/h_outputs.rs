//! Checks 129–133, 139, 143 and 144: output files and symlinks.

#![expect(deprecated, reason = "clients of older versions use these fields")]

use reapi::execution::{ActionResult, symlink_absolute_path_strategy::Value as Strategy};
use tonic::Code;

use crate::{
    check::{Check, check},
    context::Cx,
    job::{Inputs, Job},
    names::fresh_text,
    stop::{Judged, Stop, has_code, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(129, H, Must, Execution, "an output of the wrong kind is FAILED_PRECONDITION", wrong_kind),
    check!(130, H, Must, Execution, "output symlinks are reported as they are", symlinks),
    check!(131, H, Must, Execution, "absolute output symlinks are treated as announced", absolute_symlink),
    check!(132, H, Must, Execution, "a dangling output symlink is a symlink", dangling_symlink),
    check!(133, H, Must, Execution, "executable bits are kept", executable),
    check!(139, H, Must, Execution, "paths in results are relative to the working directory", paths),
    check!(143, H, Must, Execution, "all outputs are stored before done", stored_first),
    check!(144, H, Must, Execution, "large output is stored and never inlined", large_output),
];

async fn wrong_kind(cx: &Cx) -> Judged {
    let cases = [
        ("a directory in output_files", Job::sh("mkdir out").output_files(["out"])),
        ("a file in output_directories", Job::sh("echo > out").output_directories(["out"])),
        ("a symlink to a directory in output_files", Job::sh("mkdir d; ln -s d out").output_files(["out"])),
        (
            "a symlink to a file in output_directories",
            Job::sh("echo > f; ln -s f out").output_directories(["out"]),
        ),
    ];
    for (what, job) in cases {
        has_code(Some(&cx.refusal(&job, what).await?), &[Code::FailedPrecondition], what)?;
    }
    pass()
}

/// Returns the target of an output symlink, if the path is one.
fn target<'a>(result: &'a ActionResult, path: &str) -> Option<&'a str> {
    result.output_symlinks.iter().find(|link| link.path == path).map(|link| &*link.target)
}

async fn symlinks(cx: &Cx) -> Judged {
    let script =
        "echo > file; mkdir dir; ln -s file to-file; ln -s ./dir/ to-dir; mkdir sub; ln -s ../file sub/up";
    let run = cx.ok(&Job::sh(script).outputs(["to-file", "to-dir", "sub/up"])).await?;
    let result = run.result()?;
    for (path, wanted) in [("to-file", "file"), ("to-dir", "./dir/"), ("sub/up", "../file")] {
        let found = target(result, path);
        need!(found == Some(wanted), "the symlink {path} to {wanted} is reported as {found:?}");
    }
    need!(
        result.output_files.is_empty() && result.output_directories.is_empty(),
        "symlinks are reported as files or directories as well"
    );
    let job = Job::sh("echo > file; mkdir dir; ln -s file f; ln -s dir d")
        .output_files(["f"])
        .output_directories(["d"]);
    let run = cx.ok(&job).await?;
    let result = run.result()?;
    let any = |path: &str| {
        (result.output_file_symlinks.iter())
            .chain(&result.output_directory_symlinks)
            .chain(&result.output_symlinks)
            .any(|link| link.path == path)
    };
    need!(any("f") && any("d"), "symlinks under output_files and output_directories are not reported");
    pass()
}

async fn absolute_symlink(cx: &Cx) -> Judged {
    let strategy = cx.symlink_strategy();
    let job = Job::sh("ln -s /etc/hostname out").outputs(["out"]);
    let within = Job::sh("mkdir out; ln -s /etc/hostname out/link").outputs(["out"]);
    match strategy {
        Strategy::Disallowed => {
            let precondition = &[Code::FailedPrecondition];
            let what = "an absolute output symlink";
            has_code(Some(&cx.refusal(&job, what).await?), precondition, what)?;
            let what = "an absolute symlink in an output directory";
            has_code(Some(&cx.refusal(&within, what).await?), precondition, what)?;
        }
        Strategy::Allowed => {
            let run = cx.ok(&job).await?;
            let found = target(run.result()?, "out");
            need!(found == Some("/etc/hostname"), "an absolute output symlink is reported as {found:?}");
            cx.ok(&within).await?;
        }
        Strategy::Unknown => {
            return Err(Stop::Fail(
                "symlink_absolute_path_strategy is UNKNOWN, so clients cannot decide".into(),
            ));
        }
    }
    pass()
}

async fn dangling_symlink(cx: &Cx) -> Judged {
    let run = cx.ok(&Job::sh("ln -s not/there out; ln -s loop loop").outputs(["out", "loop"])).await?;
    for (path, wanted) in [("out", "not/there"), ("loop", "loop")] {
        let found = target(run.result()?, path);
        need!(found == Some(wanted), "a dangling symlink to {wanted} is reported as {found:?}");
    }
    pass()
}

async fn executable(cx: &Cx) -> Judged {
    let inputs = Inputs::default().program("tool", &fresh_text()).file("data", fresh_text());
    let script = "test -x tool && test ! -x data && echo 1 > plain && echo 2 > program && chmod +x program \
                  && mkdir dir && cp plain program dir";
    let run = cx.ok(&Job::sh(script).inputs(inputs).outputs(["plain", "program", "dir"])).await?;
    let result = run.result()?;
    for file in &result.output_files {
        need!(
            file.is_executable == (file.path == "program"),
            "the output {} has is_executable = {}",
            file.path,
            file.is_executable
        );
    }
    need!(result.output_files.len() == 2, "{} of two output files are present", result.output_files.len());
    let tree = result.output_directories.first().and_then(|directory| directory.tree_digest.clone());
    let tree: reapi::execution::Tree = cx.client.read_message(&tree.unwrap_or_default()).await?;
    for file in tree.root.iter().flat_map(|root| &root.files) {
        need!(
            file.is_executable == (file.name == "program"),
            "{} in an output directory has is_executable = {}",
            file.name,
            file.is_executable
        );
    }
    // The same content with and without the executable bit, as inputs side by side.
    let text = fresh_text();
    let inputs = Inputs::default().program("a", &text).file("b", text.clone()).program("c", &text);
    cx.ok(&Job::sh("test -x a && test ! -x b && test -x c").inputs(inputs)).await?;
    pass()
}

async fn paths(cx: &Cx) -> Judged {
    let inputs = Inputs::default().file("w/in", fresh_text());
    let script = "mkdir -p o/d; echo 1 > o/x; echo 2 > o/d/y; ln -s x o/l; echo 3 > ../up";
    let job = Job::sh(script).inputs(inputs).within("w").outputs(["o/x", "o/d", "o/l"]);
    let run = cx.ok(&job).await?;
    let result = run.result()?;
    let mut found: Vec<&str> = (result.output_files.iter().map(|file| &*file.path))
        .chain(result.output_directories.iter().map(|directory| &*directory.path))
        .chain(result.output_symlinks.iter().map(|link| &*link.path))
        .collect();
    found.sort_unstable();
    need!(found == ["o/d", "o/l", "o/x"], "the paths are {found:?}, expected o/d, o/l and o/x");
    pass()
}

async fn stored_first(cx: &Cx) -> Judged {
    let text = fresh_text();
    let script = format!(
        "for n in 1 2 3 4 5 6 7 8; do echo {text} $n > f$n; done; mkdir d; head -c 2000000 /dev/urandom > d/big; \
         echo out {text}; echo err {text} >&2"
    );
    let mut job = Job::sh(&script).outputs(["f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "d"]);
    job.inline = false;
    let run = cx.ok(&job).await?;
    let result = run.result()?;
    let directory = result.output_directories.first().and_then(|directory| directory.tree_digest.clone());
    let mut all: Vec<_> = result.output_files.iter().filter_map(|file| file.digest.clone()).collect();
    need!(all.len() == 8, "{} of eight output files have a digest", all.len());
    all.extend(result.stdout_digest.clone());
    all.extend(result.stderr_digest.clone());
    let tree: reapi::execution::Tree = cx.client.read_message(&directory.clone().unwrap_or_default()).await?;
    all.extend(directory);
    all.extend(tree.root.iter().flat_map(|root| &root.files).filter_map(|file| file.digest.clone()));
    let missing = cx.client.missing(all.clone()).await?;
    need!(missing.is_empty(), "{} outputs are missing when the action is done", missing.len());
    for digest in &all {
        let content = cx.client.read(digest).await?;
        need!(cx.client.digest(&content) == *digest, "an output does not have its digest");
    }
    pass()
}

async fn large_output(cx: &Cx) -> Judged {
    let script =
        "i=0; while [ $i -lt 80 ]; do head -c 65536 /dev/zero | tr '\\0' x; i=$((i+1)); done; echo small >&2";
    let run = cx.ok(&Job::sh(script)).await?;
    let result = run.result()?;
    need!(result.stdout_raw.len() < 4 << 20, "{} bytes of output were inlined", result.stdout_raw.len());
    let stdout = cx.stdout(result).await?;
    need!(
        stdout.len() == 80 * 65_536 && stdout.bytes().all(|byte| byte == b'x'),
        "{} bytes of 5 MiB of output are present",
        stdout.len()
    );
    need!(cx.stderr(result).await? == "small\n", "the standard error beside large output is lost");
    let mut job = Job::sh(&format!("echo {}", fresh_text()));
    job.inline = false;
    let run = cx.ok(&job).await?;
    let result = run.result()?;
    match &result.stdout_digest {
        Some(digest) => {
            cx.client.read(digest).await?;
        }
        None => need!(!result.stdout_raw.is_empty(), "output that is not inlined is not stored either"),
    }
    pass()
}
