//! The router: the routes of the table, and what is answered at other paths.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Query, Request},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};

use callers::Callers;

use crate::{
    access::Routes,
    api::{self, Parameter},
    failure::Failure,
    guard, measure, registry,
    server::HttpServer,
    state::Api,
};

/// The HTTP API, and `more` routes with it, on this server and for these callers.
pub fn router(api: Api, more: Routes<Api>, server: &HttpServer, callers: Callers) -> Router {
    let names = Arc::new(guard::Names::new(server.address(), &api.origin, callers.have_rules()));
    let origin = api.origin.clone();
    let routes = api::all().into_iter().fold(Routes::default(), |table, endpoint| {
        let path = endpoint.path;
        let known = Arc::new(Known(endpoint.query().cloned().collect()));
        let check = move |request, next| {
            let known = known.clone();
            async move { known.check(request, next).await }
        };
        let handler = endpoint.handler.route_layer(middleware::from_fn(check));
        table.route(endpoint.method, path, endpoint.need, handler)
    });
    let (guarded, access) = routes.merge(registry::routes()).merge(more).guarded(callers.clone(), origin);
    guarded
        .layer(middleware::from_fn(move |request, next| access.clone().check(request, next)))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(move |request, next| {
            let (callers, names) = (callers.clone(), Arc::clone(&names));
            async move { guard::check(&names, &callers, request, next).await }
        }))
        .layer(middleware::from_fn(measure::measure))
        .with_state(api)
}

/// The query parameters of a route.
struct Known(Vec<Parameter>);

impl Known {
    /// Rejects unknown query parameters, so that a misspelt one is not silently ignored; repeated ones, of which only
    /// one would count; and values outside of the documented limits.
    async fn check(&self, request: Request, next: Next) -> Response {
        match self.find_fault(&request) {
            Ok(()) => next.run(request).await,
            Err(failure) => failure.into_response(),
        }
    }

    fn find_fault(&self, request: &Request) -> Result<(), Failure> {
        if request.uri().query().is_none() {
            return Ok(());
        }
        let Query(pairs): Query<Vec<(String, String)>> = Query::try_from_uri(request.uri())?;
        for (at, (name, value)) in pairs.iter().enumerate() {
            let Some(parameter) = self.0.iter().find(|known| known.name == name) else {
                return Err(self.unknown(name));
            };
            if !parameter.repeated && pairs.iter().take(at).any(|(earlier, _)| earlier == name) {
                return Err(Failure::invalid(format!("query parameter {name:?} is given more than once")));
            }
            parameter.check(value)?;
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> Failure {
        let known: Vec<&str> = self.0.iter().map(|parameter| parameter.name).collect();
        let accepted = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Failure::invalid(format!("unknown query parameter {name:?}; accepted: {accepted}"))
    }
}

async fn unknown() -> Failure {
    Failure::missing("no resource at this path; builds are at /v1/builds, their pages at /builds")
}

async fn wrong_method() -> Failure {
    Failure::invalid("method not allowed at this path").with_status(StatusCode::METHOD_NOT_ALLOWED)
}
