//! Marks in the output that make systems for continuous integration fold it.

use clap::ValueEnum;
use model::{BuildRecord, Millis, Outcome};
use telemetry::escaped;

use crate::record_text::state_line;

/// When and how output is folded: the option `--fold`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fold {
    /// As the CI system that runs this command needs it, unless stdout is a terminal
    #[default]
    Auto,
    /// GitHub Actions: `::group::`, and `::error` on failure
    Github,
    /// GitLab CI: `section_start` and `section_end`
    Gitlab,
    /// Buildkite: `---`, and `^^^ +++` on failure
    Buildkite,
    /// Do not fold the output
    Never,
}

/// A system that folds output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Folder {
    GitHub,
    GitLab,
    Buildkite,
}

impl Fold {
    /// The system to fold for, if `is_set` tells whether an environment variable is set to another value than `false`.
    pub(crate) fn folder(self, stdout_is_terminal: bool, is_set: impl Fn(&str) -> bool) -> Option<Folder> {
        match self {
            Self::Never => None,
            Self::Github => Some(Folder::GitHub),
            Self::Gitlab => Some(Folder::GitLab),
            Self::Buildkite => Some(Folder::Buildkite),
            Self::Auto if stdout_is_terminal => None,
            Self::Auto => {
                let all = [
                    ("GITHUB_ACTIONS", Folder::GitHub),
                    ("GITLAB_CI", Folder::GitLab),
                    ("BUILDKITE", Folder::Buildkite),
                ];
                all.into_iter().find(|(name, _)| is_set(name)).map(|(_, folder)| folder)
            }
        }
    }
}

/// The marks around the output of each attempt of one build.
#[derive(Debug)]
pub(crate) struct Folds {
    folder: Folder,
    /// Name of the section that is open.
    open: Option<String>,
    /// Whether the last line of the output is incomplete.
    mid_line: bool,
}

impl Folds {
    pub(crate) fn new(folder: Folder) -> Self {
        Self { folder, open: None, mid_line: false }
    }

    /// Records the last byte of output that was printed.
    pub(crate) fn note_output(&mut self, last: u8) {
        self.mid_line = last != b'\n';
    }

    /// The mark before the output of the attempt that `record` starts.
    pub(crate) fn begin(&mut self, record: &BuildRecord, now: Millis) -> String {
        let title = escaped(&format!("build {}: {}", record.build.key(), state_line(record)));
        let name = format!("forebay_{}_{}", record.build.id, record.attempt);
        let mark = match self.folder {
            Folder::GitHub => format!("::group::{}", github_data(&title)),
            Folder::GitLab => {
                let seconds = now.0 / 1000;
                format!("\u{1b}[0Ksection_start:{seconds}:{name}[collapsed=true]\r\u{1b}[0K{title}")
            }
            Folder::Buildkite => format!("--- {title}"),
        };
        self.open = Some(name);
        self.on_own_line(mark)
    }

    /// The mark after the output of the attempt, if there is one to close.
    pub(crate) fn end(&mut self, now: Millis) -> Option<String> {
        let name = self.open.take()?;
        let mark = match self.folder {
            Folder::GitHub => "::endgroup::".to_owned(),
            Folder::GitLab => format!("\u{1b}[0Ksection_end:{}:{name}\r\u{1b}[0K", now.0 / 1000),
            Folder::Buildkite => return None,
        };
        Some(self.on_own_line(mark))
    }

    /// The mark that points to a failure, if `record` has one.
    pub(crate) fn failure(&mut self, record: &BuildRecord) -> Option<String> {
        record.result().filter(|result| result.outcome != Outcome::Succeeded)?;
        let mark = match self.folder {
            Folder::GitHub => {
                let title = github_property(&escaped(&format!("build {}", record.build.key())));
                format!("::error title={title}::{}", github_data(&escaped(&state_line(record))))
            }
            Folder::GitLab => return None,
            Folder::Buildkite => "^^^ +++".to_owned(),
        };
        Some(self.on_own_line(mark))
    }

    fn on_own_line(&mut self, mark: String) -> String {
        if std::mem::take(&mut self.mid_line) { format!("\n{mark}") } else { mark }
    }
}

/// Escapes the text of a command of GitHub Actions.
fn github_data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a command of GitHub Actions.
fn github_property(text: &str) -> String {
    github_data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::{Fold, Folder, github_data, github_property};

    #[test]
    fn the_environment_names_the_system() {
        let folder = |name: &'static str| Fold::Auto.folder(false, |asked| asked == name);
        assert_eq!(folder("GITHUB_ACTIONS"), Some(Folder::GitHub));
        assert_eq!(folder("GITLAB_CI"), Some(Folder::GitLab));
        assert_eq!(folder("BUILDKITE"), Some(Folder::Buildkite));
        assert_eq!(folder("CI"), None);
        assert_eq!(Fold::Auto.folder(true, |_| true), None, "a terminal does not fold");
        assert_eq!(Fold::Never.folder(false, |_| true), None);
        assert_eq!(Fold::Gitlab.folder(true, |_| false), Some(Folder::GitLab), "as the user says");
    }

    #[test]
    fn no_text_ends_a_command_of_github() {
        assert_eq!(github_data("50%\r\n::error::x"), "50%25%0D%0A::error::x");
        assert_eq!(github_property("a:b,c%"), "a%3Ab%2Cc%25");
    }
}
