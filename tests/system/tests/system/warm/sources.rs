//! Contents of a reused workspace: exactly the requested sources, and the outputs of earlier builds.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use farm::Farm;
use model::{BuildRequest, Context, WorkspaceKind};

use super::{one_workspace, run, warm_in};
use crate::check::script;

use WorkspaceKind::{Exact, New, Prefix};

/// Creates `out/NAME` from each `src/NAME`, and records that in a file outside.
const MAKEFILE: &str = "names := $(notdir $(wildcard src/*))
all: $(addprefix out/,$(names))
out/%: src/% | out
\t@cp $< $@
\t@echo $@ >> $(LOG)
out:
\t@mkdir out
";

/// A farm, the commands of its builds, and their outputs.
struct Place {
    farm: Farm,
    source: PathBuf,
    log: PathBuf,
}

impl Place {
    async fn new() -> Self {
        let farm = one_workspace().await;
        let place = Self { source: farm.folder().join("source"), log: farm.folder().join("made"), farm };
        fs::create_dir_all(place.source.join("src")).unwrap();
        place.put("Makefile", MAKEFILE);
        place.put("src/a", "a");
        place.put("src/b", "b");
        place
    }

    fn put(&self, path: &str, text: &str) {
        fs::write(self.source.join(path), text).unwrap();
    }

    fn sh(&self, text: &str) -> String {
        let output = Command::new("/bin/sh").args(["-ec", text]).current_dir(&self.source).output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn make(&self, context: &Context) -> BuildRequest {
        let log = format!("LOG={}", self.log.display());
        warm_in(context, &["make", "all", &log])
    }

    /// Runs `make`; returns how its workspace was chosen, and the files that were built.
    async fn made(&self, context: &Context) -> (Option<WorkspaceKind>, Vec<String>) {
        let _ = fs::remove_file(&self.log);
        let (kind, _) = run(&self.farm, self.make(context)).await;
        let mut made: Vec<String> =
            fs::read_to_string(&self.log).unwrap_or_default().lines().map(str::to_owned).collect();
        made.sort();
        (kind, made)
    }

    /// Runs a script in the workspace in which `make` runs next.
    async fn look(&self, context: &Context, text: &str) {
        let tool = model::ToolCall::of_command(&self.make(context).command);
        let request = BuildRequest { tool: Some(tool), ..warm_in(context, &["/bin/sh", "-ec", text]) };
        assert_eq!(run(&self.farm, request).await.0, Some(Exact));
    }
}

fn made(kind: WorkspaceKind, names: &[&str]) -> (Option<WorkspaceKind>, Vec<String>) {
    (Some(kind), names.iter().map(|name| format!("out/{name}")).collect())
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn of_a_repository_only_what_changed_is_built() {
    let place = Place::new().await;
    place.sh(
        "git init -q -b main . && git config user.email t@example.com && git config user.name t
         git add . && git commit -qm first && git checkout -qb dev
         echo B > src/b && echo c > src/c && git rm -q src/a && git add . && git commit -qm second && git checkout -q main",
    );
    let url = text(&place.source);
    let at = |revision: &str, patch: Option<&str>| Context::Git {
        url: url.clone(),
        revision: revision.into(),
        patch: patch.map(str::to_owned),
    };
    let main = at("main", None);
    assert_eq!(place.made(&main).await, made(New, &["a", "b"]));
    assert_eq!(place.made(&main).await, made(Exact, &[]));
    // Another branch changes one file, adds one and removes one; its output stays.
    assert_eq!(place.made(&at("dev", None)).await, made(Prefix, &["b", "c"]));
    place
        .look(
            &at("dev", None),
            "test ! -e src/a && test -e out/a && git status --porcelain | grep -v out/ && exit 1; true",
        )
        .await;
    assert_eq!(place.made(&main).await, made(Prefix, &["a", "b"]));
    // A patch that adds a file and changes another: built once, and removed completely.
    let patch = "diff --git a/src/new b/src/new\nnew file mode 100644\n--- /dev/null\n+++ b/src/new\n@@ -0,0 +1 @@\n+new\n\
        diff --git a/src/a b/src/a\n--- a/src/a\n+++ b/src/a\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+patched\n";
    let patched = at("main", Some(patch));
    assert_eq!(place.made(&patched).await, made(Exact, &["a", "new"]));
    assert_eq!(place.made(&patched).await, made(Exact, &[]));
    assert_eq!(place.made(&main).await, made(Exact, &["a"]));
    place.look(&main, "test ! -e src/new && test \"$(cat src/a)\" = a && test \"$(git rev-parse HEAD)\" = \"$(git rev-parse refs/forebay/wanted)\"")
        .await;
    // Changes of a build to its sources are undone, and the lock of a killed git does not block.
    place.look(&main, "echo spoilt > src/a; rm src/b; echo > .git/index.lock").await;
    assert_eq!(place.made(&main).await, made(Exact, &["a", "b"]));
    // The build's repository is recreated, whatever its state; files outside any revision stay.
    place.look(&main, "rm -rf .git; echo more > src/more").await;
    assert_eq!(place.made(&main).await, made(Exact, &["more"]));
    place.look(&main, "git log -1 --format=%s | grep -x first && git diff --quiet HEAD && rm src/more").await;
    // An abbreviated commit needs the whole history.
    let first = place.sh("git rev-parse --short=10 main");
    assert_eq!(place.made(&at(&first, None)).await.1, Vec::<String>::new());
}

#[tokio::test]
async fn of_a_folder_only_what_changed_is_built() {
    let place = Place::new().await;
    let context = Context::Directory { path: text(&place.source), ignore_files: false };
    assert_eq!(place.made(&context).await, made(New, &["a", "b"]));
    assert_eq!(place.made(&context).await, made(Exact, &[]));
    place.put("src/b", "B");
    place.put("src/c", "c");
    // Older than the outputs: it still counts as new.
    place.sh("touch -d '1 hour ago' src/b src/c; touch src/a; mkdir empty");
    assert_eq!(place.made(&context).await, made(Exact, &["b", "c"]));
    place.look(&context, "test -d empty; test \"$(cat out/b)\" = B").await;
    place.sh("rm -r src/c empty");
    assert_eq!(place.made(&context).await, made(Exact, &[]));
    place
        .look(&context, "test ! -e src/c; test ! -e empty; test -e out/c; echo spoilt > src/a; rm src/b")
        .await;
    assert_eq!(place.made(&context).await, made(Exact, &["a", "b"]));
    // A fresh build sees only the source.
    let fresh = BuildRequest { context, ..script("test ! -e out && test -z \"$(ls -A $TMPDIR)\"") };
    assert_eq!(run(&place.farm, fresh).await.0, None);
}

#[tokio::test]
async fn of_an_archive_only_what_changed_is_built() {
    let place = Place::new().await;
    let archive = place.farm.folder().join("source.tar");
    let context = Context::Archive { location: text(&archive), digest: None };
    // All modification times are equal in all archives.
    let pack = || drop(place.sh(&format!("tar --mtime=@1000000000 -cf {} .", archive.display())));
    pack();
    assert_eq!(place.made(&context).await, made(New, &["a", "b"]));
    assert_eq!(place.made(&context).await, made(Exact, &[]));
    place.put("src/b", "B");
    place.sh("rm src/a");
    pack();
    assert_eq!(place.made(&context).await, made(Exact, &["b"]));
    place.look(&context, "test ! -e src/a; test -e out/a; test \"$(cat src/b)\" = B").await;
}
