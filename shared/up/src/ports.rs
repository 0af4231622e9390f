//! Free and occupied ports, and the ports of addresses and URLs.

use std::net::{Ipv4Addr, TcpListener};

use invariant::Present as _;

use crate::error::UpError;

/// A free port. Another process may occupy it before it is used; the caller then tries another one.
pub(crate) fn any() -> Result<u16, UpError> {
    let refused = |source| UpError::System { what: "choosing a port", source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
    Ok(listener.local_addr().map_err(refused)?.port())
}

/// Fails if a process listens on `port` of `host`. Port 0 is always free.
pub(crate) fn check(name: &'static str, host: &str, port: u16, flag: &'static str) -> Result<(), UpError> {
    match TcpListener::bind((host, port)) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(UpError::Busy { name, port, flag })
        }
        // Other errors of the address are reported by the server that uses it.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Splits `HOST:PORT`. An address without a port has port 0.
pub(crate) fn split(address: &str) -> (&str, u16) {
    match address.rsplit_once(':') {
        Some((host, port)) => (host.trim_matches(['[', ']']), port.parse().unwrap_or(0)),
        None => (address, 0),
    }
}

/// Replaces the port of `HOST:PORT`.
pub(crate) fn with_port(address: &str, port: u16) -> String {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    format!("{host}:{port}")
}

/// `HOST:PORT` of a URL, with `default_port` if it has no port.
pub(crate) fn address_of(url: &str, default_port: u16) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().present("the first part of a text");
    let address = authority.rsplit_once('@').map_or(authority, |(_, address)| address);
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { address.to_owned() } else { format!("{address}:{default_port}") }
}

#[cfg(test)]
mod tests {
    use super::{address_of, any, check, split, with_port};

    #[test]
    fn a_taken_port_is_noticed() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = check("nats-server", "127.0.0.1", port, "--nats-port").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(&port.to_string()) && error.to_string().contains("--nats-port"));
        check("nats-server", "127.0.0.1", any().unwrap(), "--nats-port").unwrap();
        check("nats-server", "127.0.0.1", 0, "--nats-port").unwrap();
    }

    #[test]
    fn addresses() {
        assert_eq!(split("127.0.0.1:8080"), ("127.0.0.1", 8080));
        assert_eq!(split("[::1]:8080"), ("::1", 8080));
        assert_eq!(with_port("127.0.0.1:8080", 0), "127.0.0.1:0");
        assert_eq!(with_port("[::1]:8080", 9), "[::1]:9");
        for (url, address) in [
            ("redis://127.0.0.1:6379", "127.0.0.1:6379"),
            ("redis://user:pa@ss@host:7000/0", "host:7000"),
            ("rediss://host/0?protocol=resp3", "host:6379"),
            ("host:1", "host:1"),
            ("redis://[::1]:9/", "[::1]:9"),
        ] {
            assert_eq!(address_of(url, 6379), address, "{url}");
        }
    }
}
