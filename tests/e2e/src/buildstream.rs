//! The client `BuildStream`, whose actions expect that their input root is `/`.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use farm::{Output, tool};
use tokio::process::Command;

use crate::{
    Place, Rig,
    place::{copy, run},
};

/// Programs of busybox that the elements use, the whole system that they see.
const PROGRAMS: [&str; 14] = [
    "sh",
    "cat",
    "cp",
    "mkdir",
    "ls",
    "seq",
    "sort",
    "sha256sum",
    "awk",
    "env",
    "true",
    "install",
    "rm",
    "touch",
];

/// A `BuildStream` project with its own cache.
#[derive(Debug)]
pub struct BuildStream {
    program: PathBuf,
    project: PathBuf,
    folder: PathBuf,
    config: PathBuf,
}

impl BuildStream {
    /// Creates the project in `place` under its own name; `None` when `BuildStream` is not installed. Without a
    /// farm it builds locally.
    pub fn new(place: &Place, name: &str, rig: Option<&Rig>) -> Option<Self> {
        let (program, busybox) = (tool("bst"), tool("busybox-static"));
        if !(program.is_file() && busybox.is_file()) {
            return None;
        }
        let folder = place.folder(name);
        let project = folder.join("project");
        copy(&farm::repository().join("tests/e2e/buildstream"), &project);
        let base = project.join("files/base");
        fs::create_dir_all(base.join("bin")).expect("the base's folders");
        fs::create_dir_all(base.join("tmp")).expect("the base's folders");
        run(std::process::Command::new("cp").arg(busybox).arg(base.join("bin/busybox")));
        for program in PROGRAMS {
            symlink("busybox", base.join("bin").join(program)).expect("a link of busybox");
        }
        let remote = rig.map(|rig| {
            let url = rig.grpc().replace("grpc://", "http://");
            let services = ["execution-service", "storage-service", "action-cache-service"];
            let services = services.map(|service| format!("  {service}: {{url: \"{url}\"}}\n"));
            format!("remote-execution:\n{}", services.concat())
        });
        let remote = remote.unwrap_or_default();
        let cache = folder.join("cache");
        let config = format!("cachedir: {}\nscheduler: {{builders: 4}}\n{remote}", cache.display());
        let written = folder.join("buildstream.conf");
        fs::write(&written, config).expect("the configuration");
        Some(Self { program, project, folder, config: written })
    }

    /// Runs `bst ARGS` to its end.
    pub async fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(&self.config)
            .arg("--no-interactive")
            .args(args)
            .current_dir(&self.project);
        command.env("HOME", &self.folder);
        Output::of(command).await
    }

    /// Builds all elements and returns the output of the last one.
    pub async fn build(&self) -> (Output, String) {
        let output = self.run(&["build", "all.bst"]).await;
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        let folder = self.folder.join("checkout");
        let _ = fs::remove_dir_all(&folder);
        let target = folder.to_str().expect("the folder's name is text");
        let checkout =
            self.run(&["artifact", "checkout", "all.bst", "--deps", "none", "--directory", target]).await;
        assert_eq!(checkout.code, 0, "{}{}", checkout.stdout, checkout.stderr);
        let made = fs::read_to_string(folder.join("all/all.txt")).expect("the output of the build");
        (output, made)
    }

    /// Removes all local build results.
    pub fn forget(&self) {
        fs::remove_dir_all(self.folder.join("cache")).expect("the cache");
    }
}
