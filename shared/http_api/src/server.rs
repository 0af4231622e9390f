//! A listening HTTP server.

use std::{net::SocketAddr, time::Duration};

use axum::Router;
use listener::{ClientListener, Protocol};
use service::{Context, StartError};
use tokio::net::TcpListener;

/// Time limit for requests that are still running after the stop signal. Event streams end immediately.
const DRAIN: Duration = Duration::from_secs(1);

/// A server with an address, which does not serve yet.
#[derive(Debug)]
pub struct HttpServer {
    listener: ClientListener,
    address: SocketAddr,
}

impl HttpServer {
    /// Listens on an address, for example `127.0.0.1:8080`.
    ///
    /// # Errors
    ///
    /// Fails if the address is invalid or in use.
    pub async fn bind(context: &Context, address: &str) -> Result<Self, StartError> {
        let unusable = |source| StartError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).await.map_err(unusable)?;
        let address = listener.local_addr().map_err(unusable)?;
        Ok(Self {
            listener: ClientListener::new(listener, Protocol::Http1, context.limiter.clone()),
            address,
        })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
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

/// The URL at which a client on this machine reaches `bound`.
pub fn url(mut bound: SocketAddr) -> String {
    if bound.ip().is_unspecified() {
        bound.set_ip(if bound.is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    format!("http://{bound}")
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn the_url_can_be_connected_to() {
        assert_eq!(url("127.0.0.1:80".parse().unwrap()), "http://127.0.0.1:80");
        assert_eq!(url("0.0.0.0:81".parse().unwrap()), "http://127.0.0.1:81");
        assert_eq!(url("[::]:82".parse().unwrap()), "http://[::1]:82");
    }
}
