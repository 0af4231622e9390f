//! Who may use the bus and the index, and for what: the tenants of a farm with their users, and the farm's own services.
//!
//! [`Access`] is the description, which a file keeps ([`Access::parse`], [`Access::to_toml`]) and [`Change`]s alter. From
//! it, [`nats_config`] makes the accounts of nats-server and [`redis_acl`] the users of Redis. Public keys and hashes are
//! in the description; seeds are only in files of their own ([`SeedFolder`]).
//!
//! If the description has an operator ([`Jwt`]), the same accounts and users are JWTs instead: [`nats_config_with_jwts`] makes
//! what nats-server needs to verify them, [`SeedFolder::issue`] those of users, and [`push`] changes accounts while it runs.

mod authority;
mod change;
mod description;
mod file;
mod issue;
mod jwt;
mod keys;
mod make_change;
mod names;
mod nats;
mod probe;
mod push;
mod redis;
mod reload;
mod role;
mod seed_folder;
mod services;
mod signer;
mod signing;
mod tenants;
mod tokens;

pub use authority::{Authority, CertificateError, Certified, Purpose};
pub use change::{Change, ChangeError, Rotation};
pub use description::{Access, AccessError, Publisher, Tenant, Watcher};
pub use file::FileError;
pub use issue::IssuedTokens;
pub use jwt::{AccountName, Days, Jwt};
pub use keys::{Keys, RedisHash, ServiceKey};
pub use names::{Instance, NameError, ServiceName, TenantName, UserName, UserOf, Who};
pub use nats::{nats_config, nats_config_with_jwts};
pub use probe::{Finding, probe};
pub use push::{PushError, Pushed, push};
pub use redis::redis_acl;
pub use reload::{ReloadError, reload};
pub use role::Role;
pub use seed_folder::{SeedFolder, Slot};
pub use services::rights_of;
pub use signer::{Signer, SigningStep};
pub use signing::{AccountKey, SigningFault};
pub use tenants::{Kind, User};
