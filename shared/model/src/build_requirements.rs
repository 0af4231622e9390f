//! What a build requires of its worker, and what a worker offers.

use std::{collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ParseIdError, SECRETS_PROPERTY,
    text_digest::{TextDigest, is_text_digest},
};

/// Properties that a worker must offer to run a build: the requested value by name. `a|b` as the value of `hwgroup` means
/// any of several hardware groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct BuildRequirements(pub BTreeMap<String, String>);

/// Maximum number of properties that a build may require.
const REQUIREMENTS_MAX: usize = 32;
/// Maximum length of all names and values together in bytes: every look at the queue reads them.
const REQUIREMENTS_BYTES_MAX: usize = 512;

/// Why requirements are not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequirements {
    #[error("field requirements has {count} properties: expected at most {REQUIREMENTS_MAX}")]
    TooMany { count: usize },
    #[error(
        "field requirements has {bytes} bytes of names and values: expected at most {REQUIREMENTS_BYTES_MAX}"
    )]
    TooLarge { bytes: usize },
    #[error("field requirements has the property {name:?}: ask for secrets in the field secrets")]
    Reserved { name: String },
    #[error(
        "invalid property {name:?} = {value:?} in field requirements: expected a name and a value, both without control \
         characters"
    )]
    BadProperty { name: String, value: String },
}

impl BuildRequirements {
    /// Whether every worker meets them.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The required properties with the requested value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Checks the number, the size and the characters of the properties.
    pub fn check(&self) -> Result<(), InvalidRequirements> {
        if self.0.len() > REQUIREMENTS_MAX {
            return Err(InvalidRequirements::TooMany { count: self.0.len() });
        }
        let bytes = self.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > REQUIREMENTS_BYTES_MAX {
            return Err(InvalidRequirements::TooLarge { bytes });
        }
        if let Some((name, _)) = self.iter().find(|(name, _)| name.starts_with(SECRETS_PROPERTY)) {
            return Err(InvalidRequirements::Reserved { name: name.to_owned() });
        }
        match self.iter().find(|(name, value)| !is_sound(name) || !is_sound(value)) {
            Some((name, value)) => {
                Err(InvalidRequirements::BadProperty { name: name.to_owned(), value: value.to_owned() })
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for BuildRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name} = {value:?}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Properties that a worker offers to builds: the values by name. In the settings bucket under `worker.<id>`, written by
/// each worker at its start, so that they are known even while no such worker is live.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct WorkerProperties(pub BTreeMap<String, Vec<String>>);

impl WorkerProperties {
    /// Whether the worker offers no property.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the size and the characters of names and values.
    pub fn check(&self) -> Result<(), InvalidProperties> {
        let texts = || self.0.iter().flat_map(|(name, values)| std::iter::once(name).chain(values));
        if let Some(bad) = texts().find(|text| !is_sound(text)) {
            return Err(InvalidProperties::BadText(bad.clone()));
        }
        let bytes = texts().map(String::len).sum();
        if bytes > PROPERTIES_BYTES_MAX { Err(InvalidProperties::TooLarge { bytes }) } else { Ok(()) }
    }

    /// The values that the worker offers for the property `name`.
    pub fn values<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0.get(name).into_iter().flatten().map(String::as_str)
    }

    /// The id of these properties: the same for equal ones.
    pub fn id(&self) -> WorkerPropertiesId {
        let mut digest = TextDigest::default();
        for (name, values) in &self.0 {
            digest = digest.bytes(&(values.len() as u64).to_le_bytes());
            digest = std::iter::once(name).chain(values).fold(digest, |digest, text| digest.text(text));
        }
        WorkerPropertiesId(digest.id())
    }
}

/// Maximum size of all names and values that a worker offers in bytes: each of its heartbeats contains them.
const PROPERTIES_BYTES_MAX: usize = 16 << 10;

/// Why a worker cannot offer properties.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProperties {
    #[error("invalid name or value {0:?}: expected some characters, none of them a control character")]
    BadText(String),
    #[error("{bytes} bytes of names and values: expected at most {PROPERTIES_BYTES_MAX}")]
    TooLarge { bytes: usize },
}

/// Whether a text can be the name or a value of a property.
fn is_sound(text: &str) -> bool {
    !text.trim().is_empty() && !text.chars().any(char::is_control)
}

/// Id of equal [`WorkerProperties`]: 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerPropertiesId(String);

impl FromStr for WorkerPropertiesId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_text_digest(text) {
            return Ok(Self(text.to_owned()));
        }
        Err(ParseIdError::new("worker properties id", text, "expected 32 hexadecimal digits"))
    }
}

impl fmt::Display for WorkerPropertiesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(properties: &[(&str, &[&str])]) -> WorkerProperties {
        let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        WorkerProperties(
            properties.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect(),
        )
    }

    fn requires(properties: &[(&str, &str)]) -> BuildRequirements {
        BuildRequirements(
            properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        )
    }

    #[test]
    fn different_properties_have_different_ids() {
        let all = [
            offers(&[]),
            offers(&[("a", &[])]),
            offers(&[("a", &["b"])]),
            offers(&[("a", &[]), ("b", &[])]),
            offers(&[("a", &["b", "c"])]),
            offers(&[("a", &["bc"])]),
        ];
        let ids: std::collections::BTreeSet<WorkerPropertiesId> =
            all.iter().map(WorkerProperties::id).collect();
        assert_eq!(ids.len(), all.len());
        for id in ids {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn properties_that_no_build_can_require_are_refused() {
        assert_eq!(offers(&[("gpu", &["a100"]), ("none", &[])]).check(), Ok(()));
        assert_eq!(offers(&[("gpu", &[""])]).check(), Err(InvalidProperties::BadText(String::new())));
        assert!(offers(&[("a\n", &["b"])]).check().is_err());
        let long = "x".repeat(PROPERTIES_BYTES_MAX);
        assert!(offers(&[("a", &[long.as_str()])]).check().is_err());
    }

    #[test]
    fn requirements_that_cannot_be_met_or_kept_are_refused() {
        assert_eq!(requires(&[("gpu", "a100"), ("os", "debian 12")]).check(), Ok(()));
        let bad = InvalidRequirements::BadProperty { name: "gpu".into(), value: String::new() };
        assert_eq!(requires(&[("gpu", "")]).check(), Err(bad));
        assert!(requires(&[("a\n", "b")]).check().is_err());
        let many: Vec<String> = (0..=REQUIREMENTS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "x")).collect();
        assert_eq!(
            requires(&many).check(),
            Err(InvalidRequirements::TooMany { count: REQUIREMENTS_MAX + 1 })
        );
        let long = "x".repeat(REQUIREMENTS_BYTES_MAX);
        let too_large = InvalidRequirements::TooLarge { bytes: REQUIREMENTS_BYTES_MAX + 1 };
        assert_eq!(requires(&[("a", &long)]).check(), Err(too_large));
    }
}
