//! Errors of `forebay up`.

use std::{io, path::PathBuf};

use bus::BusError;
use jetstream::TopologyError;
use service::StartError;

/// The reason why a farm did not start.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// Another `forebay up` holds the lock of the folder.
    #[error("{} is in use by `forebay up` (process {holder}): stop it first, or use another --data", data.display())]
    Held {
        data: PathBuf,
        /// Process id from the lock file, or `unknown`.
        holder: String,
    },
    /// The data folder cannot be used.
    #[error("cannot use the data folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The path cannot be used in a URL or a configuration file.
    #[error("the data folder {} cannot be used: its name is not UTF-8", path.display())]
    NotText { path: PathBuf },
    /// A required server is not installed.
    #[error("{name} is not installed: {remedy}")]
    NotInstalled { name: &'static str, remedy: &'static str },
    /// An installed server is too old, or the program is not that server.
    #[error("{}: found version {found}, need at least {wanted}: {remedy}", program.display())]
    TooOld {
        program: PathBuf,
        /// First line of the output of `--version`.
        found: String,
        wanted: &'static str,
        remedy: &'static str,
    },
    /// Another process listens on a port.
    #[error(
        "port {port} for {name} is already in use: stop the process that uses it, or set {flag} (0 = any free port)"
    )]
    Busy {
        name: &'static str,
        port: u16,
        /// Option that chooses another port.
        flag: &'static str,
    },
    /// A child process exited before it answered.
    #[error("{name} did not start: {how} (log: {})", log.display())]
    NotStarted {
        name: String,
        /// Exit status of the process, with its last output.
        how: String,
        log: PathBuf,
    },
    /// An external server does not answer.
    #[error("{name} at {url} is not reachable")]
    Unreachable {
        name: &'static str,
        url: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The stores are unusable, or are not those of the farm.
    #[error(transparent)]
    Join(#[from] StartError),
    /// A file of the data folder cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file of `--secure` cannot be used.
    #[error("cannot use {}", path.display())]
    Secure {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Only servers that `up` starts read the configuration that it makes.
    #[error(
        "--secure needs servers that `forebay up` starts: omit {flag}; for farms of several machines use `forebay access`"
    )]
    Elsewhere { flag: &'static str },
    /// Without keys, everyone would read what only their owners could.
    #[error(
        "the farm of this folder admits only those who have a key: start it with --secure, or remove {} to open it to every \
         process of this machine", keys.display()
    )]
    WasSecured {
        /// The description of its users.
        keys: PathBuf,
    },
    /// A call of the operating system failed.
    #[error("{what} failed")]
    System {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl UpError {
    /// Exit code: 2 if the user must change the call or the machine, 4 if a server or service fails.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Join(error) if error.is_misuse() => 2,
            Self::Held { .. }
            | Self::Folder { .. }
            | Self::NotText { .. }
            | Self::NotInstalled { .. }
            | Self::TooOld { .. }
            | Self::Secure { .. }
            | Self::Elsewhere { .. }
            | Self::WasSecured { .. }
            | Self::Busy { .. } => 2,
            Self::NotStarted { .. }
            | Self::Unreachable { .. }
            | Self::Bus(_)
            | Self::Topology(_)
            | Self::Join(_)
            | Self::Write { .. }
            | Self::System { .. } => 4,
        }
    }
}
