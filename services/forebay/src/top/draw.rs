//! Draws the screen of `forebay top`.

use std::borrow::Cow;

use console::{Alignment, Style, measure_text_width, pad_str, truncate_str};
use model::{State, WhyReply, WorkspaceState};

use super::{
    snapshot::Snapshot,
    state::{Mode, Screen},
    tables::{Row, Table, table},
    view::View,
};
use crate::{
    record_text::full_text,
    style::{Tone, one_line},
    why,
};

/// Rows of the screen above and below the rows of the table.
const AROUND: usize = 4;
/// Maximum width of a column that is not the last.
const COLUMN_MAX: usize = 30;
const BETWEEN: usize = 2;

const HELP: &str = "\
 1-6, Tab, Left, Right   overview, builds, workers, executors, queues, quota
 Up, Down, j, k          select a row; PgUp, PgDn, g, G: far
 Enter                   show a build in detail; Esc: back
 /                       show only rows with a text; Esc: all rows
 s, <, >                 sort by the next or previous column; r: reverse
 c                       cancel the selected build, after a question
 o                       address of the page of the selected build, or of the view
 p                       pause
 q, Ctrl-C               quit";

/// What is drawn besides the state of the farm.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    /// Why the last question to the farm failed, and for how many seconds the state is older than it should be.
    pub(crate) stale: Option<(String, u64)>,
    /// What became of the last order.
    pub(crate) message: Option<String>,
    /// Whether colours are used.
    pub(crate) colours: bool,
    /// URL of the farm's bus.
    pub(crate) farm: String,
}

/// Width and height of the screen in characters.
pub(crate) type Size = (usize, usize);

/// Number of rows of the table that a screen of this size shows.
pub(crate) fn page((_, height): Size) -> usize {
    height.saturating_sub(AROUND).max(1)
}

/// A line of the screen: texts, each with its style.
struct Line<'a>(Vec<(Cow<'a, str>, Style)>);

impl<'a> Line<'a> {
    fn new(text: impl Into<Cow<'a, str>>, style: Style) -> Self {
        Self(vec![(text.into(), style)])
    }

    /// The line with the codes of its styles, cut or filled to the width of the screen. The last style reaches to the end.
    fn fit(self, width: usize) -> String {
        let last = self.0.len().saturating_sub(1);
        let (mut line, mut rest) = (String::new(), width);
        for (at, (text, style)) in self.0.into_iter().enumerate() {
            let text = text.replace(char::is_control, "");
            let own = if at == last { rest } else { measure_text_width(&text).min(rest) };
            rest -= own;
            // A wide character that does not fit leaves a column empty.
            let cut = truncate_str(&text, own, "");
            let text = pad_str(&cut, own, Alignment::Left, None);
            line.push_str(&style.force_styling(true).apply_to(text).to_string());
        }
        line
    }
}

fn plain(text: &str) -> Line<'_> {
    Line::new(text, Style::new())
}

/// The lines of the screen that the user looks at, with the codes of their styles. Each is as wide as the screen.
pub(crate) fn draw(
    (width, height): Size,
    screen: &Screen,
    snapshot: Option<&Snapshot>,
    status: &Status,
) -> Vec<String> {
    let rows = height.saturating_sub(AROUND - 1).max(1);
    let mut body = body(rows, screen, snapshot, status);
    if screen.mode == Mode::Help {
        let below = body.into_iter().skip(HELP.lines().count());
        body = HELP.lines().map(plain).chain(below).collect();
    }
    body.truncate(rows);
    body.resize_with(rows, || plain(""));
    let lines = [head_line(snapshot, status), view_line(screen)].into_iter();
    let lines = lines.chain(body).chain([foot_line(screen, status)]);
    lines.take(height).map(|line| line.fit(width)).collect()
}

/// What a terminal reads to show the lines from its upper left corner on.
pub(crate) fn frame(lines: &[String]) -> String {
    format!("\u{1b}[H{}", lines.join("\r\n"))
}

/// What is between the names of the views and the last line.
fn body<'a>(rows: usize, screen: &Screen, snapshot: Option<&'a Snapshot>, status: &Status) -> Vec<Line<'a>> {
    match (&screen.mode, snapshot) {
        (_, None) if status.stale.is_some() => vec![plain("the farm does not answer")],
        (_, None) => vec![plain("asking the farm ...")],
        (Mode::Detail { key, line }, Some(snapshot)) => {
            let found = snapshot.builds.iter().find(|view| view.record.build.key() == *key);
            let mut text = match found {
                Some(view) => full_text(view, snapshot.at_ms),
                None => format!("build {key} is not among the newest builds any more: forebay get {key}"),
            };
            let waits = |reply: &&WhyReply| reply.id == key.id && reply.waiting.is_some();
            if let Some(reply) = snapshot.why.as_ref().filter(waits) {
                text = format!("{}\n\n{text}", why::text(reply, snapshot.at_ms));
            }
            text.lines().skip(*line).map(|line| Line::new(line.to_owned(), Style::new())).collect()
        }
        (_, Some(snapshot)) => {
            let shown = screen.arrange(table(screen.view, snapshot));
            table_lines(rows, screen, shown, status.colours)
        }
    }
}

fn head_line<'a>(snapshot: Option<&Snapshot>, status: &Status) -> Line<'a> {
    let farm = one_line(&status.farm, 60);
    let mut text = farm.clone();
    if let Some(snapshot) = snapshot {
        let count = |state| snapshot.builds.iter().filter(|view| view.state == state).count();
        let all = || snapshot.workers.iter().flat_map(|view| &view.heartbeat.workspaces);
        let busy = all().filter(|it| matches!(it, WorkspaceState::Busy { .. })).count();
        let actions: usize = snapshot.executors.iter().map(|it| it.running.len()).sum();
        let slots: u64 = snapshot.executors.iter().map(|it| u64::from(it.slots)).sum();
        let more = if snapshot.more_builds { "+" } else { "" };
        text = format!(
            "running {}{more}  waiting {}{more}  workspaces {busy}/{}  actions {actions}/{slots}  {farm}",
            count(State::InProgress),
            count(State::Enqueued),
            all().count(),
        );
    }
    Line::new(text, Style::new().bold())
}

fn view_line<'a>(screen: &Screen) -> Line<'a> {
    let name = |(number, view): (usize, View)| {
        let style = if view == screen.view { Style::new().reverse() } else { Style::new() };
        [(format!(" {number} {} ", view.name()).into(), style), (" ".into(), Style::new())]
    };
    Line((1..).zip(View::ALL).flat_map(name).collect())
}

fn foot_line<'a>(screen: &Screen, status: &Status) -> Line<'a> {
    let text = match (&screen.mode, &status.stale, &status.message) {
        (Mode::Confirm { key }, ..) => format!("cancel build {key}? y: yes, any other key: no"),
        (Mode::Filter, ..) => format!("show rows with: {}_  (Enter: keep, Esc: all)", screen.filter),
        (_, Some((why, age)), _) => format!("{age} s old: {}", one_line(why, 200)),
        (_, None, Some(message)) => one_line(message, 200),
        (Mode::Detail { .. }, None, None) => "Esc: back  Up, Down: scroll".to_owned(),
        _ if screen.paused => "paused; p: go on".to_owned(),
        _ if !screen.filter.is_empty() => format!("only rows with {:?}; Esc: all", screen.filter),
        _ => "?: help  Enter: detail  /: filter  s: sort  c: cancel  q: quit".to_owned(),
    };
    Line::new(text, Style::new().dim())
}

/// The headings, and the rows around the selected one.
fn table_lines<'a>(rows: usize, screen: &Screen, shown: Table, colours: bool) -> Vec<Line<'a>> {
    if shown.rows.is_empty() {
        return vec![plain(if screen.filter.is_empty() {
            shown.empty
        } else {
            "no row has this text; Esc: all rows"
        })];
    }
    let title = |(at, name): (usize, &&'static str)| match screen.sort {
        Some(column) if column == at => format!("{name}{}", if screen.reverse { " v" } else { " ^" }),
        _ => (*name).to_owned(),
    };
    let titles: Vec<String> = shown.head.iter().enumerate().map(title).collect();
    let widths = widths(&shown, &titles);
    let line = |cells: Vec<(String, Style)>, own: &Style| {
        let cell = |((text, style), width): ((String, Style), &usize)| {
            let text = truncate_str(&text, *width, "").into_owned();
            let gap = " ".repeat(width + BETWEEN - measure_text_width(&text));
            [(text.into(), style), (gap.into(), own.clone())]
        };
        Line(cells.into_iter().zip(&widths).flat_map(cell).collect())
    };
    let bold = Style::new().bold();
    let head = line(titles.iter().map(|title| (title.clone(), bold.clone())).collect(), &bold);
    let selected = screen.place(&shown);
    let first = selected.map_or(0, |at| (at + 2).saturating_sub(rows));
    let row = |(at, row): (usize, Row)| {
        let is_selected = Some(at) == selected;
        let own = |style: Style| if is_selected { style.reverse() } else { style };
        let toned = |tone: Option<Tone>| tone.filter(|_| colours).map_or_else(Style::new, Tone::style);
        let cells = row.cells.into_iter().map(|cell| (cell.text, own(toned(cell.tone)))).collect();
        line(cells, &own(Style::new()))
    };
    std::iter::once(head).chain(shown.rows.into_iter().enumerate().skip(first).map(row)).collect()
}

/// Each column is as wide as its longest value, within limits unless it is the last one.
fn widths(shown: &Table, titles: &[String]) -> Vec<usize> {
    let longest = |at: usize| {
        let values = shown.rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| cell.text.as_str());
        values.chain(titles.get(at).map(String::as_str)).map(measure_text_width).max().unwrap_or(0)
    };
    let last = titles.len().saturating_sub(1);
    (0..titles.len()).map(|at| if at < last { longest(at).min(COLUMN_MAX) } else { longest(at) }).collect()
}

#[cfg(test)]
mod tests;
