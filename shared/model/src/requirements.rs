//! What an execution requires of its executor, besides its size.

use std::{borrow::Cow, collections::BTreeSet, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ParseIdError,
    text_digest::{TextDigest, is_text_digest},
};

/// Platform properties that an executor must offer to run an execution. The executors that offer all of them are its
/// processing set, in the terms of the thesis on load balancing (section 3.1).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Requirements {
    /// The requested properties, without those that state a size.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub properties: BTreeSet<RequestedProperty>,
    /// Whether only executors where the input root is the action's `/` can run it; otherwise only the others can.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub root_is_input: bool,
}

/// A platform property with the requested value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct RequestedProperty {
    /// Name of the property.
    pub name: String,
    /// Requested value; `a|b` means any of several hardware groups.
    pub value: String,
}

impl Requirements {
    /// The requirements that name these properties.
    pub fn of<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let property = |(name, value): (&str, &str)| RequestedProperty {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        Self { properties: properties.into_iter().map(property).collect(), root_is_input: false }
    }

    /// Whether every executor meets them whose input root is not the action's `/`.
    pub fn is_empty(&self) -> bool {
        self.properties.is_empty() && !self.root_is_input
    }

    /// The id of these requirements: the same for equal ones in any order.
    pub fn id(&self) -> RequirementsId {
        if self.is_empty() {
            return RequirementsId::none();
        }
        let digest = TextDigest::default().bytes(&[u8::from(self.root_is_input)]);
        let texts = self.properties.iter().flat_map(|property| [&property.name, &property.value]);
        RequirementsId(texts.fold(digest, |digest, text| digest.text(text)).id())
    }
}

/// The id of no requirements.
const NONE: &str = "any";

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, RequestedProperty { name, value }) in self.properties.iter().enumerate() {
            write!(f, "{}{name} = {value:?}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Id of equal [`Requirements`]: `any` for none, otherwise 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct RequirementsId(String);

impl RequirementsId {
    /// The id of no requirements.
    pub fn none() -> Self {
        Self(NONE.to_owned())
    }

    /// The id as text, for keys.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RequirementsId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_text_digest(text) || text == NONE {
            return Ok(Self(text.to_owned()));
        }
        Err(ParseIdError::new("requirements id", text, "expected `any` or 32 hexadecimal digits"))
    }
}

impl<'de> Deserialize<'de> for RequirementsId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for RequirementsId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_requirements_have_one_id_in_any_order() {
        let one = Requirements::of([("a", "1"), ("b", "2")]);
        assert_eq!(one.id(), Requirements::of([("b", "2"), ("a", "1"), ("a", "1")]).id());
        assert_eq!(one.id().as_str().len(), 32);
        assert_eq!(Requirements::default().id().as_str(), "any");
        assert_eq!(one.to_string(), r#"a = "1", b = "2""#);
    }

    #[test]
    fn different_requirements_have_different_ids() {
        let root = Requirements { root_is_input: true, ..Requirements::of([("a", "1")]) };
        let all = [
            Requirements::default(),
            Requirements { root_is_input: true, ..Requirements::default() },
            Requirements::of([("a", "1")]),
            root,
            Requirements::of([("a1", "")]),
            Requirements::of([("", "a1")]),
            Requirements::of([("a", "1"), ("a", "2")]),
        ];
        let ids: BTreeSet<RequirementsId> = all.iter().map(Requirements::id).collect();
        assert_eq!(ids.len(), all.len());
    }
}
