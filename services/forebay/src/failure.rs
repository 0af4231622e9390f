//! How a command fails: an exit code and one line on stderr.

use std::{error::Error, io::Write as _, process::ExitCode};

use bus::BusError;
use client::ClientError;
use settings::SettingsError;
use store::StoreError;

/// It did what was asked.
pub(crate) const SUCCEEDED: u8 = 0;
/// The build failed, or something did.
pub(crate) const FAILED: u8 = 1;
/// Bad usage or bad input.
pub(crate) const USAGE: u8 = 2;
/// Cancelled or expired.
pub(crate) const CANCELLED: u8 = 3;
/// A server or service is not reachable.
pub(crate) const UNREACHABLE: u8 = 4;

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: u8,
    /// None: whoever read our output went away, which is no failure.
    line: Option<String>,
}

impl Failure {
    /// A failure of `what` for a cause.
    pub(crate) fn new(exit: u8, what: impl Into<String>, cause: &dyn Error) -> Self {
        Self { exit, line: Some(format!("{}: {}", what.into(), telemetry::error_chain(cause))) }
    }

    /// A failure that `line` says all of.
    pub(crate) fn plain(exit: u8, line: impl Into<String>) -> Self {
        Self { exit, line: Some(line.into()) }
    }

    /// Bad usage or bad input.
    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self::plain(USAGE, line)
    }

    /// Nobody reads what is printed: end without a word.
    pub(crate) fn closed() -> Self {
        Self { exit: 0, line: None }
    }

    /// Whether the reader of what is printed has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.line.is_none()
    }

    /// The same failure, and `more` of it.
    pub(crate) fn with(self, more: &str) -> Self {
        Self { line: self.line.map(|line| format!("{line}; {more}")), ..self }
    }

    /// The line, for whoever goes on.
    pub(crate) fn line(&self) -> &str {
        self.line.as_deref().unwrap_or_default()
    }

    /// Whether waiting may help.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.exit == UNREACHABLE
    }

    /// Says so and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if let Some(line) = &self.line {
            say(line);
        }
        ExitCode::from(self.exit)
    }

    /// A failure that `error` says all of.
    pub(crate) fn of(exit: u8, error: &dyn Error) -> Self {
        Self::plain(exit, telemetry::error_chain(error))
    }
}

/// One line on stderr, which may be closed.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "forebay: {}", line.replace('\n', " "));
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::of(error.exit_code(), &error)
    }
}

impl From<BusError> for Failure {
    fn from(error: BusError) -> Self {
        ClientError::from(error).into()
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::of(USAGE, &error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::of(FAILED, &error)
    }
}
