//! The gateway: the HTTP API, by default with the pages for browsers, and the Remote Execution API over gRPC ([`grpc`]).
//!
//! It keeps no state of its own.

pub mod grpc;
mod whereabouts;

use axum::Router;
use grpc::GrpcConfig;
use http_api::{Api, HttpServer, url};
use service::{Context, Ready, Running, ServiceError};
use settings::GatewaySettings;

/// Serves both APIs until the context is stopped.
pub fn run(context: Context, settings: GatewaySettings) -> Running {
    Box::pin(serve_all(context, settings))
}

async fn serve_all(context: Context, settings: GatewaySettings) -> Result<(), ServiceError> {
    let cas = context.cas().await?;
    let Some(api) = Api::connect(&context, cas.clone(), settings.request_bytes_max).await? else {
        return Ok(());
    };
    let pages = settings.pages.as_ref().map_or_else(Router::new, |settings| pages::routes(&api, settings));
    let server = HttpServer::bind(&context, &settings.http_listen).await?;
    let bound = server.address();
    let router = http_api::router(api, pages, bound);
    let config = GrpcConfig::new(&settings);
    let config = config.map_err(|error| ServiceError::failed("configuring the gateway", error))?;
    let serving = grpc::serve(&context, cas, config).await?;
    let (http, grpc) = (url(bound), url(serving.address).replacen("http://", "grpc://", 1));
    tracing::info!(http, grpc, "serving");
    let stop = context.stop.clone();
    tokio::spawn(whereabouts::answer(context.bus.clone(), bound, serving.address, stop));
    context.ready(Ready { http: Some(http), grpc: Some(grpc), ..Ready::default() }).await?;
    let http = async {
        server.serve(&context, router).await;
        Ok(())
    };
    tokio::try_join!(http, serving.ended()).map(drop)
}
