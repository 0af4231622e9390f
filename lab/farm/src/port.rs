//! Ports that stay reserved while a server is dead.

use std::{
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    sync::atomic::{AtomicU16, Ordering},
};

/// A port outside the range of ephemeral ports, locked against other tests. Released when dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: UnixListener,
}

const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

impl Port {
    /// Reserves a port that no process listens on and no other test has.
    pub fn reserve() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let start = u16::try_from(std::process::id().wrapping_mul(7919) % u32::from(COUNT)).unwrap_or(0);
        for _ in 0..COUNT {
            let number = FIRST + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % COUNT;
            let Some(lock) = lock(number) else { continue };
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no free port from {FIRST} on");
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// Locks a port against the tests of all users of this machine; `None` if another test has it. The lock is an abstract socket:
/// it belongs to the network, as the port does, and leaves no file behind.
fn lock(number: u16) -> Option<UnixListener> {
    let name = format!("forebay-test-port-{number}");
    let address = SocketAddr::from_abstract_name(name).expect("the name of a port lock is short");
    UnixListener::bind_addr(&address).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_locked_until_it_is_dropped() {
        let port = Port::reserve();
        assert!(lock(port.number()).is_none());
        let number = port.number();
        drop(port);
        assert!(lock(number).is_some());
    }
}
