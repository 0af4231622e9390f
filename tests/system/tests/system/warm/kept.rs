//! A build whose content is unavailable leaves the workspace unchanged for the next one, including its tool server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use model::{BuildKey, BuildRequest, Context, Digest, Outcome, ToolCall, WorkspaceKeys, WorkspaceKind};

use super::{by_hand::Hand, warm};
use crate::check::processes_of;

use WorkspaceKind::{Exact, New, Prefix};

/// A script that leaves a daemon, and a file.
const SERVE: &str =
    "test ! -e made; setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > pid; cp file made";
/// A script that needs both, and the original content.
const CALL: &str = "kill -0 $(cat pid) && test -e made && test \"$(cat file)\" = one";

/// A warm workspace, and its content.
struct Warm {
    hand: Hand,
    folder: PathBuf,
    content: Context,
    first: BuildKey,
    keys: WorkspaceKeys,
}

fn sh(folder: &Path, text: &str) {
    let status = Command::new("/bin/sh").args(["-ec", text]).current_dir(folder).status().unwrap();
    assert!(status.success(), "{text}");
}

fn request(content: &Context, text: &str) -> BuildRequest {
    let tool = ToolCall { command: "serve".into(), targets: vec!["t".into()], ..Default::default() };
    BuildRequest { tool: Some(tool), context: content.clone(), ..warm(text) }
}

impl Warm {
    /// Creates a workspace from a folder with one file; `content` returns the context of a build for it.
    async fn new(content: impl Fn(&Path) -> Context) -> Self {
        let hand = Hand::new().await;
        let folder = hand.farm.folder().join("source");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), "one\n").unwrap();
        let content = content(&folder);
        let first = hand.start(request(&content, SERVE), Some(New)).await;
        assert_eq!(hand.end(&first).await.result().unwrap().outcome, Outcome::Succeeded);
        let keys = hand.left().await.unwrap();
        Self { hand, folder, content, first, keys }
    }

    /// Runs a build whose content is unavailable, then one whose content is available and which
    /// finds everything in place.
    async fn outlives(&self, content: &Context, restore: impl Fn()) {
        let server = processes_of(self.first.id);
        assert_eq!(server.len(), 1);
        let kind = self.hand.run(request(content, "true"), Some(Exact), Outcome::Failed).await;
        assert!(matches!(kind, Some(Exact | Prefix)), "{kind:?} {content:?}");
        assert_eq!(self.hand.left().await.as_ref(), Some(&self.keys), "{content:?}");
        assert_eq!(processes_of(self.first.id), server, "{content:?}");
        restore();
        assert_eq!(self.hand.succeed(request(&self.content, CALL), Some(Exact)).await, Some(Exact));
    }

    /// Asserts that the workspace is recreated when remains of an earlier build are in the way.
    async fn is_made_anew(&self, spoil: &str, content: &Context) {
        self.hand.succeed(request(&self.content, spoil), Some(Exact)).await;
        let kind = self.hand.succeed(request(content, SERVE), Some(Exact)).await;
        assert!(matches!(kind, Some(Exact | Prefix)), "{kind:?}");
    }
}

fn path(folder: &Path) -> String {
    folder.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_repository_without_the_revision_or_out_of_reach() {
    let git = |folder: &Path, revision: &str, patch: Option<&str>| Context::Git {
        url: path(folder),
        revision: revision.into(),
        patch: patch.map(str::to_owned),
    };
    let warm = Warm::new(|folder| {
        sh(
            folder,
            "git init -q -b main . && git config user.email t@x && git config user.name t && git add . && git commit -qm x",
        );
        git(folder, "main", None)
    })
    .await;
    let at = |revision: &str, patch: Option<&str>| git(&warm.folder, revision, patch);
    warm.outlives(&at("nowhere", None), || {}).await;
    warm.outlives(&at("nowhere", Some("x")), || {}).await;
    warm.outlives(&at("main", Some("no patch at all\n")), || {}).await;
    let patch = |from: &str| {
        format!("diff --git a/file b/file\n--- a/file\n+++ b/file\n@@ -1 +1 @@\n-{from}\n+patched\n")
    };
    warm.outlives(&at("main", Some(&patch("other"))), || {}).await;
    let away = warm.folder.with_extension("away");
    fs::rename(&warm.folder, &away).unwrap();
    warm.outlives(&warm.content, || fs::rename(&away, &warm.folder).unwrap()).await;
    let main = at("main", None);
    // Damages the worker's own repository; the state of the build's repository must not matter.
    warm.is_made_anew("rm -rf ../own/git", &main).await;
    warm.is_made_anew("git --git-dir=../own/git update-ref -d refs/forebay/wanted", &main).await;
    warm.is_made_anew("find ../own/git/objects -type f -delete", &main).await;
    warm.is_made_anew("find ../own/git/objects -type f -delete", &at("main", Some(&patch("one")))).await;
}

#[tokio::test]
async fn an_archive_that_is_another_or_none() {
    let archive = |location: &Path, digest| Context::Archive { location: path(location), digest };
    let warm = Warm::new(|folder| {
        sh(folder, "tar -cf ../source.tar file");
        archive(&folder.with_extension("tar"), None)
    })
    .await;
    let file = warm.folder.with_extension("tar");
    warm.outlives(&archive(&file, Some(Digest::of(b"other"))), || {}).await;
    let good = fs::read(&file).unwrap();
    let restore = || fs::write(&file, &good).unwrap();
    fs::write(&file, "no archive").unwrap();
    warm.outlives(&warm.content, restore).await;
    fs::remove_file(&file).unwrap();
    warm.outlives(&warm.content, restore).await;
}

#[tokio::test]
async fn a_folder_that_is_gone() {
    let warm = Warm::new(|folder| Context::Directory { path: path(folder), ignore_files: false }).await;
    let away = warm.folder.with_extension("away");
    fs::rename(&warm.folder, &away).unwrap();
    warm.outlives(&warm.content, || fs::rename(&away, &warm.folder).unwrap()).await;
}
