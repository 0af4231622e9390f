//! Runs the commands of builds so that no process of theirs outlives its owner.
//!
//! A worker keeps one *shim* per workspace: `forebay shim`, a small synchronous process that runs one
//! command at a time and streams its output back. Every process a command started is dead and reaped
//!
//! * when the command's own process ends, before [`Event::Exited`] is reported (see below for the one exception);
//! * when the worker says so ([`Control::kill`]);
//! * when the deadline passes that the worker last renewed, though the worker be stopped; with
//!   [`Options::kernel_deadline`], though shim and command be stopped too: none of them runs again;
//! * when the worker dies, because then the socket between them closes;
//! * when the shim dies, because it is the first process of a PID namespace.
//!
//! A command that is run by [`Shim::run_and_keep`] may leave *survivors* behind, a build tool's server above all: when its
//! own process ends by itself, what else lives stays, until the next command, which adopts it, [`Shim::forget`], or the
//! end of worker or shim. Whatever kills a command kills the survivors with it.
//!
//! Where namespaces are refused the shim falls back to [`Mode::Subreaper`], which keeps the same promises
//! except against a command that kills or stops its shim and that shim's guardian on purpose.
//!
//! A command can be kept to [`Limits`], which the shim looks after by itself: it sees what all its processes use, in
//! whatever namespaces they are.
//!
//! A shim may belong to another user than its owner, and be wrapped by a program that makes a sandbox around it
//! ([`Options`]); what it runs may write to files in place of pipes ([`Files`]).
//!
//! The worker's half is [`Shim`] (tokio); the process's half is [`main`] (no runtime, no threads).

mod client;
mod frame;
mod guardian;
mod link;
mod model;
mod options;
mod outer;
mod own;
mod running;
mod server;

pub use client::{Shim, ShimError};
pub use model::{
    Cause, Command, Deadline, Event, Exit, Limit, Limits, Measured, Mode, Moment, Over, SpawnErrorKind,
    Stream,
};
pub use options::{Files, Options, STATUS_DESCRIPTOR, User};
pub use outer::main;
pub use running::{Control, Running};
