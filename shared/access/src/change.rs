//! Changes of a description: users that are added, changed or removed, and keys that are replaced.

use std::collections::BTreeSet;

use credentials::{PublicKey, Seed, SeedFault};
use model::{Group, Priority};

use crate::{
    Access, AccessError, Keys, Publisher, ServiceKey, ServiceName, SigningFault, Slot, Tenant, TenantName,
    UserOf, Watcher, Who,
};

/// A change of a description. A change that is repeated has no effect.
#[derive(Debug, Clone)]
pub enum Change {
    /// Adds a service with a new key.
    Service(ServiceName),
    /// Adds a tenant, or adds to what it has.
    Tenant {
        name: TenantName,
        groups: BTreeSet<Group>,
        /// All if empty, for a new tenant.
        priorities: BTreeSet<Priority>,
        watches: BTreeSet<Group>,
    },
    /// Adds a user who publishes builds, or replaces what it may do. Empty lists mean all of the tenant.
    Publisher { user: UserOf, groups: BTreeSet<Group>, priorities: BTreeSet<Priority> },
    /// Adds a user who watches builds, or replaces what it may do. An empty list means all of the tenant.
    Watcher { user: UserOf, groups: BTreeSet<Group> },
    /// Removes a tenant with its users, a user or a service.
    Revoke(Who),
    /// Replaces the key of a user or a service, in two steps.
    Rotate(Who, Rotation),
}

/// A step of the replacement of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// A new key is valid beside the old one.
    Begin,
    /// The old key is no longer valid.
    Finish,
}

/// Returns the seed of a user that needs a new key.
trait NewKey: FnOnce(&Who, Slot) -> Result<Seed, SeedFault> {}

impl<F: FnOnce(&Who, Slot) -> Result<Seed, SeedFault>> NewKey for F {}

/// A change that is not possible.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("{0} does not exist; `forebay access list` shows what does")]
    Unknown(Who),
    #[error("tenant {0} does not exist: add it with `forebay access grant tenant {0} --group GROUP`")]
    NoTenant(TenantName),
    #[error("a new tenant needs groups: give --group")]
    NoGroups,
    #[error("{0} has users, each with a key of its own: name one of them")]
    Tenant(Who),
    #[error("{0} has two keys: finish the rotation in progress with `forebay access rotate --finish`")]
    InRotation(Who),
    #[error(transparent)]
    Content(#[from] AccessError),
    #[error(transparent)]
    Seed(#[from] SeedFault),
    #[error(transparent)]
    Signing(#[from] SigningFault),
}

impl Access {
    /// Makes a change. `new_key` returns the seed of a user that needs a new key.
    ///
    /// # Errors
    ///
    /// Fails if the change names what does not exist, or if the result would contradict itself.
    pub fn changed(
        &self,
        change: &Change,
        new_key: impl FnOnce(&Who, Slot) -> Result<Seed, SeedFault>,
    ) -> Result<Self, ChangeError> {
        let mut access = self.clone();
        match change {
            Change::Service(name) => access.add_service(name, new_key)?,
            Change::Tenant { name, groups, priorities, watches } => {
                access.add_tenant(name, groups, priorities, watches)?;
            }
            Change::Publisher { user, groups, priorities } => {
                access.add_publisher(user, groups, priorities, new_key)?;
            }
            Change::Watcher { user, groups } => access.add_watcher(user, groups, new_key)?,
            Change::Revoke(who) => access.revoke(who),
            Change::Rotate(who, Rotation::Begin) => access.begin_rotation(who, new_key)?,
            Change::Rotate(who, Rotation::Finish) => access.finish_rotation(who)?,
        }
        Ok(access.checked()?)
    }

    fn add_service(&mut self, name: &ServiceName, new_key: impl NewKey) -> Result<(), ChangeError> {
        if !self.services.contains_key(name) {
            let seed = new_key(&Who::Service(name.clone()), Slot::Current)?;
            self.services.insert(name.clone(), Keys::one(ServiceKey::of(&seed, name.uses_redis())));
        }
        Ok(())
    }

    fn add_tenant(
        &mut self,
        name: &TenantName,
        groups: &BTreeSet<Group>,
        priorities: &BTreeSet<Priority>,
        watches: &BTreeSet<Group>,
    ) -> Result<(), ChangeError> {
        if let Some(tenant) = self.tenants.get_mut(name) {
            tenant.groups.extend(groups.iter().cloned());
            tenant.priorities.extend(priorities);
            tenant.watches.extend(watches.iter().cloned());
            return Ok(());
        }
        if groups.is_empty() {
            return Err(ChangeError::NoGroups);
        }
        let priorities =
            if priorities.is_empty() { Priority::ALL.into_iter().collect() } else { priorities.clone() };
        let tenant = Tenant {
            groups: groups.clone(),
            priorities,
            watches: watches.clone(),
            publishers: std::collections::BTreeMap::new(),
            watchers: std::collections::BTreeMap::new(),
        };
        self.tenants.insert(name.clone(), tenant);
        Ok(())
    }

    fn tenant(&mut self, name: &TenantName) -> Result<&mut Tenant, ChangeError> {
        self.tenants.get_mut(name).ok_or_else(|| ChangeError::NoTenant(name.clone()))
    }

    fn add_publisher(
        &mut self,
        name: &UserOf,
        groups: &BTreeSet<Group>,
        priorities: &BTreeSet<Priority>,
        new_key: impl NewKey,
    ) -> Result<(), ChangeError> {
        let publishers = &mut self.tenant(&name.tenant)?.publishers;
        let (groups, priorities) = (part(groups), part(priorities));
        if let Some(known) = publishers.get_mut(&name.user) {
            (known.groups, known.priorities) = (groups, priorities);
            return Ok(());
        }
        let seed = new_key(&Who::User(name.clone()), Slot::Current)?;
        let publisher = Publisher { groups, priorities, keys: Keys::one(seed.public().clone()) };
        publishers.insert(name.user.clone(), publisher);
        Ok(())
    }

    fn add_watcher(
        &mut self,
        name: &UserOf,
        groups: &BTreeSet<Group>,
        new_key: impl NewKey,
    ) -> Result<(), ChangeError> {
        let watchers = &mut self.tenant(&name.tenant)?.watchers;
        let groups = part(groups);
        if let Some(known) = watchers.get_mut(&name.user) {
            known.groups = groups;
            return Ok(());
        }
        let seed = new_key(&Who::User(name.clone()), Slot::Current)?;
        watchers.insert(name.user.clone(), Watcher { groups, keys: Keys::one(seed.public().clone()) });
        Ok(())
    }

    /// Removes what exists no longer or never did: the result is the same.
    fn revoke(&mut self, who: &Who) {
        match who {
            Who::Service(name) => drop(self.services.remove(name)),
            Who::Tenant(name) => drop(self.tenants.remove(name)),
            Who::User(name) => {
                if let Some(tenant) = self.tenants.get_mut(&name.tenant) {
                    tenant.publishers.remove(&name.user);
                    tenant.watchers.remove(&name.user);
                }
            }
        }
    }

    fn begin_rotation(&mut self, who: &Who, new_key: impl NewKey) -> Result<(), ChangeError> {
        let uses_redis = matches!(who, Who::Service(name) if name.uses_redis());
        let keys = self.keys_of(who)?;
        if keys.are_two() {
            return Err(ChangeError::InRotation(who.clone()));
        }
        let seed = new_key(who, Slot::Next)?;
        match keys {
            KeysOf::Service(keys) => keys.next = Some(ServiceKey::of(&seed, uses_redis)),
            KeysOf::User(keys) => keys.next = Some(seed.public().clone()),
        }
        Ok(())
    }

    fn finish_rotation(&mut self, who: &Who) -> Result<(), ChangeError> {
        match self.keys_of(who)? {
            KeysOf::Service(keys) => finish(keys),
            KeysOf::User(keys) => finish(keys),
        }
        Ok(())
    }

    fn keys_of(&mut self, who: &Who) -> Result<KeysOf<'_>, ChangeError> {
        let unknown = || ChangeError::Unknown(who.clone());
        match who {
            Who::Tenant(_) => Err(ChangeError::Tenant(who.clone())),
            Who::Service(name) => self.services.get_mut(name).map(KeysOf::Service).ok_or_else(unknown),
            Who::User(UserOf { tenant, user }) => {
                let tenant = self.tenants.get_mut(tenant).ok_or_else(unknown)?;
                let publisher = tenant.publishers.get_mut(user).map(|publisher| &mut publisher.keys);
                let keys = match publisher {
                    Some(keys) => Some(keys),
                    None => tenant.watchers.get_mut(user).map(|watcher| &mut watcher.keys),
                };
                keys.map(KeysOf::User).ok_or_else(unknown)
            }
        }
    }
}

enum KeysOf<'a> {
    Service(&'a mut Keys<ServiceKey>),
    User(&'a mut Keys<PublicKey>),
}

impl KeysOf<'_> {
    fn are_two(&self) -> bool {
        match self {
            Self::Service(keys) => keys.next.is_some(),
            Self::User(keys) => keys.next.is_some(),
        }
    }
}

fn finish<K>(keys: &mut Keys<K>) {
    if let Some(next) = keys.next.take() {
        keys.current = next;
    }
}

fn part<T: Clone>(list: &BTreeSet<T>) -> Option<BTreeSet<T>> {
    (!list.is_empty()).then(|| list.clone())
}
