//! What the programs `forebay` and `forebay-lab` share as commands: their global options, exit codes, and output.

pub mod failure;
pub mod globals;
pub mod live;
pub mod stdout;
pub mod wait;

mod connect;
mod pair;
mod process;
mod program;

pub use connect::connect;
pub use pair::pair;
pub use process::{Log, Process};
pub use program::find_program;
