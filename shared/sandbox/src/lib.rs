//! Runs the command of one action in a folder that was prepared for it, and tells how it ended.
//!
//! A [`Slot`] owns one process (a [`shim`]) that runs one command at a time and is used for many. Whatever a
//! command started is dead before its [`Outcome`] is told, and dies with the executor. Outputs go from the
//! command straight into files ([`Log`]), which can be followed while it runs.
//!
//! # What a command can reach
//!
//! An executor that is root gives its slots another user ([`SlotConfig::user`]). That user owns the folders of
//! an input root, but not its files, which are links into a cache: it can neither write them nor change their
//! mode, and no program gives it the right to.
//!
//! With [`Sandbox::Bubblewrap`] a command is also in namespaces of its own: no network but a loopback of its own,
//! no processes but its own, no IPC objects but its own, an own `/tmp`, a read-only system without the rest of
//! the host, and its input root at [`bubblewrap::INSIDE`]`/...`. There are two ways to that:
//!
//! * *Kept*: bubblewrap makes the sandbox once for a slot, around the shim, which runs one command after another
//!   in it at the price of a plain process. Between two commands the shim kills all processes, empties `/tmp`,
//!   `/dev/shm` and `/dev/mqueue`, and looks for what else could remain: System V IPC objects and sockets that
//!   are not closed for good. If anything does, the sandbox is thrown away and the next command gets a new one.
//! * *Alone*: bubblewrap is started for each command. That is for commands whose input root is to be `/`
//!   ([`Run::root_is_input`]), and for an executor that is not root: its commands are the same user as itself, so
//!   only a mount of its own keeps a command to its input root.
//!
//! With [`Sandbox::None`] a command sees the host as that user does.

pub mod bubblewrap;
mod cgroups;
mod config;
mod error;
mod growth;
mod limits;
mod log;
mod outcome;
mod running;
mod slot;

pub use bubblewrap::Bubblewrap;
pub use cgroups::{Cgroups, Parent, Version, memory_groups};
pub use config::{Limits, Run, Sandbox, SlotConfig};
pub use error::SandboxError;
pub use log::{Log, Tail};
pub use outcome::{Cause, Ended, NotStarted, Outcome};
pub use running::{Control, Event, Running};
pub use shim::{Limit, Over, Stream, User};
pub use slot::Slot;
