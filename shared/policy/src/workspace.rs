//! Decides which workspace a build gets (section 4.4 of the paper): one whose last build was the same, else one whose
//! last build shares something with each of its targets, else a new one.

mod idle;
mod keys;
mod live;

pub use idle::{Assignment, IdleWorkspaces, Wish};
pub use keys::{BuildKeys, TargetKeys, keys};
pub use live::live_keys;
pub(crate) use live::source_of;

#[cfg(test)]
mod tests;
