//! Names of the users of nats-server and Redis.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Name of a user of nats-server and Redis: `ROLE.NAME` of a service, for example `gateway.1`, or `TENANT.USER`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BusUser {
    first: String,
    second: String,
}

/// The file of a seed whose name is not that of a user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} does not have the name that `forebay access` gave it: expected ROLE.NAME.seed or ROLE.NAME.creds, for example gateway.1.seed, because \
     the user is known by it", path.display()
)]
pub struct UserFault {
    path: PathBuf,
}

impl BusUser {
    /// The user `first.second`. Both parts are valid as one token of a subject.
    pub fn new(first: &str, second: &str) -> Self {
        Self { first: first.to_owned(), second: second.to_owned() }
    }

    /// The user whose seed is in this file, by the name of the file.
    ///
    /// # Errors
    ///
    /// Fails if the file is not named `ROLE.NAME.seed`, or `.creds`, or `.next.` before these.
    pub fn of_seed_file(path: &Path) -> Result<Self, UserFault> {
        let is_token = |text: &str| {
            !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
        };
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.strip_suffix(".seed").or_else(|| name.strip_suffix(".creds")));
        let name = name.map(|name| name.strip_suffix(".next").unwrap_or(name));
        match name.and_then(|name| name.split_once('.')) {
            Some((first, second)) if is_token(first) && is_token(second) => Ok(Self::new(first, second)),
            Some(_) | None => Err(UserFault { path: path.to_owned() }),
        }
    }

    /// The role of a service, or the tenant of a user.
    pub fn role(&self) -> &str {
        &self.first
    }

    /// What distinguishes it from others of its role or tenant.
    pub fn instance(&self) -> &str {
        &self.second
    }

    /// The prefix of its inboxes: no other user of its account may subscribe to them.
    pub fn inbox(&self) -> String {
        format!("_INBOX_{self}")
    }
}

impl fmt::Display for BusUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.first, self.second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_seed_names_its_user() {
        for (file, user) in [
            ("/x/gateway.1.seed", Some("gateway.1")),
            ("worker.build-1.next.seed", Some("worker.build-1")),
            ("payments.ci.seed", Some("payments.ci")),
            ("/x/payments.ci.creds", Some("payments.ci")),
            ("worker.build-1.next.creds", Some("worker.build-1")),
            ("gateway.1.creds.bak", None),
            ("gateway.seed", None),
            ("gateway.1", None),
            ("a.b.c.seed", None),
            ("gateway.*.seed", None),
            (".1.seed", None),
            ("/", None),
        ] {
            let found = BusUser::of_seed_file(Path::new(file)).ok().map(|user| user.to_string());
            assert_eq!(found.as_deref(), user, "{file}");
        }
        assert_eq!(BusUser::new("gateway", "1").inbox(), "_INBOX_gateway.1");
    }
}
