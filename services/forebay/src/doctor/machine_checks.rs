//! Checks of this machine: programs that a worker and `up` start, and the limit of open files.

use std::{io::ErrorKind, process::Command};

use super::Finding;

/// A program, its version flag, and its purpose.
struct Program {
    name: &'static str,
    flag: &'static str,
    /// Environment variable that overrides its path.
    variable: Option<&'static str>,
    needed: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "git",
        flag: "--version",
        variable: None,
        needed: "required by workers for builds with --git",
    },
    Program {
        name: "tar",
        flag: "--version",
        variable: None,
        needed: "required by workers for builds with --archive",
    },
    Program { name: "bwrap", flag: "--version", variable: None, needed: "required for sandboxed actions" },
    Program {
        name: "nats-server",
        flag: "--version",
        variable: Some("FOREBAY_NATS_SERVER"),
        needed: "required by `forebay up`",
    },
    Program {
        name: "redis-server",
        flag: "--version",
        variable: Some("FOREBAY_REDIS_SERVER"),
        needed: "required by `forebay up`",
    },
];

/// Checks the version of every program, and the limit of open files.
pub(super) fn run() -> Vec<Finding> {
    PROGRAMS.iter().map(check).chain([descriptors()]).collect()
}

/// Minimum recommended limit of open files; below it a gateway accepts fewer connections.
const DESCRIPTORS_WANTED: u64 = 1024;

/// Checks the limit of open files of services that are started on this machine.
fn descriptors() -> Finding {
    let advice = "raise it with ulimit -n, or with LimitNOFILE= in the systemd unit";
    match listener::descriptors() {
        Ok(limit) => {
            let found = format!("limit {}, up to {} on request of a service", limit.soft, limit.hard);
            if limit.hard < DESCRIPTORS_WANTED {
                Finding::warn("files", found, advice)
            } else {
                Finding::ok("files", found)
            }
        }
        Err(error) => Finding::warn("files", format!("cannot read the limit: {error}"), advice),
    }
}

fn check(program: &Program) -> Finding {
    let path = program.variable.and_then(std::env::var_os).unwrap_or_else(|| program.name.into());
    match Command::new(&path).arg(program.flag).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Finding::ok(program.name, text.lines().next().unwrap_or_default().trim())
        }
        Ok(output) => Finding::warn(program.name, format!("failed: {}", output.status), program.needed),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::warn(program.name, "not found on this machine", program.needed)
        }
        Err(error) => Finding::warn(program.name, format!("cannot start: {error}"), program.needed),
    }
}
