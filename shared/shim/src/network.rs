//! Creates and enters the network that several shims share.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;

use nix::sched::{CloneFlags, setns, unshare};

use crate::namespaces::unshare_as_own_user;
use crate::private_network::PrivateNetwork;
use crate::server::start_loopback;

/// Moves this process into a network.
pub(crate) fn enter(network: PrivateNetwork) -> io::Result<()> {
    let entered = match network {
        PrivateNetwork::New => create(),
        PrivateNetwork::Of(pid) => join(pid),
    };
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot enter the network {}: {error}", network.text()))
    };
    entered.map_err(named)
}

fn create() -> io::Result<()> {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        unshare_as_own_user(CloneFlags::CLONE_NEWNET)?;
    }
    start_loopback()
}

fn join(pid: u32) -> io::Result<()> {
    let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}"));
    let network = open("net")?;
    if setns(network.as_fd(), CloneFlags::CLONE_NEWNET).is_err() {
        // Its creator has the right only in a user namespace of its own.
        setns(open("user")?.as_fd(), CloneFlags::CLONE_NEWUSER)?;
        setns(network.as_fd(), CloneFlags::CLONE_NEWNET)?;
    }
    Ok(())
}
