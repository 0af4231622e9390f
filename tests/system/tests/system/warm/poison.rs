//! Remains of a build in a warm workspace have no influence on the sources of the next one.

use std::{fs, path::Path, process::Command};

use model::{BuildRequest, Context, Outcome, ToolCall};

use super::{kind_of, one_workspace, one_workspace_in, warm_in};
use crate::check::{ended, processes_of};

/// Ways in which an earlier build could interfere, and the script that tries. `$EVIL` is a repository with
/// other content and the same branch; `$MARK` is a file that no preparation creates, and `$TOUCH` a
/// program that creates it.
const VECTORS: [(&str, &str); 32] = [
    ("a url in .git/config", r#"git config url."$EVIL".insteadOf "$GOOD""#),
    ("a url in ~/.gitconfig", r#"git config --global url."$EVIL".insteadOf "$GOOD""#),
    (
        "a url in ~/.config/git",
        r#"mkdir -p ~/.config/git; printf '[url "%s"]\n insteadOf = %s\n' "$EVIL" "$GOOD" > ~/.config/git/config"#,
    ),
    (
        "an included file",
        r#"printf '[url "%s"]\n insteadOf = %s\n' "$EVIL" "$GOOD" > inc; git config include.path ../inc"#,
    ),
    ("core.worktree", r#"git config core.worktree "$EVIL""#),
    (
        "hooks",
        r#"mkdir -p .git/hooks; for h in post-checkout post-index-change reference-transaction pre-auto-gc; do cp "$TOUCH" .git/hooks/$h; done"#,
    ),
    (
        "core.hooksPath",
        r#"mkdir hooks; for h in post-checkout post-index-change reference-transaction; do cp "$TOUCH" hooks/$h; done
           git config core.hooksPath "$PWD/hooks"; git config --global core.hooksPath "$PWD/hooks""#,
    ),
    (
        "a filter",
        r#"git config filter.x.smudge "$TOUCH"; git config --global filter.x.smudge "$TOUCH"
           mkdir -p .git/info; echo '* filter=x' > .git/info/attributes; echo '* filter=x' > .gitattributes"#,
    ),
    ("core.fsmonitor", r#"git config core.fsmonitor "$TOUCH"; git config --global core.fsmonitor "$TOUCH""#),
    ("info/attributes", "mkdir -p .git/info; echo '* working-tree-encoding=UTF-16LE' > .git/info/attributes"),
    (".gitattributes", "echo '* working-tree-encoding=UTF-16LE' > .gitattributes"),
    (".gitattributes in a folder", "echo '* text eol=crlf' > d/.gitattributes"),
    (".gitattributes as a link", "echo '* text eol=crlf' > a; ln -s a .gitattributes"),
    (
        "core.attributesFile",
        "echo '* text eol=crlf' > ~/attributes; git config --global core.attributesFile ~/attributes; git config core.attributesFile ~/attributes",
    ),
    ("core.autocrlf", "git config core.autocrlf true; git config --global core.autocrlf true"),
    ("info/exclude", "mkdir -p .git/info; echo '*' > .git/info/exclude; echo '*' > .gitignore"),
    (
        "sparse checkout",
        "git config core.sparseCheckout true; mkdir -p .git/info; echo nothing > .git/info/sparse-checkout",
    ),
    (
        "alternates",
        r#"echo "$EVIL/.git/objects" > .git/objects/info/alternates; git config core.alternateRefsCommand "$TOUCH""#,
    ),
    (
        "replaced objects",
        r#"evil=$(echo EVIL | git hash-object -w --stdin); git replace "$(git rev-parse HEAD:other)" $evil"#,
    ),
    (
        "grafts",
        "mkdir -p .git/info; git rev-parse HEAD > .git/info/grafts; git rev-parse HEAD > .git/shallow",
    ),
    (".git as a link", r#"rm -rf .git; ln -s "$EVIL/.git" .git"#),
    (".git as a file", r#"rm -rf .git; echo "gitdir: $EVIL/.git" > .git"#),
    ("no .git", "rm -rf .git; echo EVIL > other"),
    ("another .git", r#"rm -rf .git; cp -r "$EVIL/.git" .git; git reset -q --hard"#),
    (
        "submodules",
        r#"git config submodule.recurse true; git config fetch.recurseSubmodules true; git config --global submodule.recurse true
           git init -q d; git -C d config core.fsmonitor "$TOUCH"; git -C d config url."$EVIL".insteadOf "$GOOD"
           printf '[submodule "d"]\n path = d\n url = %s\n' "$EVIL" > .gitmodules"#,
    ),
    ("assume-unchanged", "git update-index --assume-unchanged other; echo EVIL > other"),
    ("skip-worktree", "git update-index --skip-worktree other; rm other"),
    ("a time set back", "cp -p other reference; echo EVILx > other; touch -r reference other; rm reference"),
    ("a link in the place of a folder", r#"rm -rf d; ln -s "$EVIL/d" d"#),
    ("a moved folder behind a link", "mv d e; ln -s e d"),
    (
        "a program that serves",
        r#"git config --global uploadpack.packObjectsHook "$TOUCH"; git config --global credential.helper "$TOUCH""#,
    ),
    (
        "files that shells read",
        r#"for f in .bashrc .profile .bash_profile .env .bash_env; do cp "$TOUCH" ~/$f; cp "$TOUCH" $f; done; cp "$TOUCH" git; cp "$TOUCH" ../tmp/git"#,
    ),
];

fn sh(folder: &Path, text: &str) -> String {
    let output = Command::new("/bin/sh").args(["-ec", text]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Creates a repository whose files all contain `text`.
fn repository(folder: &Path, text: &str) {
    fs::create_dir_all(folder.join("d")).unwrap();
    sh(
        folder,
        &format!(
            "git init -q -b main . && git config user.email t@example.com && git config user.name t
             echo {text} > file; echo {text} > other; echo {text} > d/deep; git add . && git commit -qm {text}"
        ),
    );
}

#[tokio::test]
async fn c1_no_build_chooses_the_sources_of_the_next() {
    let farm = one_workspace().await;
    let [good, evil] = ["good", "evil"].map(|name| farm.folder().join(name));
    repository(&good, "first");
    repository(&evil, "EVIL");
    let (mark, touch) = (farm.folder().join("mark"), farm.folder().join("touch"));
    fs::write(&touch, format!("#!/bin/sh\ntouch {}\ncat 2>/dev/null; exit 0\n", mark.display())).unwrap();
    sh(farm.folder(), "chmod +x touch");
    let context = Context::Git { url: good.display().to_string(), revision: "main".into(), patch: None };
    let run = async |text: &str, what: &str| {
        let tool = ToolCall { command: "x".into(), targets: vec!["t".into()], ..Default::default() };
        let env = [("GOOD", &good), ("EVIL", &evil), ("MARK", &mark), ("TOUCH", &touch)];
        let env = env.map(|(name, path)| (name.to_owned(), path.display().to_string()));
        let text = format!("exec 2>&1; set -ex\n{text}");
        let request = warm_in(&context, &["/bin/sh", "-c", &text]);
        let request = BuildRequest { tool: Some(tool), env: env.into(), ..request };
        let key = farm.submit("g", request).await;
        let record = ended(&farm, &key).await;
        let log = async || farm.cli(&["watch", &key.id.to_string()]).await.stdout;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{what}: {}", log().await);
        kind_of(&record)
    };
    run("true", "the first").await;
    let mut warm = 0;
    for (number, (what, spoil)) in VECTORS.iter().enumerate() {
        run(spoil, what).await;
        // Effects of the build itself do not count.
        let _ = fs::remove_file(&mark);
        sh(&good, &format!("echo {number} > file; echo {number} > d/deep; git commit -qam {number}"));
        let commit = sh(&good, "git rev-parse HEAD");
        let look = format!(
            r#"test "$(cat file) $(cat other) $(cat d/deep)" = "{number} first {number}"
            test ! -e "$MARK"
            test ! -L d
            test "$(od -c file | head -1 | tr -dc r)" = ""
            test "$(git rev-parse HEAD)" = {commit}
            test "$(git log -1 --format=%s)" = {number}
            test -z "$(git status --porcelain --untracked-files=no)"
            test -z "$(ls -A ~)"
            git clean -qffdx"#
        );
        // A dispatcher that learns too late of the workspace has it emptied.
        warm += usize::from(run(&look, what).await == Some(model::WorkspaceKind::Exact));
    }
    assert!(warm > VECTORS.len() * 3 / 4, "only {warm} were found warm");
    assert_eq!(sh(&evil, "cat file other d/deep; git status --porcelain"), "EVIL\nEVIL\nEVIL");
}

/// What a hostile build leaves: files, settings of git, hooks, a set-user-ID program, a server, and a timer that writes later.
const LEAVE: &str = r#"exec 2>&1; set -e
echo secret > left; echo secret > ~/left; echo secret > "$TMPDIR/left"
git config forebay.left secret; git config --global forebay.left secret
mkdir -p .git/hooks; printf '#!/bin/sh\necho secret\n' > .git/hooks/post-checkout; chmod +x .git/hooks/post-checkout
cp /bin/sh shell; chmod 4755 shell
setsid sh -c 'while :; do echo secret > serving; sleep 0.1; done' >/dev/null 2>&1 &
setsid sh -c "trap '' TERM HUP; sleep 2; echo secret > '$PWD/late'; echo secret > ~/late" >/dev/null 2>&1 &
sleep 0.3"#;

/// Waits for the timer, and prints what it finds of the other build.
const LOOK: &str = r#"exec 2>&1; sleep 3
find . ~ "$TMPDIR" ../bazel -name left -o -name late -o -name serving -o -perm -4000 -o -name post-checkout 2>/dev/null
git config --get-all forebay.left
grep -rl secret . ~ "$TMPDIR" 2>/dev/null
for one in /proc/[0-9]*; do cat $one/environ 2>/dev/null | tr '\0' '\n' | grep -q '^FOREBAY_BUILD_ID=FIRST$' && echo $one; done
echo looked"#;

#[tokio::test]
async fn c7_a_workspace_is_never_given_to_another_group() {
    for sandbox in ["none", "bubblewrap"] {
        let farm = one_workspace_in(sandbox).await;
        let source = farm.folder().join("source");
        repository(&source, "first");
        let context =
            Context::Git { url: source.display().to_string(), revision: "main".into(), patch: None };
        let first = farm.submit("first", warm_in(&context, &["/bin/sh", "-c", LEAVE])).await;
        let record = ended(&farm, &first).await;
        assert_eq!(record.result().unwrap().outcome, Outcome::Succeeded, "{record:#?}");
        let look = LOOK.replace("FIRST", &first.id.to_string());
        let second = farm.submit("second", warm_in(&context, &["/bin/sh", "-c", &look])).await;
        let record = ended(&farm, &second).await;
        assert_eq!(kind_of(&record), Some(model::WorkspaceKind::New), "{sandbox}");
        let said = farm.cli(&["logs", &second.id.to_string()]).await.stdout;
        assert_eq!(said, "looked\n", "{sandbox}");
        assert!(processes_of(first.id).is_empty(), "{sandbox}");
    }
}

/// Exchanges folders with links out of the workspace, without a pause. A timer wakes it 3 ms after it was stopped.
const SWAP: &str = r#"
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
exchange = libc.renameat2
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int), ("pad", ctypes.c_char * 48)]
class Times(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every", "every_ns", "after", "after_ns")]
timer, event, times = ctypes.c_void_p(), Event(None, signal.SIGCONT, 0), Times(0, 0, 0, 3_000_000)
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
pairs = [("out", sys.argv[1]), ("d", sys.argv[2]), (os.environ["HOME"] + "/.cargo", sys.argv[2])]
for name, target in pairs:
    if not os.path.lexists(name + ".x"):
        os.symlink(target, name + ".x")
names = [name.encode() for name, _ in pairs]
while True:
    libc.timer_settime(timer, 0, ctypes.byref(times), None)
    for name in names:
        exchange(-100, name, -100, name + b".x", 2)
"#;

/// The processes that a build leaves are stopped while the worker reads, writes and removes files of the workspace.
#[tokio::test]
async fn s10_what_a_build_left_running_leads_the_worker_nowhere() {
    let farm = one_workspace_in("bubblewrap").await;
    let [source, secret, victim] = ["source", "secret", "victim"].map(|name| farm.folder().join(name));
    for folder in [&source.join("d"), &secret, &victim.join("deep")] {
        fs::create_dir_all(folder).unwrap();
    }
    for number in 0..200 {
        fs::write(secret.join(format!("f{number}")), "secret").unwrap();
    }
    fs::write(victim.join("deep/kept"), "").unwrap();
    let before = sh(&victim, "ls -lR --time-style=full-iso");
    let text = format!(
        "exec 2>/dev/null; mkdir -p out ~/.cargo/junk; for i in $(seq 0 199); do echo mine > out/f$i; touch ~/.cargo/junk/$i; done
         [ ! -e swap.py ] || setsid python3 swap.py {} {} </dev/null >/dev/null & sleep 0.1; exit 0",
        secret.display(),
        victim.display()
    );
    for round in 0..6 {
        for number in 0..200 {
            fs::write(source.join(format!("d/f{number}")), format!("{round}")).unwrap();
        }
        let context = Context::Directory { path: source.display().to_string(), ignore_files: false };
        let request = warm_in(&context, &["/bin/sh", "-c", &text]);
        let request = BuildRequest { outputs: vec!["out/*".to_owned()], ..request };
        let key = farm.submit("g", request).await;
        let record = ended(&farm, &key).await;
        let outputs = &record.result().unwrap().outputs;
        assert!(round > 0 || outputs.len() == 200, "without the program all are kept: {outputs:?}");
        fs::write(source.join("swap.py"), SWAP).unwrap();
        assert!(outputs.iter().all(|file| file.size_bytes == 5), "round {round}: {outputs:?}");
        assert_eq!(sh(&victim, "ls -lR --time-style=full-iso"), before, "round {round}");
    }
}
