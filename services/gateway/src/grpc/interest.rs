//! The clients that follow an execution at this gateway.

use std::collections::HashMap;

use invariant::impossible;
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;

/// The invocation id that a client sends; may be empty. Two clients without an id cannot be distinguished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Invocation(String);

impl Invocation {
    /// The invocation id in the `RequestMetadata` of a call.
    pub(crate) fn of(headers: &MetadataMap) -> Self {
        Self(reapi::metadata::request_metadata(headers).tool_invocation_id)
    }

    /// Whether both are known to be the same client.
    fn is_surely(&self, other: &Self) -> bool {
        !self.0.is_empty() && self == other
    }
}

/// Why a client follows an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// The client requested the execution of its action.
    Asks(Invocation),
    /// The client knows the operation name and waits for the result.
    Waits(Invocation),
    /// The client only reads the output. The execution continues while it reads, but it has no say in a cancellation.
    Reads,
}

/// The clients that follow one execution at this gateway.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    /// Number of requests that led to it, including abandoned ones.
    asked: u32,
    /// Number of waiting requests of each invocation.
    waiting: HashMap<Invocation, u32>,
}

/// How many clients other than a cancelling one want an execution.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientCounts {
    /// Number of past and present clients, as far as they can be distinguished.
    pub(crate) clients: u32,
    /// Number of waiting clients that may be other than the cancelling one.
    pub(crate) others: u32,
}

impl Interest {
    /// Adds a follower with this role.
    pub(crate) fn add(&mut self, role: &Role) {
        match role {
            Role::Asks(invocation) => {
                self.asked += 1;
                *self.waiting.entry(invocation.clone()).or_default() += 1;
            }
            Role::Waits(invocation) => *self.waiting.entry(invocation.clone()).or_default() += 1,
            Role::Reads => {}
        }
    }

    /// Removes a follower with this role.
    pub(crate) fn remove(&mut self, role: &Role) {
        let (Role::Asks(invocation) | Role::Waits(invocation)) = role else { return };
        let Some(count) = self.waiting.get_mut(invocation) else {
            impossible!("a follower leaves that is not counted: {role:?}");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.waiting.remove(invocation);
        }
    }

    /// How many clients other than `caller` want the execution.
    pub(crate) fn client_counts(&self, caller: &Invocation) -> ClientCounts {
        let count = |counts: &mut dyn Iterator<Item = (&Invocation, &u32)>| counts.map(|(_, n)| *n).sum();
        let all: u32 = count(&mut self.waiting.iter());
        let others = count(&mut self.waiting.iter().filter(|(invocation, _)| !invocation.is_surely(caller)));
        ClientCounts { clients: self.asked.max(all), others }
    }
}

impl ClientCounts {
    /// The sum of both counts.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self { clients: self.clients + other.clients, others: self.others + other.others }
    }

    /// Whether clients other than the cancelling one want it. The only client that ever asked for it counts as the
    /// cancelling one, even without an invocation id.
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
            interest.add(role);
        }
        interest
    }

    fn wanted(interest: &Interest, without: &str) -> bool {
        interest.client_counts(&client(without)).is_wanted()
    }

    #[test]
    fn the_only_client_may_end_it_whatever_it_is_called() {
        let mut it = interest(&[Role::Asks(client("")), Role::Reads]);
        assert!(!wanted(&it, "") && !wanted(&it, "a"));
        it.remove(&Role::Asks(client("")));
        assert!(!wanted(&it, ""), "its stream is gone already");
        let it = interest(&[Role::Asks(client("a")), Role::Waits(client("a"))]);
        assert!(!wanted(&it, "a"));
        assert!(wanted(&it, "b"));
    }

    #[test]
    fn one_of_several_may_not() {
        let mut it = interest(&[Role::Asks(client("a")), Role::Asks(client("b"))]);
        assert!(wanted(&it, "a") && wanted(&it, "b") && wanted(&it, ""));
        it.remove(&Role::Asks(client("a")));
        assert!(wanted(&it, "a"), "b still waits");
        assert!(!wanted(&it, "b"), "no other client waits");
        let mut it = interest(&[Role::Asks(client("")), Role::Asks(client(""))]);
        it.remove(&Role::Asks(client("")));
        assert!(wanted(&it, ""), "the remaining client may be another one");
        it.remove(&Role::Asks(client("")));
        assert!(!wanted(&it, ""));
    }

    #[test]
    fn gateways_add_up() {
        let one = interest(&[Role::Asks(client(""))]);
        let counts = one.client_counts(&client(""));
        assert!(!counts.is_wanted());
        assert!(counts.and(counts).is_wanted());
    }
}
