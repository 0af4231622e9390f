//! Fetches sources from git through a repository that no build writes to.
//!
//! The files that a build leaves in a warm workspace (its `.git` with configuration and hooks, its home folder,
//! attributes) must not influence the sources of the next build: sources are fetched into, and checked out from, a
//! repository that the worker owns beside the workspace, with settings that are rewritten each time. The build gets a
//! `.git` made from it.
//!
//! A file that a build changed is detected by size, times, inode and status change time, which no program can set
//! back; git compares the content of files that changed at the same time as its index.

mod address;
mod linked;
mod remote;
mod view;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use invariant::impossible;

pub(crate) use remote::{Remote, reach};

use crate::{
    prepare_step::{PrepareStep, Work, shell},
    warm::WorkspaceOrigin,
};

/// Fetches shallowly where the server allows it, otherwise completely. No maintenance process is left running, locks
/// left by a killed git are removed, and a repository that lost the references recorded in it is not reused. If a
/// fetch fails although the server answers, the fault lies with the worker's repository.
const FETCH: &str = r#"set -e
if [ "$3" = reused ]; then
  git rev-parse -q --verify refs/forebay/wanted >/dev/null && [ -f "$GIT_DIR/index" ] || {
    echo "the worker's repository was changed since the last build" >&2
    exit 1
  }
  rm -f "$GIT_DIR"/*.lock
  find "$GIT_DIR/refs" -name '*.lock' -delete
fi
if [ -n "$4" ]; then
  GIT_SSH_COMMAND="$(git config --get core.sshCommand || echo ssh) $4"
  export GIT_SSH_COMMAND
fi
fetch() { git fetch -q --force --no-tags --no-recurse-submodules "$@"; }
if fetch --depth 1 -- "$1" "$2" 2>/dev/null; then
  wanted=$(git rev-parse -q --verify "FETCH_HEAD^{commit}")
else
  if [ -f "$GIT_DIR/shallow" ]; then deep=--unshallow; fi
  fetch --prune $deep -- "$1" "+refs/heads/*:refs/remotes/origin/*" "+refs/tags/*:refs/tags/*" || {
    GIT_DIR=/dev/null git ls-remote -q -- "$1" >/dev/null 2>&1 || exit 70
    exit 1
  }
  wanted=$(git rev-parse -q --verify "refs/remotes/origin/$2^{commit}" || git rev-parse -q --verify "$2^{commit}") || {
    echo "revision $2 does not exist" >&2
    exit 69
  }
fi
if expr "$2" : '[0-9a-f]\{40\}$' >/dev/null && [ "$(git rev-parse -q --verify "$2^{commit}")" != "$wanted" ]; then
  echo "the server sent $wanted instead of $2" >&2
  exit 69
fi
git update-ref refs/forebay/wanted "$wanted"
git update-ref refs/forebay/tree "$wanted^{tree}"
"#;

/// Builds the tree with the patch applied, without touching files. If the patch does not apply although the base tree
/// is complete, the patch is at fault.
const APPLY: &str = r#"set -e
export GIT_INDEX_FILE="$GIT_DIR/forebay.index"
rm -f "$GIT_INDEX_FILE"
git read-tree refs/forebay/wanted
git apply --cached --whitespace=nowarn -- "$1" || {
  git rev-list --objects --quiet "refs/forebay/wanted^{tree}" && exit 69
  exit 1
}
git update-ref refs/forebay/tree "$(git write-tree)"
"#;

/// Removes files of an earlier build that would influence the checkout: links in place of folders, attributes that
/// are not in the revision (they convert files), and repositories inside folders and submodules.
const CLEAN: &str = r#"set -e
git ls-tree -r -d -z --name-only refs/forebay/tree | xargs -0 /bin/sh -c '
for folder in "" "$@"; do
  path=./$folder
  if [ -n "$folder" ]; then
    [ ! -L "$path" ] || rm -f -- "$path"
    [ ! -e "$path/.git" ] && [ ! -L "$path/.git" ] || rm -rf -- "$path"
  fi
  file=$path/.gitattributes
  if [ -e "$file" ] || [ -L "$file" ]; then
    git ls-files --error-unmatch -- ":(literal)${folder:+$folder/}.gitattributes" >/dev/null 2>&1 || rm -rf -- "$file"
  fi
done' forebay
"#;

/// Updates the workspace to the wanted tree in one step: a file in both trees is not touched, so a patch that was
/// already applied does not change its time. Files unknown to git stay.
const CHECKOUT: &str = "set -e
git read-tree --reset -u refs/forebay/tree
git update-ref --no-deref HEAD refs/forebay/wanted
";

/// Checks that every file exists, has the type that the revision gives it, and is not behind a link. Files that
/// `read-tree` did not write have not changed since an earlier run wrote them; their content is not compared here,
/// because line-ending conversions can make any file appear changed.
const VERIFY: &str = r#"odd=$(git diff-files --name-only --diff-filter=DTU --ignore-submodules=all)
if [ -n "$odd" ]; then
  echo "the files differ from the revision: $odd" >&2
  exit 1
fi
"#;

/// Settings for every git command of a preparation, in its global configuration; the worker writes that of the repository.
const SETTINGS: &str = "[core]
	hooksPath = /dev/null
	fsmonitor = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	trustctime = true
	checkStat = default
	ignoreStat = false
	splitIndex = false
	untrackedCache = false
	sparseCheckout = false
[fetch]
	recurseSubmodules = false
[submodule]
	recurse = false
[gc]
	autoDetach = false
[maintenance]
	autoDetach = false
";

/// The configuration of the worker's repository and of the one that the build gets.
const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n";

/// The sources to check out.
pub(crate) struct Wanted<'a> {
    /// The URL as the build has it.
    pub(crate) url: &'a str,
    pub(crate) revision: &'a str,
    /// Path of a patch file to apply.
    pub(crate) patch: Option<PathBuf>,
    /// The checked place of the repository.
    pub(crate) remote: Remote,
}

/// The repository that sources are fetched through.
pub(crate) struct Repository {
    /// `GIT_DIR`: inside the workspace if no later build reuses it, otherwise the worker's.
    git: PathBuf,
    work: PathBuf,
    /// The file with [`SETTINGS`].
    settings: PathBuf,
    /// The protocols that git may use.
    protocols: &'static str,
    origin: WorkspaceOrigin,
}

impl Repository {
    /// Prepares the repository of a workspace whose sources go to `work`; `own` is the preparation's folder, and
    /// `more` a file with additional git settings from the operator.
    pub(crate) fn ready(
        own: &Path,
        work: &Path,
        origin: WorkspaceOrigin,
        remote: &Remote,
        more: Option<&Path>,
    ) -> io::Result<Self> {
        let git = if origin == WorkspaceOrigin::Fresh { work.join(".git") } else { own.join("git") };
        let home = own.join("home");
        fs::create_dir_all(&home)?;
        let settings = home.join(".gitconfig");
        let more =
            more.map(|file| format!("[include]\n\tpath = \"{}\"\n", file.display())).unwrap_or_default();
        // The operator's file may name another proxy, which then decides what git reaches.
        let proxy =
            remote.relay.as_ref().map(|relay| format!("[http]\n\tproxy = socks5h://{}\n", relay.address));
        fs::write(&settings, format!("{}{more}{SETTINGS}", proxy.unwrap_or_default()))?;
        if origin == WorkspaceOrigin::Reused {
            restore(&git)?;
        } else {
            create(&git)?;
        }
        Ok(Self { git, work: work.to_owned(), settings, protocols: remote.protocols, origin })
    }

    /// The preparation steps, in order.
    pub(crate) fn steps(self, wanted: Wanted<'_>) -> Vec<PrepareStep> {
        let Wanted { url, revision, patch, remote } = wanted;
        let reused = self.origin == WorkspaceOrigin::Reused;
        let how = if reused { "reused" } else { "" };
        let checkout = if reused { [CLEAN, CHECKOUT, VERIFY].concat() } else { CHECKOUT.to_owned() };
        let fetching = format!("fetching {revision} from {url}");
        let arguments = [&*remote.url, revision, how, &remote.ssh_options];
        let mut steps = match patch {
            None => vec![self.shell(fetching, &[FETCH, &checkout].concat(), &arguments)],
            Some(file) => vec![
                self.shell(fetching, FETCH, &arguments),
                self.shell("applying the patch".to_owned(), APPLY, &[&file.display().to_string()]),
                self.shell(format!("checking out {revision}"), &checkout, &[]),
            ],
        };
        if let Some(PrepareStep { work: Work::Command { relay, .. }, .. }) = steps.first_mut() {
            *relay = remote.relay;
        }
        if self.origin != WorkspaceOrigin::Fresh {
            let work =
                Work::Files { work: Box::new(move |_| view::make(&self.git, &self.work)), progress: None };
            steps.push(PrepareStep { what: "making the build's repository".to_owned(), work });
        }
        steps
    }

    fn shell(&self, what: String, script: &str, arguments: &[&str]) -> PrepareStep {
        let path = |path: &Path| path.display().to_string();
        let mut step = shell(what, script, arguments);
        if let Work::Command { env, .. } = &mut step.work {
            env.extend([
                ("GIT_DIR".to_owned(), path(&self.git)),
                ("GIT_WORK_TREE".to_owned(), path(&self.work)),
                ("GIT_CONFIG_GLOBAL".to_owned(), path(&self.settings)),
                // These two settings execute programs. Variables override the configuration of the repository.
                ("GIT_CONFIG_COUNT".to_owned(), "2".to_owned()),
                ("GIT_CONFIG_KEY_0".to_owned(), "core.hooksPath".to_owned()),
                ("GIT_CONFIG_VALUE_0".to_owned(), "/dev/null".to_owned()),
                ("GIT_CONFIG_KEY_1".to_owned(), "core.fsmonitor".to_owned()),
                ("GIT_CONFIG_VALUE_1".to_owned(), "false".to_owned()),
                ("GIT_ALLOW_PROTOCOL".to_owned(), self.protocols.to_owned()),
                ("GIT_NO_LAZY_FETCH".to_owned(), "1".to_owned()),
                ("GIT_CONFIG_NOSYSTEM".to_owned(), "1".to_owned()),
                ("GIT_ATTR_NOSYSTEM".to_owned(), "1".to_owned()),
                ("GIT_NO_REPLACE_OBJECTS".to_owned(), "1".to_owned()),
            ]);
        } else {
            impossible!("a shell step is not a command");
        }
        step
    }
}

/// Creates an empty repository in `git`.
fn create(git: &Path) -> io::Result<()> {
    for folder in ["objects/info", "objects/pack", "refs/heads", "refs/tags"] {
        fs::create_dir_all(git.join(folder))?;
    }
    fs::write(git.join("HEAD"), "ref: refs/heads/main\n")?;
    fs::write(git.join("config"), CONFIG)
}

/// Removes everything from a used repository that could change git's behaviour.
fn restore(git: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(git)?.is_dir() {
        return Err(io::Error::other("the worker's git repository is missing"));
    }
    for name in ["config", "config.worktree", "hooks", "info", "objects/info/alternates", "commondir"] {
        view::remove(&git.join(name))?;
    }
    fs::write(git.join("config"), CONFIG)
}
