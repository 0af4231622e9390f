//! What goes wrong and is not a command's fault.

use std::io;
use std::path::PathBuf;

use shim::ShimError;

/// A failure of the slot or the machine.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// No such program as bubblewrap.
    #[error(
        "bubblewrap is not there: no `{program}` in PATH; install the package `bubblewrap`, or choose the sandbox `none`"
    )]
    NoBubblewrap {
        /// What was looked for.
        program: PathBuf,
    },
    /// Bubblewrap does not work here.
    #[error("bubblewrap makes no sandbox on this machine: {said}; {advice}")]
    Bubblewrap {
        /// What bubblewrap wrote to standard error.
        said: String,
        /// What can be done about it.
        advice: &'static str,
    },
    /// The commands' user cannot get to the slot's folder.
    #[error(
        "user {uid} cannot enter {folder}, which holds the input roots; allow it (chmod o+x) or have the data folder elsewhere"
    )]
    Closed {
        /// The user of the commands.
        uid: u32,
        /// The folder that is closed to it.
        folder: PathBuf,
    },
    /// A command's root cannot be its input root without namespaces.
    #[error(
        "an action whose root is its input root needs the sandbox `bubblewrap`, and this slot has `none`"
    )]
    RootNeedsBubblewrap,
    /// A path that is not where it must be, or not what can be passed on.
    #[error("{path} is no input root of this slot: {why}")]
    Root {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A file or folder of the slot.
    #[error("{doing} {path} failed")]
    File {
        /// What was done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The machine is short of processes, memory or descriptors.
    #[error("the command could not be started for want of resources: {0}")]
    Resources(String),
    /// The slot's process failed. The next run gets another.
    #[error("the process that runs the slot's commands failed")]
    Shim(#[from] ShimError),
}

impl SandboxError {
    /// For a failed call on a path.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { doing, path: path.into(), source }
    }
}
