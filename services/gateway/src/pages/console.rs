//! The console output on the page of a build: a window of lines, with links to the others.

use client::{LogRange, LogWindow, OpenLog};
use maud::{Markup, html};
use model::{BuildKey, OutputStream};
use telemetry::escaped;

use super::{
    ansi::{Colours, plain},
    layout::path_of,
};
use crate::{failure::Failure, frames::StoreBlobs, gateway::Gateway, input::QueryParameters};

/// Number of lines of a window.
const LINES: u64 = 500;
/// Number of the last lines that are shown where a failure is explained.
const END: usize = 8;

/// The lines that are wanted.
pub(super) struct Shown {
    /// Number of the first line; none: the last lines.
    line: Option<u64>,
}

impl Shown {
    pub(super) fn of(query: &QueryParameters) -> Result<Self, Failure> {
        Ok(Self { line: query.number("line")?.map(|line: u64| line.max(1)) })
    }

    /// Whether these are the last lines.
    pub(super) fn is_end(&self) -> bool {
        self.line.is_none()
    }

    fn range(&self) -> LogRange {
        match self.line {
            Some(line) => LogRange::From { line, lines: LINES },
            None => LogRange::Tail { lines: LINES },
        }
    }
}

/// Reads the lines that are wanted.
pub(super) async fn window(gateway: &Gateway, log: &OpenLog, shown: &Shown) -> Result<LogWindow, Failure> {
    let mut blobs = StoreBlobs(gateway.cas.clone());
    Ok(log.window(&gateway.client, &mut blobs, shown.range()).await?)
}

/// The lines, and links to those before and after them.
pub(super) fn section(key: &BuildKey, log: &OpenLog, window: &LogWindow, shown: &Shown) -> Markup {
    let attempt = log.attempt.map(|attempt| attempt.0);
    let place = |line: Option<u64>| {
        let line = line.map(|line| format!("line={line}"));
        let parts: Vec<String> = attempt.map(|it| format!("attempt={it}")).into_iter().chain(line).collect();
        format!("{}?{}#console", path_of(key), parts.join("&"))
    };
    let first = window.lines.first().map_or(1, |line| line.number);
    let raw = match attempt {
        Some(attempt) => format!("/v1/builds/{}/{}/log?attempt={attempt}", key.group, key.id),
        None => format!("/v1/builds/{}/{}/log", key.group, key.id),
    };
    html! {
        section aria-labelledby="console" {
            h2 #console { "Console" }
            @if window.total_lines == 0 {
                p { @if window.complete { "It printed nothing." } @else { "Nothing was printed yet." } }
            } @else {
                p {
                    @if window.total_lines == 1 { "1 line. " } @else { (window.total_lines) " lines. " }
                    @if first > 1 {
                        a href=(place(Some(1))) { "First" } " "
                        a href=(place(Some(first.saturating_sub(LINES).max(1)))) { "Earlier" } " "
                    }
                    @if let Some(next) = window.next_line { a href=(place(Some(next))) { "Later" } " " }
                    @if window.next_line.is_some() || shown.line.is_some() { a href=(place(None)) { "Last" } " " }
                    a href=(raw) { "Plain text" }
                }
                (lines(window))
            }
        }
    }
}

/// The last lines that are not empty, in one style.
pub(super) fn end_of(window: &LogWindow) -> Markup {
    let lines: Vec<_> = window.lines.iter().filter(|line| !line.text.trim().is_empty()).collect();
    let last = lines.iter().skip(lines.len().saturating_sub(END));
    html! {
        @if !lines.is_empty() {
            pre { @for line in last { a href={ "#L" (line.number) } { (line.number) } " " (plain(&line.text)) "\n" } }
        }
    }
}

fn lines(window: &LogWindow) -> Markup {
    let mut missing = window.missing.iter().peekable();
    let mut colours = Colours::default();
    html! {
        div.console tabindex="0" role="region" aria-label="Console output" {
            @for line in &window.lines {
                @while let Some(gap) = missing.next_if(|gap| gap.line < line.number) { (lost(gap.bytes, &gap.reason)) }
                div.line.stderr[line.stream == OutputStream::Stderr] id={ "L" (line.number) } {
                    a.number href={ "#L" (line.number) } aria-label={ "Line " (line.number) } { (line.number) }
                    span.text { (colours.line(&line.text)) @if line.cut { span.cut { " … this line is longer" } } }
                }
            }
            @for gap in missing { (lost(gap.bytes, &gap.reason)) }
        }
    }
}

fn lost(bytes: u64, why: &str) -> Markup {
    html! { div.lost { (bytes) " bytes of output are missing: " (escaped(why)) } }
}
