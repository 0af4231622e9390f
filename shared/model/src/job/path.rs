//! Paths and globs of a job: relative to its folder, and never outside it.

use std::{borrow::Borrow, fmt};

use globset::{Glob, GlobBuilder, GlobMatcher};

/// Bytes of a path.
const PATH_MAX: usize = 4000;
/// Bytes of a name in it, as file systems have it.
const NAME_MAX: usize = 255;
/// Names of a path: a folder so deep in others that few tools can work in it.
const DEPTH_MAX: usize = 200;
/// Alternatives in alternatives of a glob.
const NESTED_MAX: usize = 10;
/// What makes a path a glob.
const GLOB_CHARACTERS: [char; 4] = ['*', '?', '[', '{'];

/// A path in the folder of a job: names joined by `/`, none of them empty, `.` or `..`. Empty: the folder itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobPath(String);

/// Why a text is no path or glob in the folder of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPath {
    /// Nothing, where a path is expected.
    #[error("it is empty: a path relative to the workspace is expected")]
    Empty,
    /// It starts at the root of a machine.
    #[error("{0:?} is an absolute path: a path relative to the workspace is expected")]
    Absolute(String),
    /// It has a `..`.
    #[error("{0:?} leaves the workspace or may do so: a relative path without '..' is expected")]
    Leaves(String),
    /// A NUL byte is in no path.
    #[error("it holds a NUL byte")]
    Nul,
    /// No file system takes it.
    #[error("it has {0} bytes: at most {PATH_MAX} for a path, {NAME_MAX} for each name in it")]
    Long(usize),
    /// No tool works in a folder so deep.
    #[error("it has {0} names: at most {DEPTH_MAX} are taken")]
    Deep(usize),
    /// The folder itself, which can be neither made nor removed.
    #[error("it is the workspace itself: a path inside is expected")]
    Workspace,
    /// A glob that cannot be understood.
    #[error("the glob cannot be understood: {0}")]
    Glob(String),
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
        Ok(Self(normal(text)))
    }

    /// Reads a path that is not the folder itself.
    pub fn parse_inside(text: &str) -> Result<Self, BadPath> {
        let path = Self::parse(text)?;
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

    /// Its names, from the outermost.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// The paths of the folders that it is in, from the folder of the job (empty) inwards, and then its own.
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
    /// Whether `text` is meant as a glob.
    pub fn is_glob(text: &str) -> bool {
        text.contains(GLOB_CHARACTERS)
    }

    /// Reads a glob.
    pub fn parse(text: &str) -> Result<Self, BadPath> {
        check(text)?;
        if nested(text) > NESTED_MAX {
            return Err(BadPath::Glob(format!("more than {NESTED_MAX} braces in each other")));
        }
        let glob = GlobBuilder::new(&normal(text)).literal_separator(true).build();
        glob.map(Self).map_err(|error| BadPath::Glob(error.to_string()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.glob()
    }

    /// What tells whether a path, as [`JobPath::as_str`] gives it, is meant. Costs some microseconds: keep it.
    pub fn matcher(&self) -> GlobMatcher {
        self.0.compile_matcher()
    }
}

/// Without names that are empty or `.`.
fn normal(text: &str) -> String {
    let names: Vec<&str> = text.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    names.join("/")
}

/// How many braces are open at once at most, were each one meant as such.
fn nested(text: &str) -> usize {
    let depth = |(open, most): (usize, usize), byte| match byte {
        b'{' => (open + 1, most.max(open + 1)),
        b'}' => (open.saturating_sub(1), most),
        _ => (open, most),
    };
    text.bytes().fold((0, 0), depth).1
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
