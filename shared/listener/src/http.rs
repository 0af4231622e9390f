//! Serves HTTP/1.1 on a counted listener.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
};
use http_body::Body as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::codegen::Service as _;

use crate::{
    ClientListener,
    body::{OpenRequest, RequestBody, ResponseBody},
    connection::ClientConnection,
    limiter::Usage,
};

/// Size of the read and write buffers of a connection in bytes; small, since there may be hundreds of slow readers.
const BUFFER_BYTES: usize = 64 << 10;

/// Serves `routes` until `stop`, and then until the requests in progress are answered.
pub async fn serve_http(listener: ClientListener, routes: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let patience = listener.limiter().patience();
    loop {
        let connection = tokio::select! {
            connection = listener.accept() => connection,
            () = stop.cancelled() => break,
        };
        connections.spawn(serve(connection, routes.clone(), patience.head, patience.body, stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve(
    connection: ClientConnection,
    routes: Router,
    head: Duration,
    body: Duration,
    stop: CancellationToken,
) {
    let usage = connection.usage();
    let answer = service_fn(move |request| answer(routes.clone(), request, Arc::clone(&usage), body));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(BUFFER_BYTES);
    let connection = server.serve_connection(TokioIo::new(connection), answer);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = telemetry::error_chain(&error), "a connection ended early");
    }
}

async fn answer(
    mut routes: Router,
    request: Request<Incoming>,
    usage: Arc<Usage>,
    body: Duration,
) -> Result<Response<ResponseBody<Body>>, Infallible> {
    let sending = !request.body().is_end_stream();
    let open = OpenRequest::new(Arc::clone(&usage));
    let mut request = request;
    request.extensions_mut().insert(Arc::clone(&usage));
    let request = if sending {
        request.map(|sent| Body::new(RequestBody::new(sent, Some(usage), Some(body), |slow| Box::new(slow))))
    } else {
        request.map(|_| Body::empty())
    };
    let response = routes.call(request).await?;
    Ok(response.map(|inner| ResponseBody::new(inner, Some(open), None)))
}
