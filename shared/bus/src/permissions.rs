//! What nats-server lets the user of a connection do, as it says when it is asked.

use bytes::Bytes;
use serde::Deserialize;
use tracing::debug;

use crate::{Bus, BusError, codec::from_json, filter::Subjects, subject::USER_INFO};

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

impl Bus {
    /// Whether the user may read a whole stream, from its leader too. True if the server does not answer.
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
