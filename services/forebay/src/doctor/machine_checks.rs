//! Checks of this machine: the programs that a worker and `up` start, and the limit of open files.

use std::{io::ErrorKind, process::Command};

use super::Finding;

/// A program, how it tells its version, and who needs it for what.
struct Program {
    name: &'static str,
    flag: &'static str,
    /// Overrides where it is.
    variable: Option<&'static str>,
    needed: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "git",
        flag: "--version",
        variable: None,
        needed: "a worker needs it for builds with --git",
    },
    Program {
        name: "tar",
        flag: "--version",
        variable: None,
        needed: "a worker needs it for builds with --archive",
    },
    Program {
        name: "bwrap",
        flag: "--version",
        variable: None,
        needed: "a worker needs it for sandboxed actions",
    },
    Program {
        name: "nats-server",
        flag: "--version",
        variable: Some("FOREBAY_NATS_SERVER"),
        needed: "`forebay up` starts one",
    },
    Program {
        name: "redis-server",
        flag: "--version",
        variable: Some("FOREBAY_REDIS_SERVER"),
        needed: "`forebay up` starts one",
    },
];

/// Asks every program for its version, and looks at the limit.
pub(super) fn run() -> Vec<Finding> {
    PROGRAMS.iter().map(check).chain([descriptors()]).collect()
}

/// Below this limit of open files a gateway takes fewer connections than it could.
const DESCRIPTORS_WANTED: u64 = 1024;

/// The limit of open files that services which are started here have.
fn descriptors() -> Finding {
    let advice = "raise it: ulimit -n, or LimitNOFILE= of the unit";
    match listener::descriptors() {
        Ok(limit) => {
            let found = format!("{} may be open, {} when a service asks for more", limit.soft, limit.hard);
            if limit.hard < DESCRIPTORS_WANTED {
                Finding::warn("files", found, advice)
            } else {
                Finding::ok("files", found)
            }
        }
        Err(error) => Finding::warn("files", format!("the limit cannot be read: {error}"), advice),
    }
}

fn check(program: &Program) -> Finding {
    let path = program.variable.and_then(std::env::var_os).unwrap_or_else(|| program.name.into());
    match Command::new(&path).arg(program.flag).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Finding::ok(program.name, text.lines().next().unwrap_or_default().trim())
        }
        Ok(output) => {
            Finding::warn(program.name, format!("does not work: {}", output.status), program.needed)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Finding::warn(program.name, "not found on this machine", program.needed)
        }
        Err(error) => Finding::warn(program.name, format!("does not start: {error}"), program.needed),
    }
}
