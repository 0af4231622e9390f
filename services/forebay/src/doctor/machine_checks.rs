//! Checks of this machine: the programs that a worker and `up` start.

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

/// Asks every program for its version.
pub(super) fn run() -> Vec<Finding> {
    PROGRAMS.iter().map(check).collect()
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
