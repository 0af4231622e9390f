//! Names and addresses of this machine.

use std::net::IpAddr;

/// Whether a host, with or without the brackets of an IPv6 address, is reached from this machine only.
pub fn is_loopback_host(host: &str) -> bool {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a listen address, such as `127.0.0.1:8080`, is reached from this machine only.
pub fn is_loopback_listen(listen: &str) -> bool {
    is_loopback_host(listen.rsplit_once(':').map_or(listen, |(host, _)| host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "::1", "[::1]"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["", "10.0.0.1", "0.0.0.0", "::", "localhost.evil.com", "127.0.0.1.evil.com"] {
            assert!(!is_loopback_host(host), "{host}");
        }
        assert!(is_loopback_listen("127.0.0.1:80") && is_loopback_listen("[::1]:80"));
        assert!(!is_loopback_listen("0.0.0.0:80") && !is_loopback_listen("[::]:80"));
    }
}
