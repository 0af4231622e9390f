//! The connection to Redis, which is restored automatically, and with the certificate that its client has then.

use std::{fmt, sync::Arc, time::Duration};

use credentials::{PemTexts, Server};
use parking_lot::Mutex;
use redis::{
    ErrorKind, RedisError, RedisResult,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    IndexError,
    login::{client, unusable, uses_tls},
};

/// A connection that many calls share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link(Arc<State>);

struct State {
    server: Server,
    config: ConnectionManagerConfig,
    made: Mutex<Made>,
}

/// A connection, and the files of TLS with which it is made again when it is lost.
struct Made {
    texts: PemTexts,
    connection: ConnectionManager,
    /// When the files were last read.
    looked: Instant,
    /// Why the files could not be used then.
    fault: Option<String>,
}

/// Interval at which the files are read while calls fail.
const LOOK: Duration = Duration::from_millis(500);

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.0.server.shown()).finish()
    }
}

/// Whether a call failed because its connection was lost, or could not be made.
pub(crate) fn has_no_connection(error: &RedisError) -> bool {
    // A certificate without its key fails before there is a connection.
    let cannot_connect = error.kind() == ErrorKind::InvalidClientConfig;
    cannot_connect || error.is_io_error() || error.is_connection_dropped()
}

impl Link {
    /// Connects once, with the files of TLS as they are now.
    ///
    /// # Errors
    ///
    /// Fails if the credentials cannot be used, or if the server is not available.
    pub(crate) async fn open(server: &Server, config: &ConnectionManagerConfig) -> Result<Self, IndexError> {
        let (client, texts) = client(server)?;
        let connected = ConnectionManager::new_with_config(client, config.clone()).await;
        let unreachable = |source| IndexError::Unreachable { url: server.shown(), source };
        let connection = connected.map_err(unreachable)?;
        let made = Made { texts, connection, looked: Instant::now(), fault: None };
        Ok(Self(Arc::new(State { server: server.clone(), config: config.clone(), made: Mutex::new(made) })))
    }

    /// Makes a call. If it fails because there is no connection, the next one is made with the files of TLS as they are then: with
    /// an expired certificate there would never be one again.
    pub(crate) async fn call<T>(
        &self,
        call: impl AsyncFnOnce(&mut ConnectionManager) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let mut connection = self.0.made.lock().connection.clone();
        let answer = call(&mut connection).await;
        if answer.as_ref().is_err_and(has_no_connection) {
            self.renew();
        }
        answer
    }

    /// Makes the connection again if the files of TLS have changed since it was made.
    fn renew(&self) {
        let State { server, config, made } = &*self.0;
        let mut made = made.lock();
        if !uses_tls(server) || made.looked.elapsed() < LOOK {
            return;
        }
        made.looked = Instant::now();
        match changed(server, &made.texts, config) {
            Ok(None) => {}
            Ok(Some((texts, connection))) => {
                info!(url = server.shown(), "connecting to Redis with changed files of TLS");
                *made = Made { texts, connection, looked: made.looked, fault: None };
            }
            Err(error) => {
                let error = telemetry::error_chain(&error);
                if made.fault.as_ref() != Some(&error) {
                    warn!(error, "cannot use the changed files of TLS for Redis");
                    made.fault = Some(error);
                }
            }
        }
    }
}

/// A connection with the files of TLS as they are now; none if they are those of `texts`. A file that is being replaced, and a
/// certificate without its key, are errors.
fn changed(
    server: &Server,
    texts: &PemTexts,
    config: &ConnectionManagerConfig,
) -> Result<Option<(PemTexts, ConnectionManager)>, IndexError> {
    let (client, found) = client(server)?;
    if found == *texts {
        return Ok(None);
    }
    // The client does not compare a certificate with its key before it connects.
    server.credentials.tls.client_config().map_err(unusable)?;
    let connection = ConnectionManager::new_lazy_with_config(client, config.clone());
    let unreachable = |source| IndexError::Unreachable { url: server.shown(), source };
    Ok(Some((found, connection.map_err(unreachable)?)))
}
