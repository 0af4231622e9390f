//! A whole farm for tests: real servers and services, each a separate process, with their own ports and folders.
//!
//! Dropping the values ends and removes everything, also after a panic. If a test runner is killed, the guard, a
//! shell that waits for the end of a pipe, notices and does the same. `FOREBAY_KEEP=1` keeps the folders; the last
//! lines of the logs are printed when a test panics.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test harness fails by panicking"
)]

mod binary;
mod builder;
mod clock;
mod effects;
mod farm;
mod guard;
mod link;
mod locks;
mod machine;
mod object_server;
mod openid_provider;
mod port;
mod process;
mod secured;
mod servers;
mod service;
mod small_disk;
mod topology;
mod traffic;
mod up;

pub use binary::{forebay_binary, repository, tool, with_tools};
pub use builder::{ACTION_SERVICES, Builder, SERVICES};
pub use clock::WrongClock;
pub use effects::{Effect, Effects};
pub use farm::{Farm, Output, bare_command};
pub use guard::Guard;
pub use link::{Cut, Link};
pub use locks::{Authority, CLIENT, Certified, Locks};
pub use machine::Machine;
pub use object_server::ObjectServer;
pub use openid_provider::OpenIdProvider;
pub use port::Port;
pub use process::{Process, alive, start_ticks};
pub use servers::Servers;
pub use service::{Listening, ServiceProcess};
pub use small_disk::SmallDisk;
pub use up::{Up, processes_naming};

/// Time limit for operations without waiting, on a machine under load.
pub const SOON: std::time::Duration = std::time::Duration::from_secs(20);
