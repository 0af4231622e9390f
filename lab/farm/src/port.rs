//! Ports that stay reserved while a server is dead.

use std::{
    fs::{self, File},
    net::TcpListener,
    sync::atomic::{AtomicU16, Ordering},
};

use nix::fcntl::{Flock, FlockArg};

/// A port outside the range of ephemeral ports, locked against other tests. Released when dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: Flock<File>,
}

const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

impl Port {
    /// Reserves a port that no process listens on and no other test has.
    pub fn reserve() -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let folder = std::env::temp_dir().join("forebay-test-ports");
        fs::create_dir_all(&folder).expect("the folder of port locks");
        let start = u16::try_from(std::process::id().wrapping_mul(7919) % u32::from(COUNT)).unwrap_or(0);
        for _ in 0..COUNT {
            let number = FIRST + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % COUNT;
            let file = File::create(folder.join(number.to_string())).expect("a port lock");
            let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { continue };
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
