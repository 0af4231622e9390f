//! Measures how many `/bin/true` run per second, bare and through slots: `cargo run --example
//! run_rate [SECONDS]`, as root.
#![allow(clippy::unwrap_used, reason = "a measurement may panic")]

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandbox::{Bubblewrap, Cgroups, Cores, Limits, Outcome, Parent, Run, Sandbox, Slot, SlotConfig, User};

const USER: User = User { uid: 65534, gid: 65534 };

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some("shim") {
        return shim::main();
    }
    let seconds = env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3);
    let time = Duration::from_secs(seconds);
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    for threads in [1, 2] {
        println!("bare spawn, {threads} at a time: {:.0}/s", bare(threads, time, &["/bin/true"]));
        println!("bare bubblewrap, {threads} at a time: {:.0}/s", bare(threads, time, BWRAP));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for slots in [1, 2, 4] {
        for (sandbox, root_is_input) in
            [(Sandbox::None, false), (Sandbox::Bubblewrap, false), (Sandbox::Bubblewrap, true)]
        {
            let rate = runtime.block_on(slots_at_once(folder.path(), sandbox, root_is_input, slots, time));
            let root = if root_is_input { " with the input root as /" } else { "" };
            println!("{slots} slot(s), {}{root}: {rate:.0}/s", sandbox.name());
        }
    }
    ExitCode::SUCCESS
}

/// The fewest options that give the same sandbox.
const BWRAP: &[&str] = &[
    "bwrap",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-ipc",
    "--unshare-uts",
    "--die-with-parent",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--ro-bind",
    "/etc",
    "/etc",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "/bin/true",
];

fn bare(threads: usize, time: Duration, argv: &[&str]) -> f64 {
    let count = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while began.elapsed() < time {
                    let (program, arguments) = argv.split_first().unwrap();
                    let status = Command::new(program).args(arguments).stdin(Stdio::null()).status();
                    assert!(status.unwrap().success());
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner() as f64 / began.elapsed().as_secs_f64()
}

async fn slots_at_once(
    folder: &Path,
    sandbox: Sandbox,
    root_is_input: bool,
    slots: usize,
    time: Duration,
) -> f64 {
    let mut tasks = Vec::new();
    let mut ready = Vec::new();
    for number in 0..slots {
        let place = folder.join(format!("{}-{slots}-{number}-{root_is_input}", sandbox.name()));
        ready.push((start(&place, sandbox).await, place));
    }
    let began = Instant::now();
    for (slot, place) in ready {
        tasks.push(tokio::spawn(one_slot(slot, place, root_is_input, time)));
    }
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

async fn start(place: &Path, sandbox: Sandbox) -> Slot {
    let root = place.join("work/root");
    fs::create_dir_all(&root).unwrap();
    chown(&root, Some(USER.uid), Some(USER.gid)).unwrap();
    let copy = "set -e; cd \"$1\"; mkdir bin; cp /bin/true bin; cp --parents -L $(ldd /bin/true | grep -o '/[^ ]*') .";
    assert!(Command::new("/bin/sh").args(["-c", copy, "sh"]).arg(&root).status().unwrap().success());
    let name = place.file_name().unwrap().to_string_lossy().replace(' ', "-");
    let config = SlotConfig {
        name: format!("rate-{}-{name}", std::process::id()),
        program: env::current_exe().unwrap(),
        work: place.join("work"),
        sandbox,
        bubblewrap: Bubblewrap::default(),
        user: Some(USER),
        processes_max: Some(10_000),
        cgroups: Cgroups::detect(&Parent::Auto),
        cores: Cores::default(),
        is_bare: false,
        network: None,
        lease: None,
    };
    Slot::start(config).await.unwrap()
}

async fn one_slot(mut slot: Slot, place: PathBuf, root_is_input: bool, time: Duration) -> u32 {
    let run = Run {
        argv: vec!["/bin/true".into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: PathBuf::new(),
        root: place.join("work/root"),
        root_is_input,
        image: None,
        devices: Vec::new(),
        shares_network: false,
        timeout: Some(Duration::from_secs(60)),
        kill_grace: Duration::from_secs(1),
        stdout: place.join("stdout"),
        stderr: place.join("stderr"),
        output_bytes_max: 1 << 32,
        memory_bytes_max: None,
        limits: Limits::default(),
    };
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < time {
        let outcome = slot.run(run.clone()).await.unwrap().finish().await.unwrap();
        assert!(matches!(outcome, Outcome::Ended(ended) if ended.exit_code == 0));
        count += 1;
    }
    slot.stop().await.unwrap();
    count
}
