//! Whole-system tests: see the folder `tests/system`.
