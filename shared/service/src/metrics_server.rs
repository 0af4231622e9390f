//! The server of `/metrics` and `/healthz`.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, Uri},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use listener::{ClientListener, Limiter, Protocol, Tls, Usage};
use tokio_util::sync::CancellationToken;

use crate::StartError;

/// Serves until the process ends, also while it drains; returns the URL of the metrics. If client certificates have an
/// authority, only clients with such a certificate read metrics; anyone may ask whether the process is ready.
pub(crate) async fn serve(
    address: &str,
    tls: Option<Tls>,
    needs_certificate: bool,
    limiter: Limiter,
) -> Result<String, StartError> {
    let listen = |source| StartError::Listen { address: address.to_owned(), source };
    let parsed: SocketAddr = address
        .parse()
        .map_err(|error| listen(std::io::Error::new(std::io::ErrorKind::InvalidInput, error)))?;
    let socket = tokio::net::TcpListener::bind(parsed).await.map_err(listen)?;
    let bound = socket.local_addr().map_err(listen)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let listener = ClientListener::new(socket, Protocol::Http1, limiter).with_tls(tls);
    tokio::spawn(listener::serve_http(listener, routes(needs_certificate), CancellationToken::new()));
    Ok(format!("{scheme}://{bound}/metrics"))
}

fn routes(needs_certificate: bool) -> Router {
    let routes = telemetry::metrics_routes();
    if needs_certificate { routes.layer(middleware::from_fn(admit)) } else { routes }
}

async fn admit(uri: Uri, request: Request, next: Next) -> Response {
    let usage = request.extensions().get::<Arc<Usage>>();
    if uri.path() == "/metrics" && usage.is_none_or(|usage| usage.certificate_names().is_empty()) {
        let why = "metrics need a client certificate of the authority in the setting tls_client_ca_file\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    next.run(request).await
}
