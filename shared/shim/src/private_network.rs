//! A network that several shims share and that reaches nothing outside, and how to ask a server in it.

use std::ffi::OsString;
use std::net::Ipv4Addr;

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

/// A question to a server on the loopback interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// Address of the server.
    pub(crate) address: Ipv4Addr,
    pub(crate) probe: Probe,
}

/// What a server on the loopback interface must do to count as ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Accept a connection on this TCP port.
    Tcp(u16),
    /// Answer a GET of this path with a status from 200 to 399.
    Http { port: u16, path: String },
}

impl Question {
    /// Its form on the shim's command line.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let probe = match &self.probe {
            Probe::Tcp(port) => vec!["--tcp".into(), port.to_string().into()],
            Probe::Http { port, path } => vec!["--http".into(), port.to_string().into(), path.into()],
        };
        ["--at".into(), self.address.to_string().into()].into_iter().chain(probe).collect()
    }
}
