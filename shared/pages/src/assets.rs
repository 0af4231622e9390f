//! The style and the script of the pages. Their names change with their content, so that browsers keep them.

use std::sync::LazyLock;

use axum::{
    http::{HeaderValue, Method, header},
    response::IntoResponse,
    routing::get,
};
use http_api::{RouteNeed, Routes};
use model::Digest;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Path of the style.
pub(crate) static STYLE_PATH: LazyLock<String> = LazyLock::new(|| path(STYLE, "css"));
/// Path of the script.
pub(crate) static SCRIPT_PATH: LazyLock<String> = LazyLock::new(|| path(SCRIPT, "js"));

fn path(content: &str, kind: &str) -> String {
    let digest = Digest::of(content.as_bytes()).to_string();
    let hash = digest.rsplit(':').next().unwrap_or_default();
    format!("/pages/{}.{kind}", hash.get(..16).unwrap_or(hash))
}

/// The routes of style and script.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Routes<S> {
    let style = get(|| async { asset(STYLE, "text/css; charset=utf-8") });
    let script = get(|| async { asset(SCRIPT, "text/javascript; charset=utf-8") });
    Routes::default().route(Method::GET, &STYLE_PATH, RouteNeed::Nothing, style).route(
        Method::GET,
        &SCRIPT_PATH,
        RouteNeed::Nothing,
        script,
    )
}

fn asset(content: &'static str, kind: &'static str) -> impl IntoResponse {
    let kept = HeaderValue::from_static("max-age=31536000, immutable");
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CACHE_CONTROL, kept)], content)
}

#[cfg(test)]
mod tests {
    use super::SCRIPT;

    #[test]
    fn the_script_stays_small() {
        assert!(SCRIPT.len() < 12 << 10, "{} bytes", SCRIPT.len());
    }
}
