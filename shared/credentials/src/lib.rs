//! How a process reaches nats-server and Redis: their addresses, its key, and TLS.
//!
//! [`Server`] is an address with [`Credentials`], which name files. Keys are read again at each connection, so that a rotated
//! key needs no restart.

mod key;
mod key_file;
mod seed;
mod server;
mod tls;
mod token;
mod user;
mod user_key;

pub use key::{KeyError, PublicKey};
pub use key_file::{KeyFile, KeyFileError};
pub use seed::{Seed, SeedError, SeedFault, private_text};
pub use server::{Credentials, Server};
pub use tls::{PemFiles, PemTexts, TlsFault};
pub use token::{Expiry, claims};
pub use user::{BusUser, UserFault};
pub use user_key::{UserKey, UserToken};
