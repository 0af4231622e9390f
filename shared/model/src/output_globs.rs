//! The globs that choose a build's outputs.

use globset::{GlobSet, GlobSetBuilder};

use crate::{BadGlob, Reason, ReasonCode, read_glob};

/// Compiles glob patterns into a matcher for output paths.
pub fn output_globs(patterns: &[String]) -> Result<GlobSet, Reason> {
    let bad = |error: BadGlob| Reason {
        code: ReasonCode::OutputNotKept,
        message: format!("invalid output glob: {error}"),
    };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let pattern = pattern.trim_start_matches("./");
        set.add(read_glob(pattern).map_err(bad)?);
    }
    set.build().map_err(BadGlob::Syntax).map_err(bad)
}
