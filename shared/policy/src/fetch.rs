//! What a farm fetches for its clients, and from where: otherwise a client could reach through the farm what is closed
//! to the client itself.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

use model::FetchHost;

/// Addresses of services of a cloud that give a machine its credentials, and that are not link-local.
const OF_CLOUDS: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether downloads may connect to `address` and `port`, which belong to the host `name`.
pub fn may_connect(hosts: &[FetchHost], name: &str, port: u16, address: IpAddr) -> bool {
    !is_closed(address) || hosts.iter().any(|host| host.is_address(address, port) || host.is_name(name, port))
}

/// Whether the operator named this host, wherever it is.
pub fn is_named(hosts: &[FetchHost], name: &str, port: u16) -> bool {
    hosts.iter().any(|host| host.is_name(name, port))
}

/// Whether an address is that of the machine itself, of its link, of a cloud's metadata, or of no single machine.
pub fn is_closed(address: IpAddr) -> bool {
    if OF_CLOUDS.contains(&address) {
        return true;
    }
    match address {
        IpAddr::V4(address) => {
            address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                // All of 0.0.0.0/8 is "this host" to some systems.
                || address.octets().starts_with(&[0])
        }
        IpAddr::V6(address) => {
            address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_unicast_link_local()
                || inner(address).is_some_and(|inner| is_closed(IpAddr::V4(inner)))
        }
    }
}

/// The IPv4 address that packets to an IPv6 address may reach: mapped, compatible, translated (NAT64) or 6to4.
fn inner(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let low = || Ipv4Addr::from_bits(u32::try_from(address.to_bits() & u128::from(u32::MAX)).unwrap_or(0));
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, _, _]
        | [0, 0, 0, 0, 0xffff, 0, _, _]
        | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => Some(low()),
        [0x2002, high, low, ..] => Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))),
        _ => None,
    }
}

/// Whether a resolved path is one of the resolved `folders`, or below one.
pub fn is_below(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(text: &str) -> bool {
        is_closed(text.parse().unwrap())
    }

    #[test]
    fn c4_addresses_of_the_machine_and_its_link_are_closed() {
        for text in [
            "127.0.0.1",
            "127.255.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0.0.0.0",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
        ] {
            assert!(closed(text), "{text}");
        }
        for text in
            ["10.0.0.1", "192.168.1.1", "172.16.0.1", "8.8.8.8", "2001:db8::1", "fd00::1", "::ffff:10.0.0.1"]
        {
            assert!(!closed(text), "{text}");
        }
    }

    #[test]
    fn a_named_host_is_open_wherever_it_is() {
        let hosts: Vec<FetchHost> =
            ["127.0.0.1:80", "db.example.com"].map(|text| text.parse().unwrap()).into();
        let may = |name, port, address: &str| may_connect(&hosts, name, port, address.parse().unwrap());
        assert!(may("x", 80, "127.0.0.1") && may("x", 80, "::ffff:127.0.0.1") && !may("x", 81, "127.0.0.1"));
        assert!(may("DB.example.com", 5432, "::1") && !may("b.example.com", 5432, "::1"));
        assert!(is_named(&hosts, "db.example.com", 1) && !is_named(&hosts, "127.0.0.1", 80));
    }

    #[test]
    fn c2_a_path_is_below_a_folder_by_whole_names() {
        let folders = ["/srv/src".into()];
        assert!(is_below("/srv/src".as_ref(), &folders) && is_below("/srv/src/a".as_ref(), &folders));
        assert!(!is_below("/srv/src2".as_ref(), &folders) && !is_below("/srv".as_ref(), &folders));
        assert!(!is_below("/".as_ref(), &[]));
    }
}
