//! The folders of an action, one at a time.

use client::text::size;
use http_api::{Failure, QueryParameters};
use maud::{Markup, html};
use model::BlobDigest;
use reapi::execution::Directory;

use super::content::Content;
use crate::{
    blob,
    layout::{short, url_part},
    site::Site,
};

/// Maximum number of entries that are listed.
const ENTRIES_MAX: usize = 2000;

/// A folder and where it is.
pub(super) struct Browsed {
    digest: BlobDigest,
    /// Path from the root; empty for the root.
    path: String,
    folder: Result<Directory, String>,
}

/// The folder that the query names by `dir` and `at`; by default the root of the inputs.
pub(super) async fn browsed(
    site: &Site,
    content: &Content,
    query: &QueryParameters,
) -> Result<Browsed, Failure> {
    let digest = match query.last("dir") {
        Some(text) => blob::digest(&text)?,
        None => content.root()?,
    };
    let folder = Content::folder(site, &digest).await.map_err(|failure| failure.parts().1);
    Ok(Browsed { digest, path: query.last("at").unwrap_or_default(), folder })
}

/// The entries of the folder.
pub(super) fn part(browsed: &Browsed, action: &BlobDigest, query: &str) -> Markup {
    let folder = match &browsed.folder {
        Ok(folder) => folder,
        Err(why) => return html! { p { (why) } },
    };
    let function = browsed.digest.function;
    let digest = |it: Option<&reapi::execution::Digest>| reapi::digest::from_proto(it?, function).ok();
    let below = |name: &str| {
        if browsed.path.is_empty() { name.to_owned() } else { format!("{}/{name}", browsed.path) }
    };
    let join = if query.is_empty() { "?" } else { "&" };
    let entries = folder.directories.len() + folder.files.len() + folder.symlinks.len();
    html! {
        p { @if browsed.path.is_empty() { "The root" } @else { a href={ "/actions/" (action) (query) "#inputs" } { "The root" } " / " (short(&browsed.path, 200)) } ", " (crate::layout::count(entries, "entry", "entries")) }
        ul.files {
            @for it in folder.directories.iter().take(ENTRIES_MAX) {
                @if let Some(digest) = digest(it.digest.as_ref()) {
                    li { a href={ "/actions/" (action) (query) (join) "dir=" (digest) "&at=" (url_part(&below(&it.name))) "#inputs" } { (short(&it.name, 200)) "/" } }
                }
            }
            @for it in folder.files.iter().take(ENTRIES_MAX) {
                @if let Some(digest) = digest(it.digest.as_ref()) {
                    li { a href={ "/blobs/" (digest) "?name=" (url_part(&below(&it.name))) } { (short(&it.name, 200)) } " " (size(digest.size)) @if it.is_executable { " executable" } }
                }
            }
            @for it in folder.symlinks.iter().take(ENTRIES_MAX) { li { (short(&it.name, 200)) " → " (short(&it.target, 200)) } }
        }
        @if entries > ENTRIES_MAX { p { "Only some of the entries are shown." } }
    }
}
