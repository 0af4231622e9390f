//! What all pages have in common.

use std::time::{Duration, SystemTime};

use axum::{
    http::StatusCode,
    response::{Html, IntoResponse, Response},
};
use client::text::date;
use http_api::{Failure, RouteNeed};
use maud::{DOCTYPE, Markup, html};
use model::{BuildKey, BuildRecord, Millis, Outcome, State};
use telemetry::escaped;

use crate::{
    FARM, OPERATE, READ,
    assets::{SCRIPT_PATH, STYLE_PATH},
    reader::Reader,
};

/// The pages that the head of each page links to, for those who may read them.
const LINKS: [(&str, &str, RouteNeed); 8] = [
    ("/builds", "Builds", READ),
    ("/mine", "My builds", READ),
    ("/tests", "Tests", READ),
    ("/farm", "Farm", FARM),
    ("/quota", "Quota", FARM),
    ("/simulate", "Simulate", FARM),
    ("/help", "Help", RouteNeed::Known),
    ("/audit", "Audit", OPERATE),
];

const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E%3Cpath d='M1 1h6v2H3v1h3v2H3v2H1z' fill='%23366fc9'/%3E%3C/svg%3E";

/// A page with a title. A live one receives its changes.
pub(crate) fn page(title: &str, content: &Markup, is_live: bool) -> Html<String> {
    page_for(title, content, is_live, &Reader::default())
}

/// The same for a reader who is known.
pub(crate) fn page_for(title: &str, content: &Markup, is_live: bool, reader: &Reader) -> Html<String> {
    let links = LINKS.into_iter().filter(|(.., need)| reader.meets(*need));
    let whole = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="description" content="Builds of a Forebay farm";
                title { (short(title, 60)) " · Forebay" }
                link rel="stylesheet" href=(*STYLE_PATH);
                link rel="icon" href=(ICON);
                script src=(*SCRIPT_PATH) defer {}
            }
            body data-now=(Millis::from(SystemTime::now()).0) data-live[is_live] data-form-token=[reader.form_token.as_deref()] {
                a.skip href="#content" { "Skip to the content" }
                header {
                    nav aria-label="Pages" {
                        a.brand href="/" { "Forebay" }
                        @for (path, name, _) in links { " " a href=(path) aria-current=[(name == title).then_some("page")] { (name) } }
                    }
                    span #connection role="status" {}
                    (reader.who())
                }
                main #content { (content) }
            }
        }
    };
    Html(reader.with_form_tokens(whole.into_string()))
}

/// A page that says why there is no other.
pub(crate) struct ErrorPage {
    failure: Failure,
    reader: Reader,
}

impl<F: Into<Failure>> From<F> for ErrorPage {
    fn from(failure: F) -> Self {
        Self::for_reader(failure, Reader::default())
    }
}

impl ErrorPage {
    pub(crate) fn for_reader(failure: impl Into<Failure>, reader: Reader) -> Self {
        Self { failure: failure.into(), reader }
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let (status, why) = self.failure.parts();
        let title = match status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Not allowed",
            _ => "Not possible",
        };
        let content = html! {
            h1 { (title) }
            p { (escaped(&why)) }
            p { a href="/" { "Show the builds" } }
        };
        (status, page_for(title, &content, false, &self.reader)).into_response()
    }
}

/// The path of the page of a build.
pub(crate) fn path_of(key: &BuildKey) -> String {
    format!("/builds/{}/{}", key.group, key.id)
}

/// Class of its colour, sign and word for the state or outcome of a build.
pub(crate) fn look(record: &BuildRecord) -> (&'static str, &'static str, &'static str) {
    match (record.result().map(|result| result.outcome), record.state()) {
        (Some(Outcome::Succeeded), _) => ("good", "✓", "succeeded"),
        (Some(outcome @ (Outcome::Cancelled | Outcome::Expired)), _) => ("warn", "○", outcome.as_str()),
        (Some(outcome), _) => ("bad", "✗", outcome.as_str()),
        (None, State::InProgress) => ("busy", "▶", "running"),
        (None, State::Enqueued | State::Finished) => ("idle", "…", "waiting"),
    }
}

/// A title that says how a build is.
pub(crate) fn icon_title(record: &BuildRecord, what: &str) -> String {
    format!("{} {what}", look(record).1)
}

/// The state or outcome: a word, a sign and a colour.
pub(crate) fn badge(record: &BuildRecord) -> Markup {
    let (class, sign, word) = look(record);
    html! { span class={ "badge " (class) } { (sign) " " (word.replace('_', " ")) } }
}

/// An instant as its age, with the date for those who point at it. The script counts on.
pub(crate) fn ago(at: Millis, now: Millis) -> Markup {
    let date = date(at);
    html! { time datetime=(date) title=(date) data-shown="ago" { (span(now.since(at))) " ago" } }
}

/// The time since an instant, which goes on.
pub(crate) fn since(at: Millis, now: Millis) -> Markup {
    let date = date(at);
    html! { time datetime=(date) title=(date) data-shown="span" { (span(now.since(at))) } }
}

/// A span of time in its two largest units.
pub(crate) fn span(time: Duration) -> String {
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
pub(crate) fn short(text: &str, most: usize) -> String {
    let line = escaped(text);
    match line.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// A row of facts; nothing if there is no value.
pub(crate) fn fact(name: &str, value: Option<impl maud::Render>) -> Markup {
    html! { @if let Some(value) = value { div { dt { (name) } dd { (value.render()) } } } }
}

/// The time between two instants. Clocks of several machines may make it negative.
pub(crate) fn in_time(from: Millis, to: Millis) -> Markup {
    html! { (span(to.since(from))) @if to < from { " (the clocks of two machines differ)" } }
}

/// A number of things.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

/// Text as a value of a URL's query or a part of its path.
pub(crate) fn url_part(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

/// A path of several parts as a part of a URL.
pub(crate) fn url_path(path: &str) -> String {
    path.split('/').map(url_part).collect::<Vec<_>>().join("/")
}

/// A table that can be scrolled sideways on a small screen.
pub(crate) fn table(name: &str, head: &[&str], rows: &Markup) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(name) {
            table {
                thead { tr { @for title in head { th scope="col" { (title) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// A choice of a form, or none.
pub(crate) fn choice<'a>(
    title: &str,
    name: &str,
    values: impl Iterator<Item = (&'a str, &'a str)>,
    chosen: &str,
) -> Markup {
    one_of(title, name, std::iter::once(("", "any")).chain(values), chosen)
}

/// A choice of a form that is always made.
pub(crate) fn one_of<'a>(
    title: &str,
    name: &str,
    values: impl Iterator<Item = (&'a str, &'a str)>,
    chosen: &str,
) -> Markup {
    html! {
        label {
            (title) " "
            select name=(name) {
                @for (value, word) in values {
                    option value=(value) selected[value.eq_ignore_ascii_case(chosen)] { (word) }
                }
            }
        }
    }
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
