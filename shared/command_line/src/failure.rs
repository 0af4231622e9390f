//! Failures of commands: an exit code and one line on stderr.

use std::{error::Error, io::Write as _, process::ExitCode};

use bus::BusError;
use client::ClientError;
use remote::RemoteError;
use settings::SettingsError;
use telemetry::escaped;
use transfer::TransferError;

/// Exit code of a command that succeeded.
pub const SUCCEEDED: u8 = 0;
/// Exit code of a failed build or command.
pub const FAILED: u8 = 1;
/// Exit code for invalid usage or input.
pub const USAGE: u8 = 2;
/// Exit code of a cancelled or expired build.
pub const CANCELLED: u8 = 3;
/// Exit code if a server or service is unreachable.
pub const UNREACHABLE: u8 = 4;

/// The failure of a command.
#[derive(Debug)]
pub struct Failure {
    exit: u8,
    /// `None` if the reader of stdout has closed it, which is not reported as a failure.
    line: Option<String>,
}

impl Failure {
    /// A failure of `what` with its cause.
    pub fn new(exit: u8, what: impl Into<String>, cause: &dyn Error) -> Self {
        Self { exit, line: Some(format!("{}: {}", what.into(), telemetry::error_chain(cause))) }
    }

    /// A failure that `line` describes completely.
    pub fn plain(exit: u8, line: impl Into<String>) -> Self {
        Self { exit, line: Some(line.into()) }
    }

    /// A failure because of invalid usage or input.
    pub fn usage(line: impl Into<String>) -> Self {
        Self::plain(USAGE, line)
    }

    /// The reader of stdout has closed it: the command ends silently with exit code 0.
    pub fn closed() -> Self {
        Self { exit: 0, line: None }
    }

    /// Whether the reader of stdout has closed it.
    pub fn is_closed(&self) -> bool {
        self.line.is_none()
    }

    /// The same failure with `more` appended to its line.
    #[must_use]
    pub fn with(self, more: &str) -> Self {
        Self { line: self.line.map(|line| format!("{line}; {more}")), ..self }
    }

    /// The line, for callers that do not report the failure themselves.
    pub fn line(&self) -> &str {
        self.line.as_deref().unwrap_or_default()
    }

    /// Whether waiting and retrying may help.
    pub fn is_unreachable(&self) -> bool {
        self.exit == UNREACHABLE
    }

    /// Prints the line to stderr and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if let Some(line) = &self.line {
            say(line);
        }
        ExitCode::from(self.exit)
    }

    /// A failure that `error` and its sources describe completely.
    pub fn of(exit: u8, error: &dyn Error) -> Self {
        Self::plain(exit, telemetry::error_chain(error))
    }
}

/// Prints one line to stderr.
pub fn say(line: &str) {
    crate::live::clear();
    // Stderr may be closed.
    let _ = writeln!(std::io::stderr(), "forebay: {}", escaped(&line.replace('\n', " ")));
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

/// What to do about a certificate that is not accepted.
pub const TRUST: &str = "set gateway_ca_file (or FOREBAY_GATEWAY_CA_FILE) to the authority of the certificate of the gateway, which must name its address";

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        let failure = Self::of(exit_code(&error), &error);
        if error.is_untrusted() {
            return failure.with(TRUST);
        }
        if error.lacks_credentials() {
            return failure.with(
                "set gateway_token_file (or FOREBAY_GATEWAY_TOKEN_FILE) to a file with an API key or token",
            );
        }
        failure
    }
}

fn exit_code(error: &RemoteError) -> u8 {
    if error.is_unreachable() {
        UNREACHABLE
    } else if error.is_invalid_request() || error.is_untrusted() {
        USAGE
    } else {
        FAILED
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        let exit = match &error {
            TransferError::Scan(_) | TransferError::Read { .. } => USAGE,
            TransferError::Thread { .. }
            | TransferError::Create { .. }
            | TransferError::Link { .. }
            | TransferError::Incomplete { .. } => FAILED,
            TransferError::Remote(error) => exit_code(error),
        };
        Self::of(exit, &error)
    }
}
