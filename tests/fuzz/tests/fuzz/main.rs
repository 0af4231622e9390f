//! Each parser of what strangers send, with inputs that are wrong. It must not panic, take longer than a second or
//! write where it should not, and what it accepts means the same when it is written and read again.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

mod archives;
mod blobs;
mod build_events;
mod bus_messages;
mod choice;
mod console;
mod credentials;
mod frames;
mod names;
mod remote_execution;
mod samples;
mod store;
mod texts;
