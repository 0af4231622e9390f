//! The error for a platform property with an invalid value.

use std::borrow::Cow;

/// Maximum number of characters of a client's text that a message repeats.
const SHOWN: usize = 200;

/// A platform property that requests a size or sets a limit, and has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid value {value:?} of platform property {property:?}: {expected}")]
pub struct InvalidNeed {
    /// The property as its client spells it.
    pub property: String,
    /// Its value, which is invalid.
    pub value: String,
    /// Description of the valid values.
    pub expected: Cow<'static, str>,
}

impl InvalidNeed {
    pub(super) fn of(name: &str, value: &str, expected: impl Into<Cow<'static, str>>) -> Self {
        let shown = |text: &str| text.chars().take(SHOWN).collect();
        Self { property: shown(name), value: shown(value), expected: expected.into() }
    }
}
