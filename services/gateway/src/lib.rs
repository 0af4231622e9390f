//! The gateway: the HTTP API, by default with the pages for browsers, and the Remote Execution API over gRPC ([`grpc`]).
//!
//! It keeps no state of its own.

pub mod grpc;
mod whereabouts;

use callers::Callers;
use grpc::GrpcConfig;
use http_api::{Api, HttpServer, Routes};
use model::is_loopback_listen;
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
    let callers = context.callers()?;
    let pages = settings
        .pages
        .as_ref()
        .map_or_else(Routes::default, |settings| pages::routes(&api, settings, &callers));
    let server = HttpServer::bind(&context, &settings.http_listen).await?;
    let router = http_api::router(api, pages, &server, callers.clone());
    warn_if_open(&context, &settings, &callers);
    let config = GrpcConfig::new(&settings);
    let config = config.map_err(|error| ServiceError::failed("configuring the gateway", error))?;
    let serving = grpc::serve(&context, cas, config, callers).await?;
    let (http, grpc) = (server.url(), serving.url());
    tracing::info!(http, grpc, "serving");
    let stop = context.stop.clone();
    let bound = [server.bound(), serving.bound()];
    tokio::spawn(whereabouts::answer(context.bus.clone(), bound, stop));
    context.ready(Ready { http: Some(http), grpc: Some(grpc), ..Ready::default() }).await?;
    let http = async {
        server.serve(&context, router).await;
        Ok(())
    };
    tokio::try_join!(http, serving.ended()).map(drop)
}

/// Says so if callers of other machines may do everything.
fn warn_if_open(context: &Context, settings: &GatewaySettings, callers: &Callers) {
    let has_required_certificate =
        context.settings.access.tls.as_ref().is_some_and(|tls| tls.client_authorities.is_some());
    if callers.have_rules() || has_required_certificate {
        return;
    }
    let listens = [&settings.http_listen, &settings.grpc_listen];
    if let Some(listen) = listens.into_iter().find(|listen| !is_loopback_listen(listen)) {
        tracing::warn!(
            listen,
            "this gateway has no access rules: every machine that reaches it may do everything (setting gateway_access_file)"
        );
    }
}
