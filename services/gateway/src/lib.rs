//! The gateway: builds over HTTP, and the Remote Execution API over gRPC ([`grpc`]).
//!
//! It keeps no state of its own: calls go to the services over the bus, each event stream is a separate watch, and files
//! are streamed from the store.

mod api;
mod archived;
mod builds;
mod events;
mod failure;
mod farm;
mod files;
mod frames;
mod gateway;
pub mod grpc;
mod input;
mod log;
mod log_cache;
mod measure;
mod openapi;
mod pages;
mod routes;
mod whereabouts;

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use client::Client;
use grpc::GrpcConfig;
use listener::{ClientListener, Protocol};
use service::{Context, Ready, Running, ServiceError, StartError};
use settings::GatewaySettings;
use telemetry::metrics::{Counter, Label, expect};
use tokio::net::TcpListener;

use gateway::Gateway;

/// Time limit for requests that are still running after the stop signal. Event streams end immediately.
const DRAIN: Duration = Duration::from_secs(1);

/// Maximum number of messages buffered for a watcher that does not read. Messages beyond it are dropped and read
/// from the stream later.
const HEARD_AHEAD: usize = 32;

/// Serves both APIs until the context is stopped.
pub fn run(context: Context, settings: GatewaySettings) -> Running {
    Box::pin(serve_all(context, settings))
}

/// The OpenAPI document of the HTTP API.
pub fn openapi() -> serde_json::Value {
    api::document(&api::all())
}

async fn serve_all(context: Context, settings: GatewaySettings) -> Result<(), ServiceError> {
    expect(
        Counter::ApiRequests,
        &[(Label::Endpoint, events::WATCH_ENDPOINT), (Label::Status, "unavailable")],
    );
    let name = format!("forebay {} watches", context.instance);
    let live = tokio::select! {
        () = context.stop.cancelled() => return Ok(()),
        live = context.bus.connect_live(&name, HEARD_AHEAD) => live?,
    };
    let cas = context.cas().await?;
    let gateway = Gateway {
        client: Client::new(context.bus.clone()).with_live_connection(live),
        cas: cas.clone(),
        request_bytes_max: settings.request_bytes_max,
        reading: context.limiter.patience().reading,
        stop: context.stop.clone(),
        logs: Arc::default(),
        openapi: Arc::new(LazyLock::new(|| openapi().to_string().into())),
    };
    let address = &settings.http_listen;
    let unusable = |source| StartError::Listen { address: address.clone(), source };
    let listener = TcpListener::bind(address).await.map_err(unusable)?;
    let bound = listener.local_addr().map_err(unusable)?;
    let listener = ClientListener::new(listener, Protocol::Http1, context.limiter.clone());
    let server = listener::serve_http(listener, routes::router(gateway), context.stop.clone());
    let http = url(bound);
    let config = GrpcConfig::new(&settings);
    let config = config.map_err(|error| ServiceError::failed("configuring the gateway", error))?;
    let serving = grpc::serve(&context, cas, config).await?;
    let grpc = url(serving.address).replacen("http://", "grpc://", 1);
    tracing::info!(http, grpc, "serving");
    let stop = context.stop.clone();
    tokio::spawn(whereabouts::answer(context.bus.clone(), bound, serving.address, stop));
    context.ready(Ready { http: Some(http), grpc: Some(grpc), ..Ready::default() }).await?;
    let both = async {
        let http = async {
            server.await;
            Ok(())
        };
        tokio::try_join!(http, serving.ended()).map(drop)
    };
    tokio::select! {
        ended = both => ended,
        () = late(&context) => Ok(()),
    }
}

async fn late(context: &Context) {
    context.stop.cancelled().await;
    tokio::time::sleep(DRAIN).await;
}

/// The URL at which a client on this machine reaches `bound`.
fn url(mut bound: SocketAddr) -> String {
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
