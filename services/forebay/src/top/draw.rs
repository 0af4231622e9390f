//! Draws the screen of `forebay top`.

use model::{State, WhyReply, WorkspaceState};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Cell, Clear, Paragraph, Row, Table as Grid, TableState},
};

use super::{
    snapshot::Snapshot,
    state::{Mode, Screen},
    tables::{Table, table},
    view::View,
};
use crate::{
    record_text::full_text,
    style::{Tone, one_line},
    why,
};

/// Rows of the screen above and below the table.
const AROUND: u16 = 4;

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

/// Number of rows of the table that a screen of this height shows.
pub(crate) fn page(height: u16) -> usize {
    usize::from(height.saturating_sub(AROUND)).max(1)
}

/// Draws what the user looks at.
pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen, snapshot: Option<&Snapshot>, status: &Status) {
    let areas = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)];
    let [head, views, body, foot] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(head_line(snapshot, status), head);
    frame.render_widget(view_line(screen), views);
    match (&screen.mode, snapshot) {
        (_, None) => {
            let text =
                if status.stale.is_some() { "the farm does not answer" } else { "asking the farm ..." };
            frame.render_widget(Paragraph::new(text), body);
        }
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
            let lines: Vec<Line<'_>> = text.lines().skip(*line).map(Line::from).collect();
            frame.render_widget(Paragraph::new(lines), body);
        }
        (_, Some(snapshot)) => {
            let shown = screen.arrange(table(screen.view, snapshot));
            draw_table(frame, body, screen, &shown, status.colours);
        }
    }
    if screen.mode == Mode::Help {
        let height = u16::try_from(HELP.lines().count()).unwrap_or(u16::MAX).min(body.height);
        let area = Rect { height, ..body };
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(HELP), area);
    }
    frame.render_widget(foot_line(screen, status), foot);
}

fn head_line<'a>(snapshot: Option<&Snapshot>, status: &Status) -> Paragraph<'a> {
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
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::BOLD))
}

fn view_line<'a>(screen: &Screen) -> Paragraph<'a> {
    let name = |(number, view): (usize, View)| {
        let style =
            if view == screen.view { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {number} {} ", view.name()), style), Span::raw(" ")]
    };
    Paragraph::new((1..).zip(View::ALL).flat_map(name).collect::<Line<'_>>())
}

fn foot_line<'a>(screen: &Screen, status: &Status) -> Paragraph<'a> {
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
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::DIM))
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, screen: &Screen, shown: &Table, colours: bool) {
    if shown.rows.is_empty() {
        let text = if screen.filter.is_empty() { shown.empty } else { "no row has this text; Esc: all rows" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let title = |(at, name): (usize, &&'static str)| match screen.sort {
        Some(column) if column == at => format!("{name}{}", if screen.reverse { " v" } else { " ^" }),
        _ => (*name).to_owned(),
    };
    let titles: Vec<String> = shown.head.iter().enumerate().map(title).collect();
    let widths = widths(shown, &titles);
    let cell = |cell: &super::tables::Cell| {
        let style = cell.tone.filter(|_| colours).map(style_of).unwrap_or_default();
        Cell::from(Span::styled(cell.text.clone(), style))
    };
    let rows = shown.rows.iter().map(|row| Row::new(row.cells.iter().map(cell).collect::<Vec<_>>()));
    let grid = Grid::new(rows, widths)
        .header(Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .column_spacing(2);
    let mut state = TableState::default().with_selected(screen.place(shown));
    frame.render_stateful_widget(grid, area, &mut state);
}

/// Each column is as wide as its longest value; the last one has the rest.
fn widths(shown: &Table, titles: &[String]) -> Vec<Constraint> {
    let longest = |at: usize| {
        let values =
            shown.rows.iter().filter_map(|row| row.cells.get(at)).map(|cell| cell.text.chars().count());
        values.chain(titles.get(at).map(|title| title.chars().count())).max().unwrap_or(0)
    };
    let last = titles.len().saturating_sub(1);
    let width = |at| match u16::try_from(longest(at)) {
        Ok(width) if at < last => Constraint::Length(width.min(30)),
        Ok(_) | Err(_) => Constraint::Fill(1),
    };
    (0..titles.len()).map(width).collect()
}

fn style_of(tone: Tone) -> Style {
    match tone {
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Tone::Warning => Style::new().fg(Color::Yellow),
        Tone::Busy => Style::new().fg(Color::Cyan),
        Tone::Faint => Style::new().add_modifier(Modifier::DIM),
    }
}

#[cfg(test)]
mod tests;
