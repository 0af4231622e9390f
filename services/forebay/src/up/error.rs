//! Why a farm did not come up.

use std::{io, path::PathBuf};

use bus::BusError;
use jetstream::TopologyError;
use service::StartError;

use crate::failure::Failure;

/// Why a farm did not come up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpError {
    /// Another `forebay up` has the folder.
    #[error("{} is in use by `forebay up` with process id {holder}: stop it first, or choose another --data", data.display())]
    Held {
        /// The data folder.
        data: PathBuf,
        /// Its process id, as it wrote it.
        holder: String,
    },
    /// The data folder cannot be used.
    #[error("cannot use {}", path.display())]
    Folder {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A path that cannot stand in a URL or a configuration file.
    #[error("the data folder {} cannot be used: its name is not UTF-8", path.display())]
    NotText {
        /// The folder.
        path: PathBuf,
    },
    /// A server that is not installed.
    #[error("{name} is not installed: {remedy}")]
    NotInstalled {
        /// The program.
        name: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A server that is too old, or none at all.
    #[error("{} is version {found}, at least {wanted} is needed: {remedy}", program.display())]
    TooOld {
        /// The program.
        program: PathBuf,
        /// What it says.
        found: String,
        /// What is needed.
        wanted: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// Someone else listens on a port.
    #[error(
        "port {port} for {name} is already in use: stop what uses it, or choose another with {flag} (0 is any)"
    )]
    Busy {
        /// For what it is needed.
        name: &'static str,
        /// The port.
        port: u16,
        /// How to choose another.
        flag: &'static str,
    },
    /// A child that ended before it answered.
    #[error("{name} did not start: {how} (its log is {})", log.display())]
    NotStarted {
        /// The child.
        name: String,
        /// What became of it.
        how: String,
        /// Its log.
        log: PathBuf,
    },
    /// A server that was named does not answer.
    #[error("{name} at {url} is not reachable")]
    Unreachable {
        /// What.
        name: &'static str,
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Settings that the flags made nonsense of.
    #[error(transparent)]
    Settings(#[from] settings::SettingsError),
    /// Pools that cannot be scaled so.
    #[error(transparent)]
    Scaling(#[from] autoscaler::InvalidScaling),
    /// The bus.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The stores are not those of the farm, or cannot be used.
    #[error(transparent)]
    Join(#[from] StartError),
    /// A file that cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What the operating system refused.
    #[error("{what} failed")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl UpError {
    /// What the command line exits with: 2 where the call must change, 4 where something does not answer.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Join(error) if error.is_misuse() => 2,
            Self::Held { .. }
            | Self::Folder { .. }
            | Self::NotText { .. }
            | Self::NotInstalled { .. }
            | Self::TooOld { .. }
            | Self::Settings(_)
            | Self::Scaling(_)
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

impl From<UpError> for Failure {
    fn from(error: UpError) -> Self {
        Self::plain(error.exit_code(), telemetry::error_chain(&error))
    }
}
