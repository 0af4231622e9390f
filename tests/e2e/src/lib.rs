//! Real clients against a real farm: Bazel and `BuildStream` build real projects through `forebay up`.
//!
//! [`Place`] is a test's folder, [`Rig`] the farm in it, [`Bazel`] a client with its own workspace and server.
//! Nothing needs the network once `infra/tools/clients.sh` has run.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test harness fails by panicking"
)]

mod bazel;
mod buildstream;
mod found;
mod place;
mod rig;
mod run;
mod spawn;

pub use bazel::{Bazel, Running, Version};
pub use buildstream::BuildStream;
pub use found::{processes_with_word, sha256, until};
pub use place::Place;
pub use rig::Rig;
pub use run::Run;
pub use spawn::{HIT, REMOTE, Spawn};

/// Returns whether all tests should run, not only those that fit into `make test`.
pub fn everything() -> bool {
    let wanted = std::env::var("FOREBAY_E2E").is_ok_and(|form| form == "all");
    if !wanted {
        eprintln!("skipped: `make e2e` runs it");
    }
    wanted
}
