//! What nats-server lets the user of a connection do, as it says when it is asked.

use bytes::Bytes;
use serde::Deserialize;
use tracing::debug;

use crate::{Bus, BusError, codec::from_json, rights::matches, subject::USER_INFO};

#[derive(Deserialize)]
struct UserInfo {
    data: User,
}

#[derive(Deserialize)]
struct User {
    permissions: Option<Permissions>,
}

#[derive(Deserialize, Default)]
struct Permissions {
    publish: Option<Subjects>,
}

/// Subjects that the user may publish to.
#[derive(Debug, Deserialize, Default)]
pub(crate) struct Subjects {
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
}

impl Subjects {
    /// Whether they include `subject`: without a list, everything is allowed.
    fn include(&self, subject: &str) -> bool {
        let has = |list: &Option<Vec<String>>| {
            list.as_ref().is_some_and(|list| list.iter().any(|filter| matches(filter, subject)))
        };
        (self.allow.as_ref().is_none_or(Vec::is_empty) || has(&self.allow)) && !has(&self.deny)
    }
}

impl Bus {
    /// Whether the user may read all of a stream, from its leader too: a user of a tenant may not, and a worker only what it works with.
    /// If the server does not answer, processes of the farm go on.
    pub async fn reads(&self, stream: &str) -> bool {
        self.may_publish(&format!("$JS.API.DIRECT.GET.{stream}")).await
    }

    /// Whether the user may publish to `subject`.
    pub(crate) async fn may_publish(&self, subject: &str) -> bool {
        let known = self.publishes.get_or_try_init(|| self.ask_what_it_publishes()).await;
        match known {
            Ok(publishes) => publishes.include(subject),
            Err(error) => {
                debug!(error = telemetry::error_chain(&error), "cannot read the own permissions");
                true
            }
        }
    }

    async fn ask_what_it_publishes(&self) -> Result<Subjects, BusError> {
        let what = "reading the own permissions";
        let reply = self.client.request(USER_INFO, Bytes::new()).await.map_err(BusError::failed(what))?;
        let info: UserInfo = from_json(&reply.payload).map_err(BusError::failed(what))?;
        Ok(info.data.permissions.and_then(|all| all.publish).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::Subjects;

    fn subjects(allow: Option<&[&str]>, deny: Option<&[&str]>) -> Subjects {
        let owned = |list: &[&str]| list.iter().map(|&one| one.to_owned()).collect();
        Subjects { allow: allow.map(owned), deny: deny.map(owned) }
    }

    #[test]
    fn what_is_not_listed_is_denied_only_if_there_is_a_list() {
        let read = "$JS.API.DIRECT.GET.FOREBAY_EVENTS";
        for (allow, deny, wanted) in [
            (None, None, true),
            (Some(&["$JS.API.DIRECT.GET.FOREBAY_EVENTS.a.>"][..]), None, false),
            (Some(&["$JS.API.>"][..]), None, true),
            (Some(&["$JS.API.>"][..]), Some(&["$JS.API.DIRECT.>"][..]), false),
            (None, Some(&[">"][..]), false),
        ] {
            assert_eq!(subjects(allow, deny).include(read), wanted, "{allow:?} {deny:?}");
        }
    }
}
