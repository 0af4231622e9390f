//! What a followed build does now, as lines of text.

use model::{BuildRecord, Context, Millis, Phase};

use crate::bytes_text::age;

/// The phase that a build is in, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BuildStatus {
    /// What happens, without control characters.
    what: String,
    since: Millis,
}

const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// Time for which a frame of the spinner is shown.
const FRAME_MS: u64 = 120;

impl BuildStatus {
    /// The phase that `record` starts; none if the build ended.
    pub(crate) fn of(record: &BuildRecord) -> Option<Self> {
        let (what, since) = match &record.phase {
            Phase::Enqueued => ("waiting for a workspace", record.queue.enqueued_at_ms),
            Phase::InProgress { invocation } if record.build.context == Context::Empty => {
                ("running, no output yet", invocation.started_at_ms)
            }
            Phase::InProgress { invocation } => ("preparing the workspace", invocation.started_at_ms),
            Phase::Finished { .. } => return None,
        };
        Some(Self { what: what.to_owned(), since })
    }

    /// Says more about the same phase; control characters of `what` are escaped already.
    pub(crate) fn detail(&mut self, what: String) {
        self.what = what;
    }

    /// The command or job runs, since `prepared_seconds` after the start of the attempt.
    pub(crate) fn prepared(&mut self, prepared_seconds: f64) {
        let took = std::time::Duration::try_from_secs_f64(prepared_seconds).unwrap_or_default();
        *self = Self { what: "running, no output yet".to_owned(), since: self.since.after(took) };
    }

    /// The build printed something or its tasks run.
    pub(crate) fn runs(&mut self) {
        if self.what != "running" {
            "running".clone_into(&mut self.what);
        }
    }

    pub(crate) fn since(&self) -> Millis {
        self.since
    }

    /// The line that shows it at `now`.
    pub(crate) fn line(&self, now: Millis) -> String {
        let frame = (now.0 / FRAME_MS) as usize % FRAMES.len();
        let frame = FRAMES.get(frame).copied().unwrap_or_default();
        format!("{frame} {} {}", self.what, age(self.since, now))
    }
}
