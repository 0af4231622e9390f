//! Colours and tables for terminals. There are no colours if `NO_COLOR` is set.

use comfy_table::{ContentArrangement, Table, presets};
use console::{Style, Term};
use model::{BuildRecord, Outcome, State};

/// Default width of an output that is not a terminal, if `COLUMNS` is not set.
const COLUMNS: usize = 80;

/// Meaning of a text, which determines its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Bad,
    Warning,
    Busy,
    Faint,
}

impl Tone {
    /// The tone for the state of a build.
    pub(crate) fn of(record: &BuildRecord) -> Self {
        match (record.result().map(|result| result.outcome), record.state()) {
            (Some(outcome), _) => Self::of_outcome(outcome),
            (None, State::InProgress) => Self::Busy,
            (None, State::Enqueued | State::Finished) => Self::Faint,
        }
    }

    fn of_outcome(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded => Self::Good,
            Outcome::Failed | Outcome::TimedOut | Outcome::Lost | Outcome::Rejected => Self::Bad,
            Outcome::Cancelled | Outcome::Expired => Self::Warning,
        }
    }

    /// The colour of the tone.
    pub(crate) fn style(self) -> Style {
        match self {
            Self::Good => Style::new().green(),
            Self::Bad => Style::new().red().bold(),
            Self::Warning => Style::new().yellow(),
            Self::Busy => Style::new().cyan(),
            Self::Faint => Style::new().dim(),
        }
    }

    /// Colours `text` for stdout.
    pub(crate) fn stdout(self, text: &str) -> String {
        self.style().apply_to(text).to_string()
    }

    /// Colours `text` for stderr.
    pub(crate) fn stderr(self, text: &str) -> String {
        self.style().for_stderr().apply_to(text).to_string()
    }
}

/// An empty table without borders. On a terminal its cells are wrapped to the width; elsewhere each row is one line.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if let Some((_, columns)) = Term::stdout().size_checked() {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
    }
    table
}

/// Width of stdout in characters.
pub(crate) fn columns() -> usize {
    let terminal = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    let said = || std::env::var("COLUMNS").ok()?.parse().ok();
    terminal.or_else(said).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

/// `text` in one line of at most `columns` characters, with escaped control characters.
pub(crate) fn one_line(text: &str, columns: usize) -> String {
    let line = telemetry::escaped(text);
    if line.chars().count() <= columns {
        return line;
    }
    let cut = columns.saturating_sub(3);
    line.chars().take(cut).chain("...".chars().take(columns - cut)).collect()
}

#[cfg(test)]
mod tests {
    use super::one_line;

    #[test]
    fn texts_fit_in_a_line() {
        assert_eq!(one_line("a\nb\u{1b}", 10), "a\\nb\\u{1b}");
        assert_eq!(one_line(&"x".repeat(61), 60), format!("{}...", "x".repeat(57)));
        assert_eq!(one_line("abcd", 2), "..");
        assert_eq!(one_line("abcd", 0), "");
    }
}
