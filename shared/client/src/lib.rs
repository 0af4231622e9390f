//! Client of a Forebay farm: calls of the request/reply API, watching builds, and reading windows of their logs.
//!
//! Used by the command line, the HTTP gateway and the tests.

mod archived_console;
mod audit;
mod builds;
mod calls;
mod environments;
mod error;
mod event;
mod filter;
mod frame;
mod kind;
mod line;
mod log;
mod orders;
mod publish;
mod queue;
mod tasks;
pub mod text;
mod watch;

pub use archived_console::ArchivedConsole;
pub use calls::Client;
pub use error::ClientError;
pub use event::{WatchBody, WatchEvent};
pub use filter::WatchFilter;
pub use frame::{Blobs, Frame, FrameContent, FramePart};
pub use kind::{UnknownKind, WatchKind};
pub use line::{BazelEventLine, FramePartLine, WatchLine, WatchLineBody};
pub use log::{
    BuildLogs, FoundLine, FoundLines, LINES_DEFAULT, LINES_MAX, LogGap, LogLine, LogLines, LogRange,
    LogSource, LogWindow, OpenLog, PieceContent, PiecePlace, RunChoice, RunLog, StoredSource, read_lines,
};
pub use orders::{Order, Ordered};
pub use queue::{Followed, Following, QueuePlace};
pub use tasks::TasksSoFar;
pub use watch::Watch;
