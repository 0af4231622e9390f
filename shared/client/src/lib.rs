//! Client of a Forebay farm: calls of the request/reply API, and watching builds.
//!
//! Used by the command line, the HTTP gateway and the tests.

mod archived_console;
mod calls;
mod error;
mod event;
mod filter;
mod frame;
mod line;
mod queue;
mod watch;

pub use archived_console::ArchivedConsole;
pub use calls::Client;
pub use error::ClientError;
pub use event::{WatchBody, WatchEvent};
pub use filter::WatchFilter;
pub use frame::{Frame, FrameContent, FramePart};
pub use line::{BazelEventLine, FramePartLine, WatchLine, WatchLineBody};
pub use queue::{Followed, Following, QueuePlace, UnknownKind, WatchKind};
pub use watch::Watch;
