//! Which addresses may be connected to.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use model::FetchHost;
use policy::fetch;

/// Why a host cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    #[error(
        "{host} is at {address}, an address of this machine, its network link or its cloud, which is closed unless the \
         setting fetch_hosts names the host"
    )]
    Closed {
        /// The host with its port.
        host: String,
        address: IpAddr,
    },
    #[error("the name {host} cannot be resolved")]
    Unresolved { host: String, source: io::Error },
}

/// The hosts that may be connected to.
#[derive(Debug, Clone)]
pub struct Reach {
    /// Hosts that are open although their addresses are closed; `None` if every address is open.
    hosts: Option<Arc<[FetchHost]>>,
}

impl Reach {
    /// Every host, for downloads that a user asks for on their own machine.
    pub fn everywhere() -> Self {
        Self { hosts: None }
    }

    /// Hosts at open addresses, and those that the operator named.
    pub fn within(hosts: &[FetchHost]) -> Self {
        Self { hosts: Some(hosts.into()) }
    }

    /// Whether the operator named this host: it may be anywhere.
    pub fn is_named(&self, host: &str, port: u16) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| fetch::is_named(hosts, host, port))
    }

    /// Resolves a host, given by name or as an IP address, to those of its addresses that may be connected to. The result
    /// has at least one.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ReachError> {
        let unresolved = |source| ReachError::Unresolved { host: host.to_owned(), source };
        let found: Vec<SocketAddr> =
            tokio::net::lookup_host((host, port)).await.map_err(unresolved)?.collect();
        let Some(first) = found.first().copied() else {
            return Err(unresolved(io::Error::other("it has no address")));
        };
        let is_open = |address: &SocketAddr| {
            let of = |hosts: &Arc<[FetchHost]>| fetch::may_connect(hosts, host, port, address.ip());
            self.hosts.as_ref().is_none_or(of)
        };
        let open: Vec<SocketAddr> = found.into_iter().filter(is_open).collect();
        if open.is_empty() {
            let shown =
                if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            return Err(ReachError::Closed { host: shown, address: first.ip() });
        }
        Ok(open)
    }
}
