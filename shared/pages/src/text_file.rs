//! A blob of the store as text with numbered lines.

use http_api::Failure;
use maud::{Markup, html};
use model::{BlobDigest, ErrorCode};

use crate::{ansi::Colours, site::Site};

/// Number of bytes that are shown.
const SHOWN_MAX: u64 = 512 << 10;
/// Maximum number of lines that are shown.
const LINES_MAX: usize = 10_000;

/// The first lines of a blob, if it is text.
pub(crate) async fn of(site: &Site, blob: &BlobDigest) -> Result<Markup, Failure> {
    let (data, is_whole) = start(site, blob).await?;
    Ok(lines(&data, is_whole))
}

/// The lines of bytes that are all there are.
pub(crate) fn of_bytes(data: &[u8]) -> Markup {
    lines(data, true)
}

fn lines(data: &[u8], is_whole: bool) -> Markup {
    if data.contains(&0) {
        return html! { p { "This is not text: download it to see what it contains." } };
    }
    let text = String::from_utf8_lossy(data);
    let mut colours = Colours::default();
    let lines: Vec<&str> = text.lines().take(LINES_MAX).collect();
    let is_whole = is_whole && text.lines().nth(LINES_MAX).is_none();
    html! {
        @if text.is_empty() { p { "It is empty." } }
        div.console tabindex="0" role="region" aria-label="Content" {
            @for (number, line) in (1_usize..).zip(&lines) {
                div.line id={ "L" (number) } {
                    a.number href={ "#L" (number) } aria-label={ "Line " (number) } { (number) }
                    span.text { (colours.line(line)) }
                }
            }
        }
        @if !is_whole { p { "Only the beginning is shown: download it to see the rest." } }
    }
}

/// The first bytes of a blob, and whether these are all.
async fn start(site: &Site, blob: &BlobDigest) -> Result<(Vec<u8>, bool), Failure> {
    use futures::StreamExt as _;
    let missing = || Failure::missing(format!("the store has blob {blob} no more"));
    let mut parts = site.api.cas.read(blob, 0, Some(blob.size.min(SHOWN_MAX))).await?.ok_or_else(missing)?;
    let mut data = Vec::new();
    while let Some(part) = parts.next().await {
        data.extend_from_slice(
            &part.map_err(|error| Failure::new(ErrorCode::Unavailable, error.to_string()))?,
        );
    }
    Ok((data, blob.size <= SHOWN_MAX))
}
