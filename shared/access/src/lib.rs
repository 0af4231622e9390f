//! Who may use the bus and the index, and for what: the tenants of a farm with their users, and the farm's own services.
//!
//! [`Access`] is the description, which a file keeps ([`Access::parse`], [`Access::to_toml`]) and [`Change`]s alter. From
//! it, [`nats_config`] makes the accounts of nats-server and [`redis_acl`] the users of Redis. Public keys and hashes are
//! in the description; seeds are only in files of their own ([`SeedFolder`]).

mod authority;
mod change;
mod description;
mod file;
mod keys;
mod make_change;
mod names;
mod nats;
mod probe;
mod redis;
mod reload;
mod role;
mod seed_folder;
mod services;
mod tenants;

pub use authority::{Authority, CertificateError, Certified, Purpose};
pub use change::{Change, ChangeError, Rotation};
pub use description::{Access, AccessError, Publisher, Tenant, Watcher};
pub use file::FileError;
pub use keys::{Keys, RedisHash, ServiceKey};
pub use names::{Instance, NameError, ServiceName, TenantName, UserName, UserOf, Who};
pub use nats::nats_config;
pub use probe::{Finding, probe};
pub use redis::redis_acl;
pub use reload::{ReloadError, reload};
pub use role::Role;
pub use seed_folder::{SeedFolder, Slot};
pub use services::rights_of;
pub use tenants::{Kind, User};
