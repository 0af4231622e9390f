//! The console output of a build: windows of lines, with links to each line.

use axum::{
    extract::State as FromState,
    response::{Html, IntoResponse},
};
use client::{LINES_MAX, LogGap, LogLine, LogRange, LogWindow, OpenLog, RunChoice};
use http_api::{Failure, PathParameters, QueryParameters, StoreBlobs};
use maud::{Markup, html};
use model::{Attempt, BuildKey, OutputStream};
use telemetry::escaped;

use crate::{
    ansi::{Colours, plain},
    layout::{ErrorPage, count, path_of},
    site::Site,
};

/// Number of lines of a window.
const LINES: u64 = 500;
/// Number of the last lines that are shown where a failure is explained.
const END: usize = 8;
/// Maximum number of characters of a line on a page.
const LINE_MAX: usize = 4096;

/// The part of a log that is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    /// The run; the last one by default.
    pub(crate) choice: RunChoice,
    /// Number of the first line; none: the last lines.
    line: Option<u64>,
    lines: u64,
}

impl Shown {
    pub(crate) fn of(query: &QueryParameters) -> Result<Self, Failure> {
        let attempt = query.number("attempt")?.map(Attempt);
        let line = query.number("line")?.map(|line: u64| line.max(1));
        let lines = query.number("lines")?.unwrap_or(LINES).clamp(1, LINES_MAX);
        Ok(Self { choice: attempt.map_or(RunChoice::Last, RunChoice::Attempt), line, lines })
    }

    /// Whether these are the last lines.
    pub(crate) fn is_end(&self) -> bool {
        self.line.is_none()
    }

    /// The same run, and no more lines than the number of the last one needs.
    #[must_use]
    pub(crate) fn only_state(self) -> Self {
        Self { line: None, lines: END as u64 + 4, ..self }
    }

    fn range(&self) -> LogRange {
        match self.line {
            Some(line) => LogRange::From { line, lines: self.lines },
            None => LogRange::Tail { lines: self.lines },
        }
    }
}

/// Reads the lines that are wanted.
pub(crate) async fn window(site: &Site, log: &OpenLog, shown: &Shown) -> Result<LogWindow, Failure> {
    let mut blobs = StoreBlobs(site.api.cas.clone());
    Ok(log.window(site.client(), &mut blobs, shown.range()).await?)
}

/// Handles `GET /builds/{group}/{id}/lines`: the lines of a window, for the script.
pub(crate) async fn lines(
    FromState(site): FromState<Site>,
    names: PathParameters,
    query: QueryParameters,
) -> Result<impl IntoResponse, ErrorPage> {
    let (key, shown) = (names.key()?, Shown::of(&query.without_empty())?);
    let log = site.api.open_log(&key, shown.choice).await?;
    let window = window(&site, &log, &shown).await?;
    let base = Base::of(&key, &log);
    Ok(Html(rows(&window, &base).into_string()))
}

/// The addresses of the log of one run.
pub(crate) struct Base {
    path: String,
    attempt: Option<Attempt>,
}

impl Base {
    pub(crate) fn of(key: &BuildKey, log: &OpenLog) -> Self {
        Self { path: path_of(key), attempt: log.attempt }
    }

    fn with(&self, more: &str) -> String {
        let attempt = self.attempt.map(|attempt| format!("attempt={attempt}"));
        let parts: Vec<&str> =
            attempt.as_deref().into_iter().chain((!more.is_empty()).then_some(more)).collect();
        format!("{}?{}", self.path, parts.join("&"))
    }

    /// The page with this line.
    pub(crate) fn line(&self, number: u64) -> String {
        format!("{}#L{number}", self.with(&format!("line={number}")))
    }

    fn from(&self, line: u64) -> String {
        format!("{}#console", self.with(&format!("line={line}")))
    }

    fn end(&self) -> String {
        format!("{}#console", self.with(""))
    }

    /// Where the script reads lines: of the run that is shown, or always of the last one.
    fn lines(&self, choice: RunChoice) -> String {
        let attempt = match choice {
            RunChoice::Attempt(attempt) => attempt.to_string(),
            RunChoice::Last | RunChoice::Invocation(_) => String::new(),
        };
        format!("{}/lines?attempt={attempt}", self.path)
    }

    fn raw(&self) -> String {
        let attempt = self.attempt.map_or_else(String::new, |attempt| format!("?attempt={attempt}"));
        format!("/v1{}/log{attempt}", self.path)
    }
}

/// How long the log is and whether it grows: changes while the build runs.
pub(crate) fn state(window: &LogWindow) -> Markup {
    html! {
        p #log-state data-total=(window.total_lines) data-complete=(window.complete) data-attempt=[window.attempt.map(|attempt| attempt.0)] {
            @match (window.total_lines, window.complete) {
                (0, true) => { "It printed nothing." }
                (0, false) => { "Nothing was printed yet." }
                (1, _) => { "1 line" }
                (lines, _) => { (lines) " lines" }
            }
            @if window.total_lines > 0 && !window.complete { " so far" }
        }
    }
}

/// The lines, and links to those before and after them.
pub(crate) fn section(base: &Base, window: &LogWindow, shown: &Shown, query: Option<&str>) -> Markup {
    let first = window.lines.first().map_or(1, |line| line.number);
    html! {
        form.find role="search" method="get" action={ (base.path) "#found" } {
            @if let Some(attempt) = base.attempt { input type="hidden" name="attempt" value=(attempt); }
            label { "Find in the log " input type="search" name="q" value=(query.unwrap_or_default()) maxlength="200"; }
            button { "Find" }
        }
        p.pager {
            @if first > 1 {
                a href=(base.from(1)) { "First lines" } " "
                a href=(base.from(first.saturating_sub(LINES).max(1))) { "Earlier lines" } " "
            }
            @if let Some(next) = window.next_line { a href=(base.from(next)) { "Later lines" } " " }
            @if window.next_line.is_some() || !shown.is_end() { a href=(base.end()) { "Last lines" } " " }
            a href=(base.raw()) { "Plain text" } " "
            a href=(base.raw()) download="console.txt" { "Download" } " "
            @if !window.complete { button #log-end.script-only type="button" hidden { "Follow the end" } }
        }
        div #log.console tabindex="0" role="region" aria-label="Console output" data-total=(window.total_lines)
            data-complete=(window.complete) data-url=(base.lines(shown.choice)) {
            (rows(window, base))
        }
    }
}

/// The last lines that are not empty, in one style.
pub(crate) fn end_of(window: &LogWindow, base: &Base) -> Markup {
    let lines: Vec<_> = window.lines.iter().filter(|line| !line.text.trim().is_empty()).collect();
    let last = lines.iter().skip(lines.len().saturating_sub(END));
    html! {
        @if !lines.is_empty() {
            pre tabindex="0" { @for line in last { a href=(base.line(line.number)) { (line.number) } " " (plain(cut(&line.text))) "\n" } }
        }
    }
}

fn rows(window: &LogWindow, base: &Base) -> Markup {
    let mut missing = window.missing.iter().peekable();
    let mut colours = Colours::default();
    html! {
        @for line in &window.lines {
            (row(line, base, &mut colours, std::iter::from_fn(|| missing.next_if(|gap| gap.line < line.number))))
        }
        @for gap in missing { div.line data-line=(gap.line) { span.number {} span.text { (lost(gap)) } } }
    }
}

fn row<'a>(
    line: &LogLine,
    base: &Base,
    colours: &mut Colours,
    gaps: impl Iterator<Item = &'a LogGap>,
) -> Markup {
    let text = cut(&line.text);
    html! {
        div.line.stderr[line.stream == OutputStream::Stderr] id={ "L" (line.number) } data-line=(line.number) {
            a.number href=(base.line(line.number)) aria-label={ "Line " (line.number) } { (line.number) }
            span.text {
                @for gap in gaps { (lost(gap)) " " }
                (colours.line(text))
                @if line.cut || text.len() < line.text.len() { span.cut { " … this line is longer" } }
            }
        }
    }
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(LINE_MAX).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

fn lost(gap: &LogGap) -> Markup {
    html! { span.lost { "[" (gap.bytes) " bytes of output are missing: " (escaped(&gap.reason)) "]" } }
}

/// Maximum number of found lines on a page.
const FOUND_MAX: usize = 200;
/// Maximum number of characters of the text to find.
const TEXT_MAX: usize = 200;

/// The lines of the log that contain a text, as links.
pub(crate) async fn found(
    site: &Site,
    log: &OpenLog,
    base: &Base,
    text: &str,
    query: &QueryParameters,
) -> Result<Markup, Failure> {
    if text.chars().count() > TEXT_MAX {
        return Err(Failure::invalid(format!("q: expected at most {TEXT_MAX} characters")));
    }
    let from = query.number("from")?.unwrap_or(1);
    let blobs = StoreBlobs(site.api.cas.clone());
    let found = log.find(site.client(), &blobs, text, from, FOUND_MAX).await?;
    Ok(html! {
        section aria-labelledby="found" {
            h3 #found {
                @match (found.lines.len(), found.next_line) {
                    (0, None) => { "No line contains “" (escaped(text)) "”" }
                    (lines, None) => { (count(lines, "line contains", "lines contain")) " “" (escaped(text)) "”" }
                    (lines, Some(_)) => { "The first " (lines) " lines with “" (escaped(text)) "”" }
                }
            }
            @if !found.lines.is_empty() {
                pre.found tabindex="0" {
                    @for line in &found.lines { a href=(base.line(line.number)) { (line.number) } " " (plain(cut(&line.text))) "\n" }
                }
            }
            @if found.lost_bytes > 0 { p.lost { (found.lost_bytes) " bytes of output could not be searched." } }
            @if let Some(next) = found.next_line { p { a href={ (base.path) "?" (query.with("from", &next.to_string())) "#found" } { "Search on from line " (next) } } }
        }
    })
}
