//! The connection to Redis, which is restored automatically.

use std::{collections::HashMap, time::Duration};

use credentials::Server;
use model::is_loopback_host;
use redis::{FromRedisValue, RedisError, ScriptInvocation, aio::ConnectionManagerConfig};
use telemetry::metrics::{Counter, Histogram, Label, count, observe};
use tokio::time::Instant;
use tracing::warn;

use crate::{
    IndexError, actions::script::Scripts as ActionScripts, link::Link, login::Login, script::Scripts,
};

/// Measures one call of Redis.
pub(crate) async fn measured<T>(
    what: &'static str,
    call: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, IndexError> {
    let start = Instant::now();
    let answer = call.await;
    observe(Histogram::IndexCallSeconds, &[(Label::Call, what)], start.elapsed());
    // A call without a failure counts 0, so that the series exists before the first one.
    count(Counter::IndexCallFailures, &[(Label::Call, what)], u64::from(answer.is_err()));
    answer.map_err(|source| IndexError::Call { what, source })
}

/// The index of builds. Cheap to clone.
#[derive(Clone)]
pub struct Index {
    pub(crate) link: Link,
    pub(crate) scripts: Scripts,
    pub(crate) action_scripts: ActionScripts,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

impl Index {
    /// Runs a script once: it may have changed the index although its answer was lost.
    pub(crate) async fn invoke<T: FromRedisValue>(
        &self,
        what: &'static str,
        invocation: &ScriptInvocation<'_>,
    ) -> Result<T, IndexError> {
        measured(what, self.link.call(async |connection| invocation.invoke_async(connection).await)).await
    }

    /// Has Redis read its file of users again, which only an operator may.
    ///
    /// # Errors
    ///
    /// Fails if Redis does not answer or refuses.
    pub async fn load_users(&self) -> Result<(), IndexError> {
        let mut command = redis::cmd("ACL");
        command.arg("LOAD");
        measured("load_users", self.link.call(async |connection| command.query_async(connection).await)).await
    }

    /// Whether Redis listens for other machines, and answers them without a key.
    ///
    /// # Errors
    ///
    /// Fails if Redis does not answer, or refuses to say so.
    pub async fn admits_other_machines(&self) -> Result<bool, IndexError> {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("bind").arg("protected-mode");
        let answer = self.link.call(async |connection| command.query_async(connection).await);
        let found: HashMap<String, String> = measured("admits_other_machines", answer).await?;
        let is_protected = found.get("protected-mode").is_some_and(|mode| mode == "yes");
        let bind = found.get("bind").map(String::as_str).unwrap_or_default();
        let is_local = |address: &str| is_loopback_host(address.trim_start_matches('-'));
        let mut addresses = bind.split_whitespace().peekable();
        // Without addresses it listens on all.
        let is_open = addresses.peek().is_none() || !addresses.all(is_local);
        Ok(is_open && !is_protected)
    }

    /// Connects to `server`; if `wait` is set, waits until it is available. Its key is read again at each connection.
    ///
    /// # Errors
    ///
    /// Fails if the URL or the credentials cannot be used, and without `wait` if the server is not available.
    pub async fn connect(server: impl Into<Server>, wait: bool) -> Result<Self, IndexError> {
        let server: Server = server.into();
        let url = server.shown();
        let config = ConnectionManagerConfig::new()
            .set_min_delay(Duration::from_millis(20))
            .set_max_delay(Duration::from_millis(200))
            .set_number_of_retries(2)
            .set_connection_timeout(Some(Duration::from_secs(2)))
            .set_response_timeout(Some(Duration::from_secs(5)));
        let config = match Login::new(&server.credentials)? {
            Some(login) => config.set_credentials_provider(login),
            None => config,
        };
        let mut warned = false;
        loop {
            match Link::open(&server, &config).await {
                Ok(link) => {
                    return Ok(Self { link, scripts: Scripts::new(), action_scripts: ActionScripts::new() });
                }
                Err(IndexError::Unreachable { source: error, .. }) if wait => {
                    if !warned {
                        warn!(url, %error, "waiting for Redis");
                        warned = true;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
