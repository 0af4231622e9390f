//! Hosts that an operator opens to downloads.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const WANTED: &str = "expected a host name, `*.` and a domain, an address, or a network such as 10.0.0.0/8, each with or \
                      without `:PORT`; an IPv6 address with a port is in brackets";

/// A text that names no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid host {0:?}: {WANTED}")]
pub struct ParseFetchHostError(String);

/// A host, or several, that downloads may reach wherever it is: by name, or by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchHost {
    hosts: Hosts,
    /// The only port that is meant; `None` means all ports.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    /// The host of this name, in lower case.
    Name(String),
    /// All hosts below this domain, in lower case.
    Below(String),
    /// The addresses of a network, or one address.
    Network(IpNet),
}

impl FetchHost {
    /// All addresses of the machine itself.
    pub fn loopback() -> [Self; 2] {
        let network = |network| Self { hosts: Hosts::Network(network), port: None };
        let v4 = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
        [network(v4.into()), network(IpAddr::V6(Ipv6Addr::LOCALHOST).into())]
    }

    /// Whether the host `name` at `port` is meant by its name.
    pub fn is_name(&self, name: &str, port: u16) -> bool {
        let name = name.to_ascii_lowercase();
        self.has_port(port)
            && match &self.hosts {
                Hosts::Name(host) => *host == name,
                Hosts::Below(domain) => name
                    .strip_suffix(domain.as_str())
                    .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
                Hosts::Network(_) => false,
            }
    }

    /// Whether `address` at `port` is meant. An IPv4 address inside an IPv6 address is that IPv4 address too.
    pub fn is_address(&self, address: IpAddr, port: u16) -> bool {
        let Hosts::Network(network) = &self.hosts else { return false };
        self.has_port(port) && network.contains(&address.to_canonical())
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|only| only == port)
    }
}

impl FromStr for FetchHost {
    type Err = ParseFetchHostError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseFetchHostError(text.to_owned());
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(None) => return Err(invalid()),
            Some(Some((host, ""))) => (host, None),
            Some(Some((host, port))) => (host, Some(port.strip_prefix(':').ok_or_else(invalid)?)),
            // Several colons are those of an IPv6 address.
            None if text.matches(':').count() == 1 => {
                text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))
            }
            None => (text, None),
        };
        let port = port.map(str::parse).transpose().map_err(|_| invalid())?;
        let hosts = hosts(host).ok_or_else(invalid)?;
        Ok(Self { hosts, port })
    }
}

fn hosts(text: &str) -> Option<Hosts> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Hosts::Network(address.to_canonical().into()));
    }
    if let Ok(network) = text.parse() {
        return Some(Hosts::Network(network));
    }
    let name = text.to_ascii_lowercase();
    let is_name = |name: &str| {
        let is_part = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        // What ends in a number is an address to those who resolve it.
        name.split('.').all(is_part)
            && name.rsplit('.').next().is_none_or(|last| last.parse::<u64>().is_err())
    };
    match name.strip_prefix("*.") {
        Some(domain) => is_name(domain).then(|| Hosts::Below(domain.to_owned())),
        None => is_name(&name).then_some(Hosts::Name(name)),
    }
}

impl fmt::Display for FetchHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match &self.hosts {
            Hosts::Name(name) => name.clone(),
            Hosts::Below(domain) => format!("*.{domain}"),
            Hosts::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().to_string()
            }
            Hosts::Network(network) => network.to_string(),
        };
        match self.port {
            None => f.write_str(&host),
            Some(port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Some(port) => write!(f, "{host}:{port}"),
        }
    }
}

impl Serialize for FetchHost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FetchHost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> FetchHost {
        let host: FetchHost = text.parse().unwrap();
        assert_eq!(host.to_string().parse(), Ok(host.clone()));
        host
    }

    #[test]
    fn a_host_is_meant_by_its_name_or_below_its_domain() {
        assert!(host("Git.Example.com").is_name("git.example.COM", 443));
        assert!(!host("example.com").is_name("git.example.com", 443));
        assert!(host("*.example.com").is_name("a.b.example.com", 443));
        for other in ["example.com", ".example.com", "badexample.com"] {
            assert!(!host("*.example.com").is_name(other, 443), "{other}");
        }
        assert!(
            host("localhost:80").is_name("localhost", 80) && !host("localhost:80").is_name("localhost", 81)
        );
    }

    #[test]
    fn an_address_is_meant_by_its_network() {
        let is = |text: &str, address: &str, port| host(text).is_address(address.parse().unwrap(), port);
        assert!(is("127.0.0.1", "127.0.0.1", 1) && !is("127.0.0.1", "127.0.0.2", 1));
        assert!(is("127.0.0.0/8", "127.9.9.9", 1) && !is("127.0.0.0/8", "128.0.0.1", 1));
        assert!(is("127.0.0.0/8", "::ffff:127.0.0.1", 1) && !is("0.0.0.0/0", "::1", 1));
        assert!(is("[::1]:80", "::1", 80) && !is("[::1]:80", "::1", 81) && is("::1", "::1", 81));
        let written: Vec<String> = FetchHost::loopback().iter().map(ToString::to_string).collect();
        assert_eq!(written, ["127.0.0.0/8", "::1"]);
        assert!(is("[fd00::/8]:80", "fd12::1", 80) && is("::/0", "fe80::1", 1));
        assert!(is("10.0.0.0/8:443", "10.1.2.3", 443) && !is("10.0.0.0/8:443", "10.1.2.3", 80));
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a b",
            "http://a",
            "a/8",
            "10.0.0.0/33",
            "[::1",
            "[::1]80",
            "a:",
            "a:x",
            "a..b",
            "1.2.3",
        ] {
            assert!(text.parse::<FetchHost>().is_err(), "{text}");
        }
    }
}
