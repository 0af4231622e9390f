//! Failures that are not a command's fault.

use std::io;
use std::path::PathBuf;

use shim::ShimError;

/// A failure of the slot or the machine.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Bubblewrap is not installed.
    #[error(
        "bubblewrap not found: no `{program}` in PATH; install the package `bubblewrap`, or choose the sandbox `none`"
    )]
    NoBubblewrap { program: PathBuf },
    /// Bubblewrap does not work on this machine.
    #[error("bubblewrap cannot create a sandbox on this machine: {said}; {advice}")]
    Bubblewrap {
        /// Standard error of bubblewrap.
        said: String,
        /// How to fix the problem.
        advice: &'static str,
    },
    /// The commands' user cannot enter the slot's folder.
    #[error(
        "user {uid} cannot enter {folder}, which holds the input roots; allow it (chmod o+x) or move the data folder"
    )]
    Closed {
        uid: u32,
        /// The folder that it cannot enter.
        folder: PathBuf,
    },
    /// The commands' user cannot reach what the sandbox of one command shows.
    #[error(
        "user {uid} cannot enter {folder} on the way to {shown}, which sandboxes show; allow it (chmod o+x), or show \
         another folder (sandbox_read_only)"
    )]
    ClosedShown {
        uid: u32,
        /// The folder that it cannot enter.
        folder: PathBuf,
        /// The path that sandboxes show.
        shown: PathBuf,
    },
    /// Without namespaces the root of a command cannot be its input root.
    #[error(
        "an action with its input root as `/` requires the sandbox `bubblewrap`, but this slot has `none`"
    )]
    RootNeedsBubblewrap,
    /// Without namespaces a command sees the files of the host.
    #[error("an action in an image requires the sandbox `bubblewrap`, but this slot has `none`")]
    ImageNeedsBubblewrap,
    /// Files of a folder that several commands see must not be changed.
    #[error("a writable root requires an image that is mounted as overlay, which this machine does not do")]
    WritableNeedsOverlay,
    /// Without namespaces all commands share the network of the host.
    #[error("a command with services requires the sandbox `bubblewrap`, but this slot has `none`")]
    NetworkNeedsBubblewrap,
    /// A path in the wrong place, or one that cannot be passed to the shim.
    #[error("{path} is not an input root of this slot: {why}")]
    Root { path: PathBuf, why: &'static str },
    /// A file or folder of the slot failed.
    #[error("{doing} {path} failed")]
    File {
        /// The failed operation, for example `writing`.
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The machine is short of processes, memory or descriptors.
    #[error("cannot start the command: out of resources: {0}")]
    Resources(String),
    /// The slot's process failed. The next run gets another one.
    #[error("the process that runs the slot's commands failed")]
    Shim(#[from] ShimError),
}

impl SandboxError {
    /// For a failed call on a path.
    pub(crate) fn file(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File { doing, path: path.into(), source }
    }
}
