//! The checks of `forebay conform` against a farm, and the checks of the checks: see `tests/`.
