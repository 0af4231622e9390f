//! The working folder of a test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use farm::{Guard, repository};
use tempfile::TempDir;

/// A folder, and the guard that ends all processes naming it. Dropping it removes both.
#[derive(Debug)]
pub struct Place {
    guard: Guard,
    folder: TempDir,
}

const BAZELRC: &str = "\
build --override_repository=rules_cc=SHIMS/rules_cc
build --override_repository=rules_java=SHIMS/rules_java
build --override_repository=remote_coverage_tools=SHIMS/remote_coverage_tools
build --symlink_prefix=/ --color=no --curses=no --show_progress_rate_limit=60 --nosandbox_debug
build --incompatible_strict_action_env
build --define=marker=600 --define=pace=0.1
";

impl Place {
    /// Creates an empty folder.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("forebay-e2e-").tempdir().expect("a temporary folder");
        Self { guard: Guard::start(folder.path()), folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Creates a folder inside this one.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(&path).expect("a folder can be made");
        path
    }

    /// Creates a Bazel workspace with the project's sources and the package `cases`.
    pub fn workspace(&self, project: &str) -> PathBuf {
        let folder = self.folder(project);
        let ours = repository().join("tests/e2e");
        run(Command::new(repository().join("infra/demo/fetch.sh")).arg(project).arg(&folder));
        copy(&ours.join("workspaces").join(project), &folder);
        copy(&ours.join("workspaces/cases"), &folder.join("cases"));
        // A blank in the path of the checkout would end the options.
        let shims = self.folder("shims");
        copy(&ours.join("shims"), &shims);
        let write = |name: &str, text: String| fs::write(folder.join(name), text).expect("a workspace file");
        write("WORKSPACE", format!("workspace(name = \"{project}\")\n"));
        write(".bazelrc", BAZELRC.replace("SHIMS", shims.to_str().expect("the repository's path is text")));
        folder
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies the contents of a folder into another.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    run(Command::new("cp").arg("-R").arg(from.join(".")).arg(to));
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
