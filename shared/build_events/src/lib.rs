//! Build events that Bazel and other tools publish: the messages of `google.devtools.build.v1`, the parts of the Build
//! Event Protocol that Forebay reads, what is removed from them before they are stored, and how they are packed into
//! messages of the bus. This crate does no I/O.

pub mod bep;
mod event_name;
mod facts;
mod pack;
mod redact;
pub mod service;
mod wire;

pub use event_name::{EventName, UnknownEventName};
pub use facts::{Fact, Summary, Target, TestRun, fact};
pub use pack::{PackError, pack, unpack};
pub use redact::{REDACTED, redact};
pub use wire::Malformed;
