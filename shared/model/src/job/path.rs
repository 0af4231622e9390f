//! Paths and globs of a job: relative to its folder, and never outside it.

use std::{borrow::Borrow, fmt};

use globset::{Glob, GlobMatcher};

use crate::{BadGlob, read_glob};

/// Maximum length of a path in bytes.
const PATH_MAX: usize = 4000;
/// Maximum length in bytes of a name in a path, as in common file systems.
const NAME_MAX: usize = 255;
/// Maximum number of names in a path; few tools work in deeper folders.
const DEPTH_MAX: usize = 200;
/// The folder of a job that is the farm's: its files are never those of tasks.
pub const RESERVED_FOLDER: &str = ".forebay";
/// Characters that make a path a glob.
const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];

/// A path in the folder of a job: names joined by `/`, none of them empty, `.` or `..`. Empty: the folder itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobPath(String);

/// A text that is not a valid path or glob in the folder of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    #[error("it is empty: expected a path relative to the workspace")]
    Empty,
    #[error("{0:?} is an absolute path: expected a path relative to the workspace")]
    Absolute(String),
    /// The path contains a `..`.
    #[error("{0:?} leaves the workspace or may do so: expected a relative path without '..'")]
    Leaves(String),
    /// No path can contain a NUL byte.
    #[error("it contains a NUL byte")]
    Nul,
    /// Length in bytes, more than file systems support.
    #[error("it has {0} bytes: the limit is {PATH_MAX} for a path and {NAME_MAX} for each name in it")]
    Long(usize),
    /// Number of names, more than most tools support.
    #[error("it has {0} names: the limit is {DEPTH_MAX}")]
    Deep(usize),
    /// The folder of the job, which can be neither made nor removed.
    #[error("it is the workspace itself: expected a path inside it")]
    Workspace,
    /// The path is in the folder that the farm keeps for its own files.
    #[error(
        "{0:?} is in the folder {RESERVED_FOLDER}, which is reserved for files of the farm: use another name"
    )]
    Reserved(String),
    #[error("invalid glob: {0}")]
    Glob(BadGlob),
}

impl JobPath {
    /// Reads a path: `./a//b/` is `a/b`, `.` is the folder itself.
    pub fn parse(text: &str) -> Result<Self, BadPath> {
        check(text)?;
        let names = || text.split('/').filter(|name| !name.is_empty() && *name != ".");
        if let Some(long) = names().map(str::len).find(|bytes| *bytes > NAME_MAX) {
            return Err(BadPath::Long(long));
        }
        let depth = names().count();
        if depth > DEPTH_MAX {
            return Err(BadPath::Deep(depth));
        }
        Ok(Self(normalized(text)))
    }

    /// Reads a path of a job's files, which may be the folder itself, but is not the farm's.
    pub fn parse_in_job(text: &str) -> Result<Self, BadPath> {
        let path = Self::parse(text)?;
        if is_reserved(path.as_str()) { Err(BadPath::Reserved(path.0)) } else { Ok(path) }
    }

    /// Reads a path of a job's files that is not the folder itself.
    pub fn parse_inside(text: &str) -> Result<Self, BadPath> {
        let path = Self::parse_in_job(text)?;
        if path.is_workspace() { Err(BadPath::Workspace) } else { Ok(path) }
    }

    /// The text; empty for the folder itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the folder itself.
    pub fn is_workspace(&self) -> bool {
        self.0.is_empty()
    }

    /// Its names, outermost first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The paths of all enclosing folders, from the job's folder (empty) inwards, and then the path itself.
    pub fn with_folders(&self) -> impl Iterator<Item = &str> {
        let own = (!self.is_workspace()).then_some(self.0.as_str());
        let folders = self.0.match_indices('/').filter_map(|(at, _)| self.0.get(..at));
        std::iter::once("").chain(folders).chain(own)
    }
}

impl fmt::Display for JobPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_workspace() { "." } else { &self.0 })
    }
}

impl Borrow<str> for JobPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A glob over the paths of a job: `*` and `?` stop at a `/`, `**` does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JobGlob(Glob);

impl JobGlob {
    /// Whether `text` contains a glob character.
    pub fn is_glob(text: &str) -> bool {
        text.contains(GLOB_CHARACTERS)
    }

    /// Reads a glob and checks its nesting depth.
    pub fn parse(text: &str) -> Result<Self, BadPath> {
        check(text)?;
        let text = normalized(text);
        if is_reserved(&text) {
            return Err(BadPath::Reserved(text));
        }
        Ok(Self(read_glob(&text).map_err(BadPath::Glob)?))
    }

    pub fn as_str(&self) -> &str {
        self.0.glob()
    }

    /// Compiles a matcher for paths as returned by [`JobPath::as_str`]. Takes some microseconds: keep the result.
    pub fn matcher(&self) -> GlobMatcher {
        self.0.compile_matcher()
    }
}

/// Whether a path without empty names is the farm's folder or lies in it.
fn is_reserved(path: &str) -> bool {
    path.split('/').next() == Some(RESERVED_FOLDER)
}

/// Removes names that are empty or `.`.
fn normalized(text: &str) -> String {
    let names: Vec<&str> = text.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    names.join("/")
}

fn check(text: &str) -> Result<(), BadPath> {
    if text.is_empty() {
        return Err(BadPath::Empty);
    }
    if text.len() > PATH_MAX {
        return Err(BadPath::Long(text.len()));
    }
    if text.contains('\0') {
        return Err(BadPath::Nul);
    }
    if text.starts_with('/') {
        return Err(BadPath::Absolute(text.to_owned()));
    }
    if text.split('/').any(|name| name == "..") {
        return Err(BadPath::Leaves(text.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_has_one_text() {
        for text in ["a/b", "./a/b", "a//b/", "a/./b", ".//a/b/."] {
            assert_eq!(JobPath::parse(text).unwrap().as_str(), "a/b", "{text}");
        }
        assert!(JobPath::parse(".").unwrap().is_workspace());
        assert_eq!(JobPath::parse("./").unwrap().to_string(), ".");
        assert_eq!(
            JobPath::parse("a..b/...").unwrap().as_str(),
            "a..b/...",
            "dots inside a name are no traversal"
        );
    }

    #[test]
    fn what_leaves_or_cannot_be_is_refused() {
        for text in ["", "/etc/passwd", "..", "a/../b", "a/..", "a\0b"] {
            assert!(JobPath::parse(text).is_err(), "{text:?}");
            assert!(JobGlob::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(JobPath::parse(&"x".repeat(256)), Err(BadPath::Long(256)));
        assert_eq!(JobPath::parse(&"x/".repeat(2500)), Err(BadPath::Long(5000)));
        assert_eq!(JobPath::parse(&"x/".repeat(201)), Err(BadPath::Deep(201)));
        assert!(JobPath::parse(&"x/".repeat(200)).is_ok());
        assert_eq!(JobPath::parse_inside("./."), Err(BadPath::Workspace));
    }

    #[test]
    fn the_farms_own_folder_is_refused_and_no_other() {
        for text in [".forebay", "./.forebay/tasks.jsonl", ".forebay//x/*"] {
            assert!(matches!(JobPath::parse_in_job(text), Err(BadPath::Reserved(_))), "{text}");
            assert!(matches!(JobPath::parse_inside(text), Err(BadPath::Reserved(_))), "{text}");
            assert!(matches!(JobGlob::parse(text), Err(BadPath::Reserved(_))), "{text}");
        }
        for text in ["a/.forebay", ".forebayignore", "forebay"] {
            assert!(JobPath::parse_inside(text).is_ok() && JobGlob::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn folders_come_from_the_outermost() {
        let folders =
            |text| JobPath::parse(text).unwrap().with_folders().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(folders("a/b/c"), ["", "a", "a/b", "a/b/c"]);
        assert_eq!(folders("."), [""]);
    }

    #[test]
    fn a_star_stops_at_a_slash() {
        let matches = |glob, path: &str| JobGlob::parse(glob).unwrap().matcher().is_match(path);
        assert!(matches("./src/*.h", "src/a.h"));
        assert!(!matches("src/*.h", "src/deep/a.h"));
        assert!(matches("src/**/*.h", "src/deep/a.h"));
        assert!(matches!(JobGlob::parse("src/[a"), Err(BadPath::Glob(_))));
        for text in ["src//*.h", "src/./*.h", ".//src/*.h"] {
            assert!(matches(text, "src/a.h"), "{text}");
        }
    }

    #[test]
    fn a_glob_that_is_taken_can_be_matched() {
        let nested = |depth: usize| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
        assert!(JobGlob::parse(&nested(10)).unwrap().matcher().is_match("a"));
        assert!(matches!(JobGlob::parse(&nested(260)), Err(BadPath::Glob(_))));
        assert!(JobGlob::parse(&"{a,b}".repeat(700)).unwrap().matcher().is_match("a".repeat(700)));
    }
}
