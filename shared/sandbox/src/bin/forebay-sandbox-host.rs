//! For the tests only: acts as `forebay shim`, and as an executor that can be killed from outside.
#![expect(clippy::unwrap_used, reason = "a test program may panic")]

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use sandbox::{Bubblewrap, Cgroups, Cores, Limits, Run, Sandbox, Slot, SlotConfig, User};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["shim", ..] => shim::main(),
        ["executor", sandbox, folder, script] => {
            let sandbox = if *sandbox == "none" { Sandbox::None } else { Sandbox::Bubblewrap };
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(work(sandbox, folder.into(), script));
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(2),
    }
}

/// Runs a shell script until this process is killed.
async fn work(sandbox: Sandbox, folder: PathBuf, script: &str) {
    let config = SlotConfig {
        name: format!("test-{}", std::process::id()),
        program: env::current_exe().unwrap(),
        work: folder.join("work"),
        sandbox,
        bubblewrap: Bubblewrap::default(),
        user: nix::unistd::geteuid().is_root().then_some(User { uid: 65534, gid: 65534 }),
        processes_max: None,
        cgroups: Cgroups::default(),
        cores: Cores::default(),
        is_bare: false,
        network: None,
        lease: None,
    };
    let mut slot = Slot::start(config).await.unwrap();
    let run = Run {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: Vec::new(),
        cwd: PathBuf::new(),
        root: folder.join("work/root"),
        root_is_input: false,
        image: None,
        devices: Vec::new(),
        shares_network: false,
        timeout: None,
        kill_grace: Duration::ZERO,
        stdout: folder.join("stdout"),
        stderr: folder.join("stderr"),
        output_bytes_max: 1 << 20,
        memory_bytes_max: None,
        limits: Limits::default(),
    };
    slot.run(run).await.unwrap().finish().await.unwrap();
}
