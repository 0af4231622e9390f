//! Runs the checks of `forebay conform` against a farm, and tests the checks themselves: see `tests/`.
