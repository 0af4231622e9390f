//! A whole farm for tests: real servers and services, each a process of its own, with ports and folders of its own.
//!
//! Everything is ended and removed when the values are dropped, also by a panic. A test runner that is killed is
//! noticed by the guard, a shell that waits for the end of a pipe: it does the same then. `FOREBAY_KEEP=1` keeps the
//! folders; the logs' last lines are printed when a test panics.
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
mod machine;
mod port;
mod process;
mod servers;
mod service;
mod small_disk;
mod up;

pub use binary::{forebay_binary, repository, tool, with_tools};
pub use builder::{ACTION_SERVICES, Builder, SERVICES};
pub use clock::WrongClock;
pub use effects::{Effect, Effects};
pub use farm::{Farm, Output, bare_command};
pub use guard::Guard;
pub use link::{Cut, Link};
pub use machine::Machine;
pub use port::Port;
pub use process::{Process, alive, start_ticks};
pub use servers::Servers;
pub use service::{Listening, ServiceProcess};
pub use small_disk::SmallDisk;
pub use up::{Up, processes_naming};

/// As long as anything that needs no waiting may take on a machine with much to do.
pub const SOON: std::time::Duration = std::time::Duration::from_secs(20);
