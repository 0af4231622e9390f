//! Runs the commands of builds so that none of their processes outlives its owner.
//!
//! A worker keeps one *shim* per workspace: `forebay shim`, a small synchronous process that runs one command at a time
//! and streams its output back. Every process that a command started is dead and reaped
//!
//! * when the command's own process ends, before [`Event::Exited`] is reported (see below for the one exception);
//! * when the worker kills the command ([`Control::kill`]);
//! * when the deadline that the worker last renewed passes, even if the worker is stopped; with
//!   [`Options::kernel_deadline`], even if shim and command are stopped too: none of them runs again;
//! * when the worker dies, because then the socket between them closes;
//! * when the shim dies, because it is the first process of a PID namespace.
//!
//! A command that is run by [`Shim::run_and_keep`] may leave *survivors*, mainly the server of a build tool: when its
//! own process exits without being killed, its other processes stay alive until the next command, which adopts them,
//! until [`Shim::forget`], or until the worker or the shim ends. Every kill of a command kills the survivors too.
//!
//! Where namespaces are refused the shim falls back to [`Mode::Subreaper`], which gives the same guarantees except
//! against a command that deliberately kills or stops its shim and that shim's guardian.
//!
//! A command can be restricted by [`Limits`], which the shim enforces itself: it sees the usage of all processes of the
//! command, in any namespace.
//!
//! A shim may run as another user than its owner, and inside a wrapper program that builds a sandbox around it
//! ([`Options`]), and in a network that only chosen shims share ([`PrivateNetwork`]); its commands may write their output to files instead of pipes ([`Files`]).
//!
//! The worker's half is [`Shim`] (tokio); the process's half is [`main`] (no runtime, no threads).

mod client;
mod control;
mod error;
mod filter;
mod frame;
mod guardian;
mod id_maps;
mod link;
mod model;
mod namespaces;
mod network;
mod options;
mod outer;
mod overlay;
mod own;
mod private_network;
mod probe;
mod server;

pub use client::{Running, Shim};
pub use control::Control;
pub use error::ShimError;
pub use filter::{FILTER_DESCRIPTORS, Filter};
pub use model::{
    Cause, Command, Deadline, Event, Exit, Limit, Limits, Measured, Mode, Moment, Over, SpawnErrorKind,
    Stream, Switches,
};
pub use options::{
    ARGUMENTS_DESCRIPTOR, Cores, Files, Options, Overlay, STATUS_DESCRIPTOR, User, WrapperFiles,
};
pub use outer::main;
pub use private_network::{PrivateNetwork, Probe};
pub use probe::wait_until;
