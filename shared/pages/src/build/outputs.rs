//! The output files of a build: a list by folder, and one file as text.

use std::{collections::BTreeMap, sync::Arc};

use axum::response::Html;
use callers::Caller;
use client::text::size;
use http_api::{Failure, PathParameters};
use maud::{Markup, html};
use model::{BuildView, OutputFile};
use telemetry::escaped;

use crate::{
    layout::{ErrorPage, count, page_for, path_of, short, url_path},
    reader::Reader,
    site::Site,
    text_file,
};

/// Maximum number of outputs that are listed.
const OUTPUTS_MAX: usize = 1000;

/// The files by folder.
pub(super) fn part(view: &BuildView) -> Markup {
    let Some(result) = view.record.result() else { return html! {} };
    let mut folders: BTreeMap<&str, Vec<&OutputFile>> = BTreeMap::new();
    for file in result.outputs.iter().take(OUTPUTS_MAX) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        folders.entry(folder).or_default().push(file);
    }
    let many = result.outputs.len() > 50;
    html! {
        @if !result.outputs.is_empty() || !result.outputs_missing.is_empty() { h2 #outputs { "Outputs" } }
        @for (number, (folder, files)) in folders.iter().enumerate() {
            @if folder.is_empty() {
                (list(view, files))
            } @else {
                details id={ "folder-" (number) } open[!many] {
                    summary { (escaped(folder)) "/ — " (count(files.len(), "file", "files")) }
                    (list(view, files))
                }
            }
        }
        @if result.outputs.len() > OUTPUTS_MAX { p { (result.outputs.len() - OUTPUTS_MAX) " more; use " code { "forebay get" } } }
        @for pattern in &result.outputs_missing { p { "No file matches " code { (escaped(pattern)) } } }
        @for file in &result.outputs_not_kept { p.warn { (escaped(&file.path)) " was not kept: " (escaped(&file.reason)) } }
    }
}

fn list(view: &BuildView, files: &[&OutputFile]) -> Markup {
    let path = path_of(&view.record.build.key());
    html! {
        ul.files {
            @for file in files {
                @let name = file.path.rsplit('/').next().unwrap_or(&file.path);
                li {
                    a href={ (path) "/file/" (url_path(&file.path)) } { (short(name, 200)) }
                    " " (size(file.size_bytes)) " "
                    a href={ "/v1" (path) "/outputs/" (url_path(&file.path)) } download aria-label={ "Download " (short(name, 100)) } { "Download" }
                }
            }
        }
    }
}

/// Handles `GET /builds/{group}/{id}/file/{path}`: shows an output file as text. What it contains is never more than that.
pub(crate) async fn file(
    axum::extract::State(site): axum::extract::State<Site>,
    axum::extract::Extension(caller): axum::extract::Extension<Arc<Caller>>,
    names: PathParameters,
) -> Result<Html<String>, ErrorPage> {
    let (key, path) = (names.key()?, names.text("path"));
    let view = site.client().get(&key).await?;
    let outputs = view.record.result().map(|result| result.outputs.as_slice()).unwrap_or_default();
    let file = outputs.iter().find(|file| file.path == path);
    let file = file.ok_or_else(|| Failure::missing(format!("build {key} has no output file {path:?}")))?;
    let shown = text_file::of(&site, &file.blob()).await?;
    let content = html! {
        p { a href=(path_of(&key)) { "Build " (key.id) } }
        h1 { (short(path, 200)) }
        p { (size(file.size_bytes)) " " a href={ "/v1" (path_of(&key)) "/outputs/" (url_path(path)) } download { "Download" } }
        (shown)
    };
    Ok(page_for(path, &content, false, &Reader::of(&caller, &site.callers)))
}
