//! Whole-system tests: see `tests/system`.
