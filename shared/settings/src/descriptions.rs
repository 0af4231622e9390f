//! Descriptions of the settings, for people: the doc comments of [`Settings`].

use serde::Serialize;
use serde_json::Value;

use crate::{Settings, SettingsError};

/// The source text that declares the settings.
const SOURCE: &str = include_str!("lib.rs");

/// A setting with its description.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescribedSetting {
    pub name: &'static str,
    pub description: String,
    pub value: Value,
    pub default: Value,
}

impl Settings {
    /// All settings in the order of their declaration. Fails for a path that is not UTF-8.
    pub fn described(&self) -> Result<Vec<DescribedSetting>, SettingsError> {
        let json = |settings: &Self| serde_json::to_value(settings).map_err(SettingsError::NotText);
        let (values, defaults) = (json(self)?, json(&Self::default())?);
        let of = |all: &Value, name: &str| all.get(name).cloned().unwrap_or_default();
        let described = |(name, description)| DescribedSetting {
            name,
            description,
            value: of(&values, name),
            default: of(&defaults, name),
        };
        Ok(descriptions().into_iter().map(described).collect())
    }
}

/// The name and the doc comment of each field of [`Settings`].
fn descriptions() -> Vec<(&'static str, String)> {
    let body = SOURCE.split_once("pub struct Settings {").map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or("", |(body, _)| body);
    let (mut found, mut lines) = (Vec::new(), Vec::new());
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            lines.push(text.trim());
        } else if let Some((name, _)) = line.strip_prefix("pub ").and_then(|field| field.split_once(": ")) {
            found.push((name, lines.join(" ")));
            lines.clear();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, os::unix::ffi::OsStrExt as _};

    use super::*;

    #[test]
    fn every_setting_is_described() {
        let settings = Settings { attempts: 7, ..Settings::default() };
        let described = settings.described().unwrap();
        let names: BTreeSet<&str> = described.iter().map(|it| it.name).collect();
        let json = serde_json::to_value(&settings).unwrap();
        let known: BTreeSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, known);
        assert!(described.iter().all(|it| it.description.len() > 10));
        let attempts = described.iter().find(|it| it.name == "attempts").unwrap();
        assert_eq!((&attempts.value, &attempts.default), (&7.into(), &3.into()));
    }

    #[test]
    fn a_path_that_is_not_text_is_an_error() {
        let data = std::ffi::OsStr::from_bytes(b"/tmp/\xff").into();
        let settings = Settings { data, ..Settings::default() };
        assert!(matches!(settings.described(), Err(SettingsError::NotText(_))));
    }
}
