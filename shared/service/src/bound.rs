//! The addresses of servers, as their clients use them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address on which a server listens, with the scheme of its URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// `http`, `https`, `grpc` or `grpcs`.
    pub scheme: &'static str,
    pub address: SocketAddr,
}

impl Bound {
    /// The URL at which a client on this machine reaches it.
    pub fn local_url(self) -> String {
        let Self { scheme, mut address } = self;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
        }
        format!("{scheme}://{address}")
    }

    /// The URL at which a client on the host `asker` reaches it on the host `own`; none if it cannot.
    pub fn url_for(self, asker: &str, own: &str) -> Option<String> {
        let is_here = asker.is_empty() || asker == own;
        match self.address.ip() {
            ip if ip.is_unspecified() && !is_here => {
                Some(format!("{}://{own}:{}", self.scheme, self.address.port()))
            }
            ip if ip.is_loopback() && !is_here => None,
            _ => Some(self.local_url()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bound;

    fn bound(address: &str) -> Bound {
        Bound { scheme: "http", address: address.parse().unwrap() }
    }

    #[test]
    fn the_url_can_be_connected_to() {
        assert_eq!(bound("127.0.0.1:80").local_url(), "http://127.0.0.1:80");
        assert_eq!(bound("0.0.0.0:81").local_url(), "http://127.0.0.1:81");
        assert_eq!(bound("[::]:82").local_url(), "http://[::1]:82");
    }

    #[test]
    fn an_address_is_one_that_the_asker_can_use() {
        let at = |address: &str, asker: &str| bound(address).url_for(asker, "a");
        assert_eq!(at("127.0.0.1:80", "a").unwrap(), "http://127.0.0.1:80");
        assert_eq!(at("127.0.0.1:80", "b"), None);
        assert_eq!(at("0.0.0.0:80", "a").unwrap(), "http://127.0.0.1:80");
        assert_eq!(at("0.0.0.0:80", "b").unwrap(), "http://a:80");
        assert_eq!(at("10.1.2.3:80", "b").unwrap(), "http://10.1.2.3:80");
    }
}
