//! Records effects of commands, and checks that no two attempts of a build ran at the same time.

use std::{
    fs,
    path::{Path, PathBuf},
};

use model::BuildId;

/// A file outside the workspaces that commands append to.
#[derive(Debug, Clone)]
pub struct Effects {
    folder: PathBuf,
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// Id of the build that ran the command.
    pub build: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Kind of effect: `start`, `end`, or `overlap` where another attempt still ran.
    pub what: String,
    /// Time in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

impl Effects {
    /// Opens the effects in `folder`, which is created if necessary.
    pub fn new(folder: impl AsRef<Path>) -> Self {
        fs::create_dir_all(folder.as_ref()).expect("the folder of effects");
        Self { folder: folder.as_ref().to_owned() }
    }

    /// Returns a command that records its start, runs the shell script `body`, and records its end.
    ///
    /// Every process of the command holds a lock, which reveals whether a process of another attempt is still alive.
    pub fn command(&self, body: &str) -> Vec<String> {
        let folder = self.folder.display();
        let script = format!(
            r#"note() {{ echo "$FOREBAY_BUILD_ID $FOREBAY_ATTEMPT $1 $(date +%s%3N)" >> '{folder}/effects'; }}
exec 9> '{folder}/'"$FOREBAY_BUILD_ID.lock"
flock -n 9 || note overlap
note start
{body}
note end"#
        );
        vec!["/bin/sh".to_owned(), "-c".to_owned(), script]
    }

    /// Path of the file.
    pub fn file(&self) -> PathBuf {
        self.folder.join("effects")
    }

    /// Reads all lines of the file.
    pub fn all(&self) -> Vec<Effect> {
        let text = fs::read_to_string(self.file()).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let (build, attempt) = (words.next()?, words.next()?.parse().ok()?);
            Some(Effect { build, attempt, what: words.next()?, at_ms: words.next()?.parse().ok()? })
        };
        text.lines().map(|text| line(text).unwrap_or_else(|| panic!("effect {text:?}"))).collect()
    }

    /// Reads the lines of one build.
    pub fn of(&self, build: BuildId) -> Vec<Effect> {
        let build = build.to_string();
        self.all().into_iter().filter(|effect| effect.build == build).collect()
    }

    /// Asserts that no attempt ran while another one of its build did, none ran twice, and all of a
    /// build's ran in order.
    pub fn assert_sound(&self) {
        let all = self.all();
        let overlaps: Vec<&Effect> = all.iter().filter(|effect| effect.what == "overlap").collect();
        assert!(overlaps.is_empty(), "two attempts of a build ran at once: {overlaps:?}");
        let mut last = std::collections::BTreeMap::new();
        for effect in all.iter().filter(|effect| effect.what == "start") {
            let before = last.insert(effect.build.clone(), effect.attempt).unwrap_or(0);
            assert!(before < effect.attempt, "attempt {} started after {before}: {all:?}", effect.attempt);
        }
    }
}
