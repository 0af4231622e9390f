//! What all pages have in common.

use std::time::Duration;

use axum::{
    http::StatusCode,
    response::{Html, IntoResponse, Response},
};
use client::text::date;
use maud::{DOCTYPE, Markup, html};
use model::{BuildKey, BuildRecord, Millis, Outcome, State};
use telemetry::escaped;

use super::STYLE_PATH;
use crate::failure::Failure;

/// A page with a title.
pub(super) fn page(title: &str, content: &Markup) -> Html<String> {
    let whole = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (short(title, 60)) " · Forebay" }
                link rel="stylesheet" href=(STYLE_PATH);
                link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E%3Cpath d='M1 1h6v2H3v1h3v2H3v2H1z' fill='%23366fc9'/%3E%3C/svg%3E";
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                header { nav aria-label="Pages" { a href="/builds" { "Forebay" } " " a href="/builds" { "Builds" } " " a href="/farm" { "Farm" } } }
                main #content { (content) }
            }
        }
    };
    Html(whole.into_string())
}

/// A page that says why there is no other.
pub(super) struct ErrorPage(Failure);

impl<F: Into<Failure>> From<F> for ErrorPage {
    fn from(failure: F) -> Self {
        Self(failure.into())
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let (status, why) = self.0.parts();
        let title = if status == StatusCode::NOT_FOUND { "Not found" } else { "Not possible" };
        let content = html! {
            h1 { (title) }
            p { (escaped(&why)) }
            p { a href="/builds" { "Show the builds" } }
        };
        (status, page(title, &content)).into_response()
    }
}

/// The path of the page of a build.
pub(super) fn path_of(key: &BuildKey) -> String {
    format!("/builds/{}/{}", key.group, key.id)
}

/// The state or outcome: a word, a sign and a colour.
pub(super) fn badge(record: &BuildRecord) -> Markup {
    let (class, sign, word) = match (record.result().map(|result| result.outcome), record.state()) {
        (Some(Outcome::Succeeded), _) => ("good", "✓", "succeeded"),
        (Some(outcome @ (Outcome::Cancelled | Outcome::Expired)), _) => ("warn", "○", outcome.as_str()),
        (Some(outcome), _) => ("bad", "✗", outcome.as_str()),
        (None, State::InProgress) => ("busy", "▶", "running"),
        (None, State::Enqueued | State::Finished) => ("idle", "…", "waiting"),
    };
    html! { span class={ "badge " (class) } { (sign) " " (word.replace('_', " ")) } }
}

/// An instant as its age, with the date for those who point at it.
pub(super) fn ago(at: Millis, now: Millis) -> Markup {
    let date = date(at);
    html! { time datetime=(date) title=(date) { (span(now.since(at))) " ago" } }
}

/// A span of time in its two largest units.
pub(super) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// The first characters of a text, in one line.
pub(super) fn short(text: &str, most: usize) -> String {
    let line = escaped(text);
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// A row of facts; nothing if there is no value.
pub(super) fn fact(name: &str, value: Option<impl maud::Render>) -> Markup {
    html! { @if let Some(value) = value { dt { (name) } dd { (value.render()) } } }
}

#[cfg(test)]
mod tests {
    use super::{short, span};
    use std::time::Duration;

    #[test]
    fn times_have_two_units_and_long_texts_are_cut() {
        let of = |seconds| span(Duration::from_secs(seconds));
        assert_eq!([of(3), of(59), of(61), of(3_661)], ["3.0 s", "59 s", "1 min 1 s", "1 h 1 min"]);
        assert_eq!([of(90_000), span(Duration::from_millis(120))], ["1 d 1 h", "120 ms"]);
        assert_eq!([short("über\n", 9), short("überall", 4)], ["über\\n", "über…"]);
    }
}
