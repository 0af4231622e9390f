//! A network that several shims share and that reaches nothing outside, and how to ask a server in it.

use std::ffi::OsString;

/// The network namespace of a shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivateNetwork {
    /// A new one, which has only a loopback interface.
    New,
    /// That of the shim with this process id ([`crate::Shim::pid`]), which must be alive.
    Of(u32),
}

const NEW: &str = "new";

impl PrivateNetwork {
    /// Its form on the shim's command line.
    pub(crate) fn text(self) -> String {
        match self {
            Self::New => NEW.to_owned(),
            Self::Of(pid) => pid.to_string(),
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text == NEW { Some(Self::New) } else { text.parse().ok().map(Self::Of) }
    }
}

/// What a server on the loopback interface must do to count as ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Accept a connection on this TCP port.
    Tcp(u16),
    /// Answer a GET of this path with a status from 200 to 399.
    Http { port: u16, path: String },
}

impl Probe {
    /// Its form on the shim's command line.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        match self {
            Self::Tcp(port) => vec!["--tcp".into(), port.to_string().into()],
            Self::Http { port, path } => vec!["--http".into(), port.to_string().into(), path.into()],
        }
    }
}
