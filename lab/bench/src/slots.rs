//! Slots of executors in benchmarks that need no farm.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use sandbox::{Bubblewrap, Cgroups, Cores, Limits, Run, Sandbox, SlotConfig, User};

use crate::{error::BenchError, program};

/// The user of commands if this process is root: `nobody` on most systems.
const COMMAND_UID: u32 = 65534;

/// A slot with this unique name in `folder`, which has the input root `work/root`.
pub(crate) fn config(
    name: String,
    folder: &Path,
    sandbox: Sandbox,
    cgroups: Cgroups,
) -> Result<SlotConfig, BenchError> {
    Ok(SlotConfig {
        name,
        program: program::forebay()?,
        work: folder.join("work"),
        sandbox,
        bubblewrap: Bubblewrap::default(),
        user: nix::unistd::geteuid().is_root().then_some(User { uid: COMMAND_UID, gid: COMMAND_UID }),
        processes_max: None,
        cgroups,
        cores: Cores::default(),
        is_bare: false,
        network: None,
        lease: None,
    })
}

/// A command without limits in the slot of `folder`.
pub(crate) fn run(argv: Vec<String>, folder: &Path) -> Run {
    Run {
        argv,
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
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
    }
}
