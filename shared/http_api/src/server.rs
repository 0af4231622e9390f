//! A listening HTTP server.

use std::{net::SocketAddr, time::Duration};

use axum::Router;
use listener::{ClientListener, Protocol};
use service::{Bound, Context, StartError};
use tokio::net::TcpListener;

/// Time limit for requests that are still running after the stop signal. Event streams end immediately.
const DRAIN: Duration = Duration::from_secs(1);

/// A server with an address, which does not serve yet.
#[derive(Debug)]
pub struct HttpServer {
    listener: ClientListener,
    is_tls: bool,
    address: SocketAddr,
}

impl HttpServer {
    /// Listens on an address, for example `127.0.0.1:8080`.
    ///
    /// # Errors
    ///
    /// Fails if the address is invalid or in use, or if the certificate of the settings cannot be used.
    pub async fn bind(context: &Context, address: &str) -> Result<Self, StartError> {
        let unusable = |source| StartError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).await.map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        let tls = context.tls()?;
        let is_tls = tls.is_some();
        let listener = ClientListener::new(listener, Protocol::Http1, context.limiter.clone()).with_tls(tls);
        Ok(Self { listener, is_tls, address })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address with its scheme.
    pub fn bound(&self) -> Bound {
        Bound { scheme: if self.is_tls { "https" } else { "http" }, address: self.address }
    }

    /// The URL at which a client on this machine reaches it.
    pub fn url(&self) -> String {
        self.bound().local_url()
    }

    /// Serves until the context is stopped, and a second longer for requests that are still running.
    pub async fn serve(self, context: &Context, router: Router) {
        let late = async {
            context.stop.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = listener::serve_http(self.listener, router, context.stop.clone()) => {}
            () = late => {}
        }
    }
}
