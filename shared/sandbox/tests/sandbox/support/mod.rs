//! Helpers that the tests share.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::unistd::geteuid;
use sandbox::{
    Bubblewrap, Cgroups, Cores, Ended, ImageRoot, Limits, Network, Outcome, OwnParts, Run, Sandbox, Slot,
    SlotConfig, User, WorkspaceSandbox,
};
use shim::{Command, Event, Shim};
use tempfile::TempDir;

/// The executable that acts as `forebay`.
pub(crate) fn host() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_forebay-sandbox-host"))
}

/// The user that commands run as if the tests are root.
pub(crate) const USER: User = User { uid: 65534, gid: 65534 };

/// The ways in which a command can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// With the sandbox off.
    None,
    /// In a sandbox that is kept for a slot (or alone, if the tests are not root).
    Kept,
    /// In its own sandbox, with the input root as `/`.
    Rooted,
}

impl Way {
    /// Whether bubblewrap is started for each command.
    pub(crate) fn is_alone(self) -> bool {
        self == Self::Rooted || self == Self::Kept && !geteuid().is_root()
    }
}

/// Defines each test once for each way.
macro_rules! in_all_ways {
    ($($test:ident)*) => {
        mod none { $(#[tokio::test] async fn $test() { super::$test(crate::support::Way::None).await; })* }
        mod kept { $(#[tokio::test] async fn $test() { super::$test(crate::support::Way::Kept).await; })* }
        mod rooted { $(#[tokio::test] async fn $test() { super::$test(crate::support::Way::Rooted).await; })* }
    };
}

/// A folder with a slot in it and all files that it needs.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: TempDir,
    /// The layers of its image, on another file system than the programs of the machine, which are one of them.
    layers: TempDir,
    pub(crate) way: Way,
}

impl Place {
    pub(crate) fn new(way: Way) -> Self {
        Self::new_in(way, &std::env::temp_dir())
    }

    pub(crate) fn new_in(way: Way, parent: &Path) -> Self {
        let (folder, layers) = (TempDir::new_in(parent).unwrap(), TempDir::new_in("/dev/shm").unwrap());
        for path in [folder.path(), layers.path()] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let place = Self { folder, layers, way };
        fs::create_dir_all(place.root()).unwrap();
        fs::set_permissions(place.path("work"), Permissions::from_mode(0o755)).unwrap();
        if geteuid().is_root() {
            chown(place.root(), Some(USER.uid), Some(USER.gid)).unwrap();
        }
        if way == Way::Rooted {
            furnish(&place.root());
        }
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.path("work/root")
    }

    pub(crate) fn config(&self) -> SlotConfig {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        SlotConfig {
            name: format!("test-{}-{number}", std::process::id()),
            program: host().to_owned(),
            work: self.path("work"),
            sandbox: if self.way == Way::None { Sandbox::None } else { Sandbox::Bubblewrap },
            bubblewrap: Bubblewrap::default(),
            user: geteuid().is_root().then_some(USER),
            processes_max: None,
            cgroups: Cgroups::default(),
            cores: Cores::default(),
            is_bare: false,
            network: None,
            lease: None,
        }
    }

    pub(crate) async fn slot(&self) -> Slot {
        Slot::start(self.config()).await.unwrap()
    }

    pub(crate) fn run(&self, argv: &[&str]) -> Run {
        Run {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
            cwd: PathBuf::new(),
            root: self.root(),
            root_is_input: self.way == Way::Rooted,
            image: None,
            devices: Vec::new(),
            shares_network: false,
            timeout: Some(Duration::from_secs(30)),
            kill_grace: Duration::ZERO,
            stdout: self.path("stdout"),
            stderr: self.path("stderr"),
            output_bytes_max: 1 << 32,
            memory_bytes_max: None,
            limits: Limits::default(),
        }
    }

    pub(crate) fn script(&self, text: &str) -> Run {
        self.run(&["/bin/sh", "-c", text])
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(fs::read(self.path("stdout")).unwrap()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(fs::read(self.path("stderr")).unwrap()).unwrap()
    }

    /// An image with the programs of this machine and, above them, the files in [`Place::layer`].
    pub(crate) fn image(&self, user: Option<User>, writable_bytes: Option<u64>) -> ImageRoot {
        let (top, at) = (self.layers.path().join("top"), self.layers.path().join("at"));
        fs::create_dir_all(&at).unwrap();
        for folder in ["proc", "dev", "sys", "tmp", "run", "var", "etc", "forebay", ".forebay"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        let mut lower = vec![top, self.layer()];
        // What is written to the programs of the machine would be too much: all their folders get an owner.
        match writable_bytes {
            Some(_) => furnish(&self.layer()),
            None => lower.push("/".into()),
        }
        ImageRoot { id: "of the machine".to_owned(), at, lower, writable_bytes, user, keep: Arc::new(()) }
    }

    /// A folder of the layer of [`Place::image`].
    pub(crate) fn layer(&self) -> PathBuf {
        let layer = self.layers.path().join("layer");
        fs::create_dir_all(layer.join("owned")).unwrap();
        layer
    }

    /// Runs a command to its end, which must be an exit.
    pub(crate) async fn ended(&self, slot: &mut Slot, run: Run) -> Ended {
        match slot.run(run).await.unwrap().finish().await.unwrap() {
            Outcome::Ended(ended) => ended,
            other @ Outcome::NotStarted { .. } => panic!("{other:?}"),
        }
    }
}

/// The sandboxes that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// That of a slot, for one action after another.
    Kept,
    /// That of one action.
    Alone,
    /// That of the builds of a workspace, with a loopback interface of its own.
    Build,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Kept, Self::Alone, Self::Build];
}

impl Place {
    /// What a command writes in such a sandbox; both outputs.
    pub(crate) async fn output_in(&self, kind: Kind, argv: &[&str]) -> String {
        if kind == Kind::Build {
            return self.output_of_build(argv, Network::Loopback).await;
        }
        let mut slot = self.slot().await;
        // A device that every sandbox has.
        let devices = if kind == Kind::Alone { vec!["/dev/null".into()] } else { Vec::new() };
        let ended = self.ended(&mut slot, Run { devices, ..self.run(argv) }).await;
        assert_eq!(ended.cause, sandbox::Cause::Ended, "{ended:?}");
        self.stdout() + &self.stderr()
    }

    /// What a command writes in the sandbox of a workspace, with its folder `workspace/build`.
    pub(crate) async fn output_of_build(&self, argv: &[&str], network: Network) -> String {
        self.output_seeing(Bubblewrap::default(), argv, network).await
    }

    /// The same with what `bubblewrap` shows and hides of the host.
    pub(crate) async fn output_seeing(
        &self,
        bubblewrap: Bubblewrap,
        argv: &[&str],
        network: Network,
    ) -> String {
        let parent = self.path("workspace");
        let folder = parent.join("build");
        fs::create_dir_all(&folder).unwrap();
        let sandbox = WorkspaceSandbox { bubblewrap, network, programs: self.path("work") };
        let options = sandbox.options(&parent, std::slice::from_ref(&folder), OwnParts::default()).unwrap();
        let mut shim = Shim::start_with(host(), &options).await.unwrap();
        let command = Command {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
            cwd: folder,
            deadline: None,
        };
        let mut running = shim.run(&command).await.unwrap();
        let mut output = String::new();
        while let Some(event) = running.next_event().await.unwrap() {
            if let Event::Output { data, .. } = &event {
                output.push_str(&String::from_utf8_lossy(data));
            }
            if matches!(event, Event::Exited(_) | Event::SpawnFailed { .. }) {
                break;
            }
        }
        output
    }
}

/// Gives a folder the files that a `/` needs to run a shell: copies from the host, because mounts would be too much.
fn furnish(root: &Path) {
    let copy = std::process::Command::new("/bin/sh").args(["-c", FURNISH]).arg("sh").arg(root).status();
    assert!(copy.unwrap().success());
}

/// A few programs and the libraries they need.
const FURNISH: &str = r#"
set -e; cd "$1"; mkdir -p bin usr/bin etc
for program in sh ls cat sleep true env id head mkdir touch setsid kill pwd chmod ln mv rm dd stat; do
    file=$(readlink -f /bin/$program); cp "$file" "bin/$program"
    for library in $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p ".$(dirname "$library")"; cp -L "$library" ".$library"
    done
done
[ $(id -u) != 0 ] || find . -type d -exec chown 65534:65534 {} +
"#;

/// Waits until this file exists.
pub(crate) async fn exists(path: &Path) {
    let mut patience = 3000;
    while !path.exists() {
        patience -= 1;
        assert!(patience > 0, "{} was not created in time", path.display());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
