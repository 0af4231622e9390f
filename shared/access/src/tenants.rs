//! What tenants and their users may do on the bus.

use std::collections::BTreeSet;

use bus::{ApiCall, Crossing, RequestSubject, Rights};
use credentials::PublicKey;
use model::{Group, Priority};

use crate::{Access, Keys, Tenant, UserOf};

/// What a user of a tenant is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Publishes builds, cancels them and sees them.
    Publisher,
    /// Sees builds of its groups.
    Watcher,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Publisher => "publisher",
            Self::Watcher => "watcher",
        }
    }
}

/// A user of a tenant, with what it may do.
#[derive(Debug, Clone)]
pub struct User<'a> {
    pub name: UserOf,
    pub kind: Kind,
    pub keys: &'a Keys<PublicKey>,
    /// What crosses the border of the tenant's account for it.
    pub crossings: BTreeSet<Crossing>,
}

impl User<'_> {
    /// The prefix of its inboxes.
    pub fn inbox(&self) -> String {
        self.name.bus_user().inbox()
    }

    /// Its rights in the account of its tenant.
    pub fn rights(&self) -> Rights {
        let mut rights = Rights::with_inbox(&self.inbox());
        self.crossings.iter().for_each(|crossing| crossing.allow(&mut rights));
        rights
    }
}

impl Access {
    /// The users of all tenants.
    pub fn users(&self) -> Vec<User<'_>> {
        let mut users = Vec::new();
        for (tenant, content) in &self.tenants {
            let name = |user: &crate::UserName| UserOf { tenant: tenant.clone(), user: user.clone() };
            for (user, publisher) in &content.publishers {
                let groups = publisher.groups.as_ref().unwrap_or(&content.groups);
                let priorities = publisher.priorities.as_ref().unwrap_or(&content.priorities);
                let crossings = groups.iter().flat_map(|group| {
                    let mut all = publishing(group, priorities);
                    all.extend(watching(group));
                    all
                });
                let (crossings, keys) = (crossings.collect(), &publisher.keys);
                users.push(User { name: name(user), kind: Kind::Publisher, keys, crossings });
            }
            for (user, watcher) in &content.watchers {
                let groups = watcher.groups.clone().unwrap_or_else(|| content.visible());
                let crossings = groups.iter().flat_map(watching).collect();
                users.push(User { name: name(user), kind: Kind::Watcher, keys: &watcher.keys, crossings });
            }
        }
        users
    }
}

impl Tenant {
    /// What crosses the border of the tenant's account: all that users of the tenant may have.
    pub fn crossings(&self) -> BTreeSet<Crossing> {
        let published = self.groups.iter().flat_map(|group| publishing(group, &self.priorities));
        published.chain(self.visible().iter().flat_map(watching)).collect()
    }
}

/// What a publisher needs in addition to what watchers need.
fn publishing(group: &Group, priorities: &BTreeSet<Priority>) -> BTreeSet<Crossing> {
    let request = |priority: &Priority| RequestSubject { group: group.clone(), priority: *priority };
    let mut all: BTreeSet<Crossing> =
        priorities.iter().map(|priority| Crossing::Request(request(priority))).collect();
    all.insert(Crossing::Api(ApiCall::Cancel, group.clone()));
    // The priority of this call is in its body, which the server does not check.
    if Priority::ALL.iter().all(|priority| priorities.contains(priority)) {
        all.insert(Crossing::Api(ApiCall::Create, group.clone()));
    }
    all
}

fn watching(group: &Group) -> BTreeSet<Crossing> {
    let calls = [ApiCall::Get, ApiCall::List, ApiCall::Why, ApiCall::Events];
    let calls = calls.map(|call| Crossing::Api(call, group.clone()));
    let events = [
        Crossing::LastEvent(group.clone()),
        Crossing::Live(group.clone()),
        Crossing::Rejected(group.clone()),
    ];
    calls.into_iter().chain(events).collect()
}
