//! Services of a command, of an action or of a build: commands that serve it while it runs, each in a sandbox and a folder of
//! its own, in a network that only they share.
//!
//! [`CommandServices`] owns the folder with their files, starts and stops them, and says in words why one failed, with the end
//! of what it wrote. Executors and workers give each service its files, its image and its limits ([`Parts`]).

mod limits;
mod logs;
mod services;

pub use limits::sandbox_limits;
pub use logs::end_of;
pub use services::{
    CommandServices, Failure, NoCommand, PATH, PATIENCE, Parts, Stopped, Used, remove_folder,
};
