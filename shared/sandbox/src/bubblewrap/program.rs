//! Finds bubblewrap, and tries whether it works here.

use std::env;
use std::path::PathBuf;
use std::process::Stdio;

use invariant::impossible;
use nix::unistd::{AccessFlags, access};

use super::call::Call;
use super::setup::Bubblewrap;
use crate::error::SandboxError;

impl Bubblewrap {
    /// The path of the program.
    pub(crate) fn find(&self) -> Result<PathBuf, SandboxError> {
        // Without a current folder, absolute paths still work.
        let here = env::current_dir().unwrap_or_default();
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
        let folders = env::split_paths(&path).map(|folder| here.join(folder).join(&self.program));
        let named = self.program.components().count() > 1;
        let found = if named {
            Some(here.join(&self.program))
        } else {
            folders.into_iter().find(|path| path.is_file() && access(path, AccessFlags::X_OK).is_ok())
        };
        found.ok_or_else(|| SandboxError::NoBubblewrap { program: self.program.clone() })
    }

    /// Executes nothing in this sandbox: the error says what bubblewrap reported, and how to fix it.
    pub(crate) fn attempt(call: Call) -> Result<(), SandboxError> {
        let mut arguments = call.into_iter();
        let Some(program) = arguments.next() else {
            impossible!("the command line of bubblewrap is empty");
            return Ok(());
        };
        let mut command = std::process::Command::new(&program);
        while let Some(argument) = arguments.next() {
            // This call passes no descriptors.
            if argument == "--json-status-fd" || argument == "--add-seccomp-fd" {
                arguments.next();
            } else {
                command.arg(argument);
            }
        }
        let output = command.arg("/bin/true").env_clear().stdin(Stdio::null()).output();
        let output = output.map_err(|source| SandboxError::file("executing", &program, source))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let advice = advice(&said);
        Err(SandboxError::Bubblewrap { said, advice })
    }
}

/// How to fix the problem that bubblewrap reported.
pub(crate) fn advice(said: &str) -> &'static str {
    let any = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
    if any(&["Can't mount proc", "mount proc"]) {
        "this container hides parts of /proc: run it with /proc unmasked, or choose the sandbox `none`"
    } else if any(&["uid map", "new namespace", "unshare", "clone", "RTM_NEWADDR"]) {
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces, \
         kernel.apparmor_restrict_unprivileged_userns=0; in a container seccomp and CAP_SYS_ADMIN), or choose the \
         sandbox `none`"
    } else if any(&["Unknown option"]) {
        "install bubblewrap 0.8 or newer, or choose the sandbox `none`"
    } else {
        "fix that, or choose the sandbox `none`"
    }
}
