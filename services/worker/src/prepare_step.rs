//! The steps of a preparation.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};

use futures::future::BoxFuture;
use model::Reason;

use crate::{relay::Relay, sync::Progress};

/// Why a workspace was not filled.
pub(crate) enum Fault {
    /// The wanted content is unavailable. The workspace is unchanged.
    NoContent(Reason),
    /// The wanted content could not be fetched, perhaps only by this machine. The workspace is unchanged.
    NotHere(Reason),
    /// The store does not answer. The workspace is unchanged.
    StoreUnreachable(Reason),
    /// The store did not answer while the workspace was changed.
    StoreLost(Reason),
    /// The workspace or the disk is at fault.
    Workspace(Reason),
}

/// One step of a preparation.
pub(crate) struct PrepareStep {
    /// What the step does, for its error message.
    pub(crate) what: String,
    pub(crate) work: Work,
}

/// The work of a step.
pub(crate) enum Work {
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Variables in addition to those of every preparation ([`crate::environment::of_preparation`]).
        env: Vec<(String, String)>,
        /// What the program connects through.
        relay: Option<Relay>,
    },
    /// Work of the worker that leaves the workspace unchanged, and returns the next step. It may be repeated.
    Fetch { fetch: Fetch, progress: Arc<Progress> },
    /// Work of the worker on the workspace only; it stops early when the flag is set.
    Files {
        work: FileWork,
        /// Progress of work that may take long.
        progress: Option<Arc<Progress>>,
    },
}

pub(crate) type Fetch = Box<dyn Fn() -> BoxFuture<'static, Result<PrepareStep, Fault>> + Send + Sync>;

pub(crate) type FileWork = Box<dyn FnOnce(&AtomicBool) -> io::Result<()> + Send>;

pub(crate) fn shell(what: String, script: &str, arguments: &[&str]) -> PrepareStep {
    let mut argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned(), "forebay".to_owned()];
    argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    PrepareStep { what, work: Work::Command { argv, env: Vec::new(), relay: None } }
}
