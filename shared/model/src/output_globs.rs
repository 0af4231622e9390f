//! The globs that choose a build's outputs.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::{Reason, ReasonCode};

/// Compiles glob patterns into a matcher for output paths.
pub fn output_globs(patterns: &[String]) -> Result<GlobSet, Reason> {
    let bad = |error: globset::Error| Reason {
        code: ReasonCode::OutputNotKept,
        message: format!("invalid output glob: {error}"),
    };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let pattern = pattern.trim_start_matches("./");
        set.add(GlobBuilder::new(pattern).literal_separator(true).build().map_err(bad)?);
    }
    set.build().map_err(bad)
}
