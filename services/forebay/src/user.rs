//! The user of this machine, as the audit stream names the one who runs a command.

use nix::unistd::{User, getuid};
use service::host_name;

/// `USER@HOST`. A statement of this machine: a client of the bus can state any other.
pub(crate) fn user_at_host() -> String {
    let id = getuid();
    let name = User::from_uid(id).ok().flatten().map_or_else(|| id.to_string(), |user| user.name);
    format!("{name}@{}", host_name())
}
