//! Who follows an execution at this gateway, and on whose behalf.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;

/// The run of a client that asks, as it names itself; may be empty. Of two without a name nobody knows whether they are one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Invocation(String);

impl Invocation {
    /// As the `RequestMetadata` of a call says.
    pub(crate) fn of(headers: &MetadataMap) -> Self {
        Self(reapi::metadata::request_metadata(headers).tool_invocation_id)
    }

    /// Whether both are known to be the same client.
    fn is_surely(&self, other: &Self) -> bool {
        !self.0.is_empty() && self == other
    }
}

/// Why somebody follows an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// He asked for its action to be executed.
    Asks(Invocation),
    /// He knows its name and waits for its end.
    Waits(Invocation),
    /// He reads what it writes, or looks at it: it goes on for him too, but it is not his to have ended or spared.
    Reads,
}

/// Those who follow one execution here.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    /// Requests that led to it, the ones that were given up among them.
    asked: u32,
    /// Those who wait now.
    waiting: HashMap<Invocation, u32>,
}

/// How much an execution is wanted besides by one client that wants it no more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Clients that it is or was for, as far as they can be told apart.
    pub(crate) clients: u32,
    /// Those who wait now and are not surely that client.
    pub(crate) others: u32,
}

impl Interest {
    /// Somebody comes.
    pub(crate) fn come(&mut self, role: &Role) {
        match role {
            Role::Asks(invocation) => {
                self.asked += 1;
                *self.waiting.entry(invocation.clone()).or_default() += 1;
            }
            Role::Waits(invocation) => *self.waiting.entry(invocation.clone()).or_default() += 1,
            Role::Reads => {}
        }
    }

    /// Somebody who came goes.
    pub(crate) fn go(&mut self, role: &Role) {
        let (Role::Asks(invocation) | Role::Waits(invocation)) = role else { return };
        if let Some(count) = self.waiting.get_mut(invocation) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(invocation);
            }
        }
    }

    /// How much it is wanted besides by `caller`.
    pub(crate) fn standing(&self, caller: &Invocation) -> Standing {
        let count = |counts: &mut dyn Iterator<Item = (&Invocation, &u32)>| counts.map(|(_, n)| *n).sum();
        let all: u32 = count(&mut self.waiting.iter());
        let others = count(&mut self.waiting.iter().filter(|(invocation, _)| !invocation.is_surely(caller)));
        Standing { clients: self.asked.max(all), others }
    }
}

impl Standing {
    /// Both together.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self { clients: self.clients + other.clients, others: self.others + other.others }
    }

    /// Whether others want it than the client that wants it no more. A client without a name that alone ever asked for
    /// it is taken for its own only other.
    pub(crate) fn is_wanted(self) -> bool {
        self.others > 0 && self.clients > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> Invocation {
        Invocation(name.into())
    }

    fn interest(roles: &[Role]) -> Interest {
        let mut interest = Interest::default();
        for role in roles {
            interest.come(role);
        }
        interest
    }

    fn wanted(interest: &Interest, without: &str) -> bool {
        interest.standing(&client(without)).is_wanted()
    }

    #[test]
    fn the_only_client_may_end_it_whatever_it_is_called() {
        let mut it = interest(&[Role::Asks(client("")), Role::Reads]);
        assert!(!wanted(&it, "") && !wanted(&it, "a"));
        it.go(&Role::Asks(client("")));
        assert!(!wanted(&it, ""), "its stream is gone already");
        let it = interest(&[Role::Asks(client("a")), Role::Waits(client("a"))]);
        assert!(!wanted(&it, "a"));
        assert!(wanted(&it, "b"));
    }

    #[test]
    fn one_of_several_may_not() {
        let mut it = interest(&[Role::Asks(client("a")), Role::Asks(client("b"))]);
        assert!(wanted(&it, "a") && wanted(&it, "b") && wanted(&it, ""));
        it.go(&Role::Asks(client("a")));
        assert!(wanted(&it, "a"), "b still waits");
        assert!(!wanted(&it, "b"), "nobody else waits");
        let mut it = interest(&[Role::Asks(client("")), Role::Asks(client(""))]);
        it.go(&Role::Asks(client("")));
        assert!(wanted(&it, ""), "the one that is left may be another");
        it.go(&Role::Asks(client("")));
        assert!(!wanted(&it, ""));
    }

    #[test]
    fn gateways_add_up() {
        let one = interest(&[Role::Asks(client(""))]);
        let standing = one.standing(&client(""));
        assert!(!standing.is_wanted());
        assert!(standing.and(standing).is_wanted());
    }
}
