//! The service `web`: the pages for browsers and the HTTP API on a port of its own.
//!
//! It keeps no state: any number of them may run.

use http_api::{Api, HttpServer};
use service::{Context, Ready, Running, ServiceError};
use settings::WebSettings;

/// Serves until the context is stopped.
pub fn run(context: Context, settings: WebSettings) -> Running {
    Box::pin(serve(context, settings))
}

async fn serve(context: Context, settings: WebSettings) -> Result<(), ServiceError> {
    let cas = context.cas().await?;
    let Some(api) = Api::connect(&context, cas, settings.request_bytes_max).await? else {
        return Ok(());
    };
    let server = HttpServer::bind(&context, &settings.listen).await?;
    let callers = context.callers()?;
    let pages = pages::routes(&api, &settings.pages, &callers);
    let router = http_api::router(api, pages, &server, callers);
    let http = server.url();
    tracing::info!(http, "serving");
    context.ready(Ready { http: Some(http), ..Ready::default() }).await?;
    server.serve(&context, router).await;
    Ok(())
}
