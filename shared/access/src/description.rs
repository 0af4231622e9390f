//! The description of a farm's users: its tenants and its services.

use std::collections::{BTreeMap, BTreeSet};

use credentials::PublicKey;
use model::{Group, Priority};

use crate::{Jwt, Keys, ServiceKey, ServiceName, TenantName, UserName, UserOf, Who};

/// All users of a farm. [`Access::checked`] makes sure that the parts agree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// None: the configuration of nats-server lists the public keys of users.
    pub(crate) jwt: Option<Jwt>,
    pub(crate) services: BTreeMap<ServiceName, Keys<ServiceKey>>,
    pub(crate) tenants: BTreeMap<TenantName, Tenant>,
}

/// A trust zone: its users reach the groups of this tenant, and nothing of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Groups that belong to this tenant only.
    pub groups: BTreeSet<Group>,
    /// Priorities with which it may publish build requests.
    pub priorities: BTreeSet<Priority>,
    /// Groups of other tenants that its users may watch.
    pub watches: BTreeSet<Group>,
    pub publishers: BTreeMap<UserName, Publisher>,
    pub watchers: BTreeMap<UserName, Watcher>,
}

/// A user who publishes builds, and sees those of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publisher {
    /// A part of the groups of the tenant; `None`: all.
    pub groups: Option<BTreeSet<Group>>,
    /// A part of the priorities of the tenant; `None`: all.
    pub priorities: Option<BTreeSet<Priority>>,
    pub keys: Keys<PublicKey>,
}

/// A user who sees the builds of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watcher {
    /// A part of the groups that the tenant has or watches; `None`: all.
    pub groups: Option<BTreeSet<Group>>,
    pub keys: Keys<PublicKey>,
}

/// Parts of a description that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error("tenant {tenant} has no groups: give at least one in `groups`")]
    NoGroups { tenant: TenantName },
    #[error("tenant {tenant} has no priorities: give at least one in `priorities`")]
    NoPriorities { tenant: TenantName },
    #[error(
        "group {group} belongs to tenant {first} and to tenant {second}: a group has one tenant; to let the other one \
             watch it, put it into `watches` (`forebay access grant tenant {second} --watch {group}`)"
    )]
    SharedGroup { group: Group, first: TenantName, second: TenantName },
    #[error("tenant {tenant} watches group {group}, which belongs to no other tenant")]
    WatchedByNone { tenant: TenantName, group: Group },
    #[error("user {user} has group {group}, which tenant {} does not have", user.tenant)]
    ForeignGroup { user: UserOf, group: Group },
    #[error("user {user} has priority {priority}, which tenant {} does not have", user.tenant)]
    ForeignPriority { user: UserOf, priority: Priority },
    #[error(
        "user {user} has an empty list of {what}: leave the list out for all of its tenant, or remove the user"
    )]
    EmptyList { user: UserOf, what: &'static str },
    #[error("user {user} is a publisher and a watcher: a publisher sees builds too")]
    TwoKinds { user: UserOf },
    #[error("{first} and {second} have the same key {key}: each user needs its own")]
    SharedKey { first: Who, second: Who, key: PublicKey },
    #[error("{service} needs a hash of a password of Redis for each of its keys")]
    NoRedis { service: ServiceName },
    #[error("{service} does not use Redis: remove its hashes of passwords")]
    NeedsNoRedis { service: ServiceName },
}

impl Access {
    /// What signs the JWTs of users, if they have these.
    pub fn jwt(&self) -> Option<&Jwt> {
        self.jwt.as_ref()
    }

    /// The services by name, with their keys.
    pub fn services(&self) -> &BTreeMap<ServiceName, Keys<ServiceKey>> {
        &self.services
    }

    /// The tenants by name.
    pub fn tenants(&self) -> &BTreeMap<TenantName, Tenant> {
        &self.tenants
    }

    /// Whether there is such a tenant, user or service.
    pub fn has(&self, who: &Who) -> bool {
        match who {
            Who::Service(name) => self.services.contains_key(name),
            Who::Tenant(name) => self.tenants.contains_key(name),
            Who::User(name) => self.tenants.get(&name.tenant).is_some_and(|tenant| {
                tenant.publishers.contains_key(&name.user) || tenant.watchers.contains_key(&name.user)
            }),
        }
    }

    /// The same description, if its parts agree.
    ///
    /// # Errors
    ///
    /// Fails with the first contradiction.
    pub fn checked(self) -> Result<Self, AccessError> {
        let mut owners: BTreeMap<&Group, &TenantName> = BTreeMap::new();
        for (name, tenant) in &self.tenants {
            for group in &tenant.groups {
                if let Some(first) = owners.insert(group, name) {
                    let (group, first, second) = (group.clone(), first.clone(), name.clone());
                    return Err(AccessError::SharedGroup { group, first, second });
                }
            }
        }
        for (name, tenant) in &self.tenants {
            let strange = |group: &&Group| owners.get(*group).is_none_or(|owner| *owner == name);
            if let Some(group) = tenant.watches.iter().find(strange) {
                return Err(AccessError::WatchedByNone { tenant: name.clone(), group: group.clone() });
            }
            tenant.check(name)?;
        }
        self.check_services()?;
        self.check_keys()?;
        Ok(self)
    }

    fn check_services(&self) -> Result<(), AccessError> {
        for (service, keys) in &self.services {
            let uses_redis = service.uses_redis();
            let wrong = keys.iter().any(|key| key.redis.is_some() != uses_redis);
            match (wrong, uses_redis) {
                (true, true) => return Err(AccessError::NoRedis { service: service.clone() }),
                (true, false) => return Err(AccessError::NeedsNoRedis { service: service.clone() }),
                (false, _) => {}
            }
        }
        Ok(())
    }

    fn check_keys(&self) -> Result<(), AccessError> {
        let mut owners: BTreeMap<&PublicKey, Who> = BTreeMap::new();
        let of_services = self.services.iter().flat_map(|(name, keys)| {
            keys.iter().map(|key| (&key.public, Who::Service(name.clone()))).collect::<Vec<_>>()
        });
        let of_users = self.users().into_iter().flat_map(|user| {
            user.keys.iter().map(|key| (key, Who::User(user.name.clone()))).collect::<Vec<_>>()
        });
        for (key, second) in of_services.chain(of_users) {
            if let Some(first) = owners.insert(key, second.clone()) {
                return Err(AccessError::SharedKey { first, second, key: key.clone() });
            }
        }
        Ok(())
    }
}

impl Tenant {
    /// The groups whose builds its users may see.
    pub fn visible(&self) -> BTreeSet<Group> {
        self.groups.union(&self.watches).cloned().collect()
    }

    fn check(&self, name: &TenantName) -> Result<(), AccessError> {
        if self.groups.is_empty() {
            return Err(AccessError::NoGroups { tenant: name.clone() });
        }
        if self.priorities.is_empty() {
            return Err(AccessError::NoPriorities { tenant: name.clone() });
        }
        let named = |user: &UserName| UserOf { tenant: name.clone(), user: user.clone() };
        for (user, publisher) in &self.publishers {
            check_part(&named(user), publisher.groups.as_ref(), &self.groups)?;
            check_priorities(&named(user), publisher.priorities.as_ref(), &self.priorities)?;
            if self.watchers.contains_key(user) {
                return Err(AccessError::TwoKinds { user: named(user) });
            }
        }
        let visible = self.visible();
        self.watchers
            .iter()
            .try_for_each(|(user, watcher)| check_part(&named(user), watcher.groups.as_ref(), &visible))
    }
}

fn check_part(
    user: &UserOf,
    part: Option<&BTreeSet<Group>>,
    all: &BTreeSet<Group>,
) -> Result<(), AccessError> {
    match part {
        None => Ok(()),
        Some(part) if part.is_empty() => Err(AccessError::EmptyList { user: user.clone(), what: "groups" }),
        Some(part) => match part.difference(all).next() {
            Some(group) => Err(AccessError::ForeignGroup { user: user.clone(), group: group.clone() }),
            None => Ok(()),
        },
    }
}

fn check_priorities(
    user: &UserOf,
    part: Option<&BTreeSet<Priority>>,
    all: &BTreeSet<Priority>,
) -> Result<(), AccessError> {
    match part {
        None => Ok(()),
        Some(part) if part.is_empty() => {
            Err(AccessError::EmptyList { user: user.clone(), what: "priorities" })
        }
        Some(part) => match part.difference(all).next() {
            Some(priority) => Err(AccessError::ForeignPriority { user: user.clone(), priority: *priority }),
            None => Ok(()),
        },
    }
}
