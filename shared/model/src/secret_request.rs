//! Secrets that a build asks for, by name. Their values are on workers only: no message contains one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Group, ParseIdError, ids::token};

token!(
    /// Name of a secret inside its group: 1 to 64 letters, digits, `-` or `_`.
    SecretName,
    "secret name"
);

/// Beginning of the names of properties by which workers offer secrets; the group follows.
pub const SECRETS_PROPERTY: &str = "secrets/";
/// Maximum number of secrets of a build.
pub const SECRETS_MAX: usize = 32;

/// The property by which a worker offers the secrets of a group: its values are their names.
pub fn secrets_property(group: &Group) -> String {
    format!("{SECRETS_PROPERTY}{group}")
}

/// A secret that a build gets when its command starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretRequest {
    /// Name of the secret, among those of the build's group.
    pub name: SecretName,
    /// Environment variable of the command that has the value. Default: a file of this name in the folder that
    /// `FOREBAY_SECRETS_DIR` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable: Option<SecretVariable>,
}

impl fmt::Display for SecretRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variable {
            Some(variable) => write!(f, "{}={variable}", self.name),
            None => self.name.fmt(f),
        }
    }
}

impl FromStr for SecretRequest {
    type Err = ParseIdError;

    /// Parses `NAME` or `NAME=VARIABLE`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            None => Ok(Self { name: text.parse()?, variable: None }),
            Some((name, variable)) => Ok(Self { name: name.parse()?, variable: Some(variable.parse()?) }),
        }
    }
}

/// Environment variable that has the value of a secret: 1 to 64 letters, digits or `_`, no digit first, and none
/// that the farm sets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretVariable(#[schemars(regex(pattern = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"))] String);

/// Variables that the farm sets, besides those that begin with `FOREBAY_`.
const RESERVED: [&str; 8] =
    ["GIT_TERMINAL_PROMPT", "HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "TRACEPARENT", "USER"];

impl SecretVariable {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SecretVariable {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let has_shape = (1..=64).contains(&text.len())
            && text.bytes().all(is_good)
            && !text.starts_with(|first: char| first.is_ascii_digit());
        if !has_shape {
            let wanted = "expected 1 to 64 letters, digits or '_', and no digit first";
            return Err(ParseIdError::new("variable of a secret", text, wanted));
        }
        if text.starts_with("FOREBAY_") || RESERVED.contains(&text) {
            return Err(ParseIdError::new("variable of a secret", text, "the farm sets it: choose another"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for SecretVariable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why the secrets of a request are not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecrets {
    #[error("{count} secrets: expected at most {SECRETS_MAX}")]
    TooMany { count: usize },
    #[error("the secret {0} is asked for as a file twice")]
    SameFile(SecretName),
    #[error("two values for the variable {0}: expected one secret, or an entry of env")]
    SameVariable(SecretVariable),
}

impl SecretRequest {
    /// Checks the secrets of a build whose request sets the variables `env`.
    pub fn check_all(secrets: &[Self], env: &BTreeMap<String, String>) -> Result<(), InvalidSecrets> {
        if secrets.len() > SECRETS_MAX {
            return Err(InvalidSecrets::TooMany { count: secrets.len() });
        }
        let (mut files, mut variables) = (BTreeSet::new(), BTreeSet::new());
        for Self { name, variable } in secrets {
            match variable {
                None if !files.insert(name) => return Err(InvalidSecrets::SameFile(name.clone())),
                Some(variable) if env.contains_key(variable.as_str()) || !variables.insert(variable) => {
                    return Err(InvalidSecrets::SameVariable(variable.clone()));
                }
                None | Some(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(texts: &[&str]) -> Vec<SecretRequest> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_secret_is_a_file_or_a_variable() {
        for (text, json) in [
            ("npm-token", r#"{"name":"npm-token"}"#),
            ("npm-token=NPM_TOKEN", r#"{"name":"npm-token","variable":"NPM_TOKEN"}"#),
        ] {
            let secret: SecretRequest = text.parse().unwrap();
            assert_eq!(
                (serde_json::to_string(&secret).unwrap(), secret.to_string()),
                (json.into(), text.into())
            );
            assert_eq!(serde_json::from_str::<SecretRequest>(json).unwrap(), secret);
        }
        let long = "x".repeat(65);
        for bad in
            ["", "=X", "..", "a/b", "a.b", long.as_str(), "a=", "a=1X", "a=X Y", "a=PATH", "a=FOREBAY_X"]
        {
            assert!(bad.parse::<SecretRequest>().is_err(), "{bad}");
        }
        let unknown = serde_json::from_str::<SecretRequest>(r#"{"name":"a","value":"x"}"#);
        assert!(unknown.unwrap_err().to_string().contains("value"));
    }

    #[test]
    fn contradictions_are_refused() {
        let env: BTreeMap<String, String> = [("A".to_owned(), "b".to_owned())].into();
        let check = |texts: &[&str]| SecretRequest::check_all(&parsed(texts), &env);
        assert_eq!(check(&["a", "a=X", "a=Y", "b=Z"]), Ok(()));
        assert_eq!(check(&["a", "a"]), Err(InvalidSecrets::SameFile("a".parse().unwrap())));
        for twice in [&["a=X", "b=X"][..], &["a=A"]] {
            assert!(matches!(check(twice), Err(InvalidSecrets::SameVariable(_))), "{twice:?}");
        }
        let names: Vec<String> = (0..=SECRETS_MAX).map(|number| format!("s{number}")).collect();
        let many: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(check(&many), Err(InvalidSecrets::TooMany { count: SECRETS_MAX + 1 }));
        assert_eq!(check(&many[1..]), Ok(()));
    }
}
