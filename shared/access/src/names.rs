//! Names of tenants, of their users, and of services.

use std::{fmt, str::FromStr};

use credentials::BusUser;

use crate::Role;

/// A text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {kind} {text:?}: expected {wanted}")]
pub struct NameError {
    kind: &'static str,
    text: String,
    wanted: &'static str,
}

impl NameError {
    fn new(kind: &'static str, text: &str, wanted: &'static str) -> Self {
        Self { kind, text: text.chars().take(80).collect(), wanted }
    }
}

/// Defines a name that is valid as one token of a subject.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let good = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
                if (1..=64).contains(&text.len()) && text.bytes().all(good) {
                    return Ok(Self(text.to_owned()));
                }
                Err(NameError::new($kind, text, "1 to 64 letters, digits, '-' or '_'"))
            }
        }
    };
}

name!(
    /// Distinguishes the processes of one role.
    Instance,
    "name of a process"
);
name!(
    /// Name of a user of a tenant.
    UserName,
    "name of a user"
);

impl Instance {
    /// The name of the first process of a role, where no better one is known: `1`.
    pub fn first() -> Self {
        Self("1".to_owned())
    }

    /// Stands for the name of each user of a role: nats-server puts the name that the JWT of the user has in its place.
    pub(crate) fn each() -> Self {
        Self("{{name()}}".to_owned())
    }

    /// The name of one of several processes of a role on one machine: `worker-2`.
    pub fn of(role: Role, number: u32) -> Self {
        Self(format!("{role}-{number}"))
    }
}

/// Name of a tenant, which differs from those of all roles.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName(UserName);

impl TenantName {
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for TenantName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_role = text.parse::<Role>().is_ok();
        match text.parse() {
            Ok(name) if !is_role => Ok(Self(name)),
            Ok(_) => Err(NameError::new("name of a tenant", text, "a name that no role has")),
            Err(_) => Err(NameError::new("name of a tenant", text, "1 to 64 letters, digits, '-' or '_'")),
        }
    }
}

/// One process of the farm, or one operator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    role: Role,
    instance: Instance,
}

impl ServiceName {
    /// The process of a role with this name.
    pub fn new(role: Role, instance: Instance) -> Self {
        Self { role, instance }
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// What distinguishes it from others of its role. The ids of workers and executors begin with it.
    pub fn instance(&self) -> &str {
        self.instance.as_str()
    }

    /// Its name as a user of nats-server and Redis.
    pub fn bus_user(&self) -> BusUser {
        BusUser::new(self.role.as_str(), self.instance.as_str())
    }

    /// Whether it uses the index in Redis.
    pub fn uses_redis(&self) -> bool {
        self.role.uses_redis()
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.role(), self.instance())
    }
}

impl FromStr for ServiceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (role, instance) =
            text.split_once('/').ok_or_else(|| NameError::new("service", text, "ROLE/NAME"))?;
        let role = role.parse().map_err(|()| NameError::new("role", role, ROLES))?;
        Ok(Self { role, instance: instance.parse()? })
    }
}

const ROLES: &str = "one of enqueuer, dispatcher, governor, trainer, autoscaler, reaper, archive, scheduler, gateway, \
    web, cas, worker, executor, operator, topology, supervisor, monitor";

/// A user of a tenant: `TENANT/USER`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserOf {
    pub tenant: TenantName,
    pub user: UserName,
}

impl UserOf {
    /// Its name as a user of nats-server.
    pub fn bus_user(&self) -> BusUser {
        BusUser::new(self.tenant.as_str(), self.user.as_str())
    }
}

impl fmt::Display for UserOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.user)
    }
}

impl FromStr for UserOf {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (tenant, user) =
            text.split_once('/').ok_or_else(|| NameError::new("user", text, "TENANT/USER"))?;
        Ok(Self { tenant: tenant.parse()?, user: user.parse()? })
    }
}

/// A tenant, a user of one, or a service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// A tenant with all its users.
    Tenant(TenantName),
    /// One user of a tenant.
    User(UserOf),
    /// One process of the farm.
    Service(ServiceName),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(tenant) => write!(f, "tenant {tenant}"),
            Self::User(user) => write!(f, "user {user}"),
            Self::Service(service) => write!(f, "service {service}"),
        }
    }
}

impl FromStr for Who {
    type Err = NameError;

    /// Reads `TENANT`, `TENANT/USER` or `ROLE/NAME`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            None => text.parse().map(Self::Tenant),
            Some((first, _)) if first.parse::<TenantName>().is_ok() => text.parse().map(Self::User),
            Some(_) => text.parse().map(Self::Service),
        }
    }
}
