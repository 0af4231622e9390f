//! Names of environments, and what an action or build asks for.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Group, ParseIdError};

const NAME_MAX: usize = 64;

/// Name of an environment: `NAME` for all groups, or `GROUP/NAME` for one. NAME has 1 to 64 lower-case letters, digits, and single
/// `.`, `_` or `-` between them, as repositories of registries do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvironmentName {
    group: Option<Group>,
    name: String,
}

impl EnvironmentName {
    /// The group that has it; `None` if all have.
    pub fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    /// The name inside its group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The environments that `name` means for a group: its own one, then that of all groups.
    pub fn candidates(group: &Group, name: &str) -> Option<[Self; 2]> {
        let shared: Self = name.parse().ok().filter(|found: &Self| found.group.is_none())?;
        Some([Self { group: Some(group.clone()), ..shared.clone() }, shared])
    }
}

impl fmt::Display for EnvironmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{group}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl FromStr for EnvironmentName {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (group, name) = match text.split_once('/') {
            Some((group, name)) => (Some(group.parse()?), name),
            None => (None, text),
        };
        if name.len() > NAME_MAX || !is_name(name) {
            let wanted = "expected NAME or GROUP/NAME; NAME has 1 to 64 lower-case letters, digits, and single dots, \
                          hyphens and underscores between them";
            return Err(ParseIdError::new("environment", text, wanted));
        }
        Ok(Self { group, name: name.to_owned() })
    }
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.split(['.', '_', '-']).all(|part| !part.is_empty() && part.bytes().all(is_plain))
}

impl Serialize for EnvironmentName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EnvironmentName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for EnvironmentName {
    fn schema_name() -> Cow<'static, str> {
        "EnvironmentName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": r"^([A-Za-z0-9_-]{1,64}/)?[a-z0-9]+([._-][a-z0-9]+)*$",
            "description": "Name of an environment: `NAME` for all groups, or `GROUP/NAME` for one."
        })
    }
}

/// What an action or build asks for by the property `env`: a name of its group or of all, and perhaps a version, written `NAME` or
/// `NAME@VERSION` with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskedEnvironment<'a> {
    /// The name inside the group.
    pub name: &'a str,
    /// The number after `@`.
    pub version: Option<u32>,
}

impl<'a> AskedEnvironment<'a> {
    /// Parses a value of the property; `None` if it cannot be the name of an environment.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (name, version) = match text.split_once('@') {
            Some((name, number)) => (name, Some(number.parse().ok()?)),
            None => (text, None),
        };
        Some(Self { name, version }).filter(|asked| !asked.name.is_empty() && !asked.name.contains('/'))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_those_that_registries_have() {
        for good in ["gcc", "gcc-11.2", "courses/java_17", "Team-A/x"] {
            assert_eq!(good.parse::<EnvironmentName>().unwrap().to_string(), good);
        }
        let long = "a".repeat(65);
        for bad in ["", "GCC", "a/b/c", "-a", "a..b", "a@1", "/a", "a/", "a b", long.as_str()] {
            assert!(bad.parse::<EnvironmentName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_group_has_its_own_and_those_of_all() {
        let names = |name| EnvironmentName::candidates(&"g".parse().unwrap(), name);
        assert_eq!(names("gcc").unwrap().map(|name| name.to_string()), ["g/gcc", "gcc"]);
        assert_eq!(names("h/gcc"), None);
    }

    proptest! {
        #[test]
        fn what_is_asked_for_has_a_name_and_perhaps_a_number(name in "[a-z]{1,9}", version in any::<u32>()) {
            let text = format!("{name}@{version}");
            let asked = AskedEnvironment::parse(&text).unwrap();
            prop_assert_eq!((asked.name, asked.version), (name.as_str(), Some(version)));
            prop_assert_eq!(AskedEnvironment::parse(&name).unwrap().version, None);
            let words = format!("{name}@x");
            prop_assert!(AskedEnvironment::parse(&words).is_none());
        }
    }
}
