//! Runs the command of one action in a prepared folder, and reports how it ended.
//!
//! A [`Slot`] owns one process (a [`shim`]) that runs many commands, one at a time. All processes of a command are
//! dead before its [`Outcome`] is reported, and die with the executor. Output goes from the command straight into
//! files ([`Log`]), which can be followed while it runs.
//!
//! # What a command can reach
//!
//! An executor that is root gives its slots another user ([`SlotConfig::user`]). That user owns the folders of an
//! input root, but not its files, which are links into a cache: it can neither write them nor change their mode,
//! and no program can give it that right.
//!
//! With [`Sandbox::Bubblewrap`] a command is also in separate namespaces: it has only a private loopback network,
//! sees only its processes and IPC objects, has a private `/tmp`, a read-only system without the rest of the host,
//! and its input root at [`bubblewrap::INSIDE`]`/...`. There are two variants:
//!
//! * *Kept*: bubblewrap creates the sandbox once for a slot, around the shim, which runs one command after another
//!   in it at the cost of a plain process. Between two commands the shim kills all processes, empties `/tmp`,
//!   `/dev/shm` and `/dev/mqueue`, and checks for other remains: System V IPC objects and sockets that are not
//!   fully closed. If there are any, the sandbox is discarded and the next command gets a new one.
//! * *Alone*: bubblewrap is started for each command. This is for commands with their input root as `/`
//!   ([`Run::root_is_input`]), with devices or with the network of the host, and for an executor that is not root: its commands run as the same user, so only a
//!   separate mount restricts a command to its input root.
//!
//! A command may have an image ([`Run::image`]): it sees the files of the image, read-only, and nothing of the host but
//! `/sys`. Its sandbox is kept, too, until a command needs another image.
//!
//! A command may have [`Services`]: other commands, each in a slot of its own, that run beside it in one [`SharedNetwork`],
//! which reaches nothing outside.
//!
//! A command may have an [`Interactor`]: another command in a slot of its own, which reads what it writes and writes what it
//! reads. They share nothing but two pipes ([`JoinedStreams`]).
//!
//! With [`Sandbox::None`] a command sees the host as that user does.

pub mod bubblewrap;
mod cgroups;
mod config;
mod error;
mod growth;
mod image_root;
mod interactor;
mod joined_streams;
mod limits;
mod loader;
mod log;
mod mounts;
mod nodes;
mod outcome;
mod own_parts;
mod private;
mod running;
mod services;
mod shared_network;
mod slot;
mod workspace;

pub use bubblewrap::{Bubblewrap, Network};
pub use cgroups::{Cgroups, CpuLimits, Parent, Version, control_groups};
pub use config::{Limits, Run, Sandbox, SlotConfig};
pub use error::SandboxError;
pub use image_root::ImageRoot;
pub use interactor::Interactor;
pub use joined_streams::JoinedStreams;
pub use log::{Log, Tail};
pub use mounts::mounts_overlays;
pub use nodes::make_nodes;
pub use outcome::{Ended, NotStarted, Outcome};
pub use own_parts::{OwnParts, SecretMount};
pub use running::{Control, Event, Running};
pub use services::{Readiness, Service, ServiceEnd, ServiceFault, Services, StopMode};
pub use shared_network::SharedNetwork;
pub use shim::{Cause, Cores, Deadline, Limit, Over, Probe, Stream, Switches, User};
pub use slot::Slot;
pub use workspace::{WorkspaceBounds, WorkspaceLimits, WorkspaceSandbox};
