//! Globs that requests contain, compiled within limits.

use globset::{Glob, GlobBuilder};

/// Maximum bytes of a glob, which takes microseconds for each of them to compile.
const BYTES_MAX: usize = 4096;
/// Maximum number of braces open at once: the compiler recurses into each of them.
const NESTED_MAX: usize = 10;

/// A glob that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    #[error("it has {0} bytes, the limit is {BYTES_MAX}")]
    TooLong(usize),
    #[error("more than {NESTED_MAX} nested braces")]
    Nested,
    #[error("{0}")]
    Syntax(globset::Error),
}

/// Reads a glob within the limits. `*` and `?` stop at a `/`, `**` does not.
#[expect(clippy::disallowed_methods, reason = "the limits are checked")]
pub fn read_glob(text: &str) -> Result<Glob, BadGlob> {
    if text.len() > BYTES_MAX {
        return Err(BadGlob::TooLong(text.len()));
    }
    if nesting_depth(text) > NESTED_MAX {
        return Err(BadGlob::Nested);
    }
    GlobBuilder::new(text).literal_separator(true).build().map_err(BadGlob::Syntax)
}

/// Maximum number of braces open at once, counting every brace as syntax.
fn nesting_depth(text: &str) -> usize {
    let depth = |(open, most): (usize, usize), byte| match byte {
        b'{' => (open + 1, most.max(open + 1)),
        b'}' => (open.saturating_sub(1), most),
        _ => (open, most),
    };
    text.bytes().fold((0, 0), depth).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_the_stack_or_much_time_is_refused() {
        let nested = |depth| "{".repeat(depth) + "a" + &"}".repeat(depth);
        assert!(read_glob(&nested(NESTED_MAX)).is_ok());
        for depth in [NESTED_MAX + 1, 2000] {
            assert_eq!(read_glob(&nested(depth)), Err(BadGlob::Nested));
        }
        assert_eq!(read_glob(&nested(100_000)), Err(BadGlob::TooLong(200_001)));
        assert!(matches!(read_glob("a["), Err(BadGlob::Syntax(_))));
        assert!(!read_glob("a/*").unwrap().compile_matcher().is_match("a/b/c"));
    }
}
