//! What the user of `forebay top` looks at, and what a key does: without a terminal and without the farm.

use console::Key;
use model::BuildKey;

use super::{
    tables::{Row, Table},
    view::View,
};

/// How keys are understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mode {
    Table,
    /// The filter is being typed.
    Filter,
    /// The selected build in detail, from this line on.
    Detail {
        key: BuildKey,
        line: usize,
    },
    /// Whether to cancel a build.
    Confirm {
        key: BuildKey,
    },
    Help,
}

/// What the program must do after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    Quit,
    /// Ask the services at once.
    Read,
    Cancel(BuildKey),
    /// Show the address of the page with this path.
    Address(String),
    /// Show this text until the next key.
    Message(&'static str),
}

/// What the user looks at.
#[derive(Debug, Clone)]
pub(crate) struct Screen {
    pub(crate) view: View,
    pub(crate) mode: Mode,
    /// Rows that do not contain this text, in any case, are left out.
    pub(crate) filter: String,
    /// Column that orders the rows; `None`: the order of the services.
    pub(crate) sort: Option<usize>,
    pub(crate) reverse: bool,
    pub(crate) paused: bool,
    /// The selected row, which stays selected when rows move.
    selected: Option<String>,
}

#[expect(clippy::wildcard_enum_match_arm, reason = "all other keys have no effect")]
impl Screen {
    pub(crate) fn new(view: View) -> Self {
        Self {
            view,
            mode: Mode::Table,
            filter: String::new(),
            sort: None,
            reverse: false,
            paused: false,
            selected: None,
        }
    }

    /// The rows that match the filter, in their order.
    pub(crate) fn arrange(&self, mut table: Table) -> Table {
        let wanted = self.filter.to_lowercase();
        let contains = |row: &Row| row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&wanted));
        table.rows.retain(|row| wanted.is_empty() || contains(row));
        if let Some(column) = self.sort {
            table.rows.sort_by(|a, b| match (a.cells.get(column), b.cells.get(column)) {
                (Some(a), Some(b)) => match (a.rank, b.rank) {
                    (Some(a), Some(b)) => a.total_cmp(&b),
                    _ => a.text.cmp(&b.text),
                },
                (a, b) => a.is_some().cmp(&b.is_some()),
            });
        }
        if self.reverse {
            table.rows.reverse();
        }
        table
    }

    /// Place of the selected row; the first one if it is gone.
    pub(crate) fn place(&self, table: &Table) -> Option<usize> {
        let found = self.selected.as_ref().and_then(|id| table.rows.iter().position(|row| row.id == *id));
        found.or_else(|| (!table.rows.is_empty()).then_some(0))
    }

    /// The build that is shown in detail.
    pub(crate) fn detail(&self) -> Option<&BuildKey> {
        match &self.mode {
            Mode::Detail { key, .. } => Some(key),
            Mode::Table | Mode::Filter | Mode::Confirm { .. } | Mode::Help => None,
        }
    }

    /// Handles a key. `table` is what is shown, arranged, and `page` the number of its rows on the screen.
    pub(crate) fn key(&mut self, key: &Key, table: &Table, page: usize) -> Effect {
        if *key == Key::CtrlC {
            return Effect::Quit;
        }
        match &mut self.mode {
            Mode::Filter => self.type_filter(key),
            Mode::Confirm { key: build } => {
                let build = build.clone();
                self.mode = Mode::Table;
                // Any other key than y keeps the build.
                if *key == Key::Char('y') { Effect::Cancel(build) } else { Effect::None }
            }
            Mode::Help => {
                self.mode = Mode::Table;
                Effect::None
            }
            Mode::Detail { line, .. } => {
                match key {
                    Key::ArrowDown | Key::Char('j') => *line = line.saturating_add(1),
                    Key::ArrowUp | Key::Char('k') => *line = line.saturating_sub(1),
                    Key::PageDown => *line = line.saturating_add(page),
                    Key::PageUp => *line = line.saturating_sub(page),
                    Key::Escape | Key::Enter | Key::Backspace | Key::Char('q') => {
                        self.mode = Mode::Table;
                    }
                    _ => {}
                }
                Effect::None
            }
            Mode::Table => self.table_key(key, table, page),
        }
    }

    fn type_filter(&mut self, key: &Key) -> Effect {
        match key {
            Key::Char(c) => self.filter.push(*c),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            Key::Enter => self.mode = Mode::Table,
            _ => {}
        }
        Effect::None
    }

    fn table_key(&mut self, key: &Key, table: &Table, page: usize) -> Effect {
        let build = self.place(table).and_then(|at| table.rows.get(at)?.build.clone());
        match key {
            Key::Char('q') => return Effect::Quit,
            Key::Char('?' | 'h') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Escape => self.filter.clear(),
            Key::Char('p') => {
                self.paused = !self.paused;
                return if self.paused { Effect::None } else { Effect::Read };
            }
            Key::Char('r') => self.reverse = !self.reverse,
            Key::Char('s' | '>') => self.sort_by(table, |column, columns| (column + 1) % columns),
            Key::Char('<') => self.sort_by(table, |column, columns| (column + columns - 1) % columns),
            Key::Char(digit @ '1'..='6') => {
                let at = digit.to_digit(10).unwrap_or(1) as usize - 1;
                self.show(View::ALL.get(at).copied().unwrap_or(self.view));
            }
            Key::Tab | Key::ArrowRight => self.turn(1),
            Key::BackTab | Key::ArrowLeft => self.turn(View::ALL.len() - 1),
            Key::ArrowDown | Key::Char('j') => self.step(table, |at, _| at + 1),
            Key::ArrowUp | Key::Char('k') => self.step(table, |at, _| at.saturating_sub(1)),
            Key::PageDown => self.step(table, |at, _| at + page),
            Key::PageUp => self.step(table, |at, _| at.saturating_sub(page)),
            Key::Home | Key::Char('g') => self.step(table, |_, _| 0),
            Key::End | Key::Char('G') => self.step(table, |_, last| last),
            Key::Enter => {
                if let Some(key) = build {
                    self.mode = Mode::Detail { key, line: 0 };
                    return Effect::Read;
                }
            }
            Key::Char('c') => match build {
                Some(key) => self.mode = Mode::Confirm { key },
                None => return Effect::Message("select a build to cancel"),
            },
            Key::Char('o') => {
                let path = build.map_or_else(|| self.view.page().to_owned(), |key| format!("/builds/{key}"));
                return Effect::Address(path);
            }
            _ => {}
        }
        Effect::None
    }

    fn show(&mut self, view: View) {
        if view != self.view {
            (self.view, self.sort, self.reverse, self.selected) = (view, None, false, None);
        }
    }

    fn turn(&mut self, by: usize) {
        let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        let next = (at + by) % View::ALL.len();
        self.show(View::ALL.get(next).copied().unwrap_or(self.view));
    }

    /// Selects the next column; after the last one comes the order of the services.
    fn sort_by(&mut self, table: &Table, next: impl Fn(usize, usize) -> usize) {
        let unsorted = table.head.len();
        let column = next(self.sort.unwrap_or(unsorted), unsorted + 1);
        self.sort = (column < unsorted).then_some(column);
    }

    fn step(&mut self, table: &Table, to: impl Fn(usize, usize) -> usize) {
        let last = table.rows.len().saturating_sub(1);
        let at = to(self.place(table).unwrap_or(0), last).min(last);
        self.selected = table.rows.get(at).map(|row| row.id.clone());
    }
}

#[cfg(test)]
mod tests;
