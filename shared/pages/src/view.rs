//! What a page shows: parts, some of which change while it is open.

use std::time::Duration;

use axum::response::Html;
use maud::{Markup, html};
use model::BuildKey;

use crate::{layout, reader::Reader};

/// A page: its title, its parts, and what makes the live ones change.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) title: String,
    pub(crate) parts: Vec<Part>,
    pub(crate) changes: Changes,
}

/// A part of a page.
#[derive(Debug)]
pub(crate) enum Part {
    /// It stays as it is, for example a form that is being filled in.
    Fixed(Markup),
    /// It is replaced when it changes. Its name is unique on the page.
    Live(&'static str, Markup),
}

/// What makes the live parts of a page change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Changes {
    /// Nothing makes it change.
    Never,
    /// Events of a build.
    Build {
        key: BuildKey,
        /// Time after which it is read again without an event, for what changes without one.
        again: Duration,
    },
    /// Changes of the state of any build.
    Builds,
    /// What has no events is read again after this time.
    Every(Duration),
}

impl View {
    /// A page that does not change.
    pub(crate) fn fixed(title: impl Into<String>, content: Markup) -> Self {
        Self { title: title.into(), parts: vec![Part::Fixed(content)], changes: Changes::Never }
    }

    /// The page with all of its parts, for its reader.
    pub(crate) fn page(&self, reader: &Reader) -> Html<String> {
        let content = html! {
            @for part in &self.parts {
                @match part {
                    Part::Fixed(markup) => { (markup) }
                    Part::Live(name, markup) => { div data-part=(name) { (markup) } }
                }
            }
        };
        layout::page_for(&self.title, &content, self.changes != Changes::Never, reader)
    }

    /// The live parts by name.
    pub(crate) fn live(self) -> Vec<(&'static str, String)> {
        let live = |part| match part {
            Part::Fixed(_) => None,
            Part::Live(name, markup) => Some((name, markup.into_string())),
        };
        self.parts.into_iter().filter_map(live).collect()
    }
}
