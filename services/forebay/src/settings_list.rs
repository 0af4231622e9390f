//! `forebay settings`: lists all settings.

use std::process::ExitCode;

use command_line::{failure::Failure, globals::Globals, stdout};
use serde_json::Value;
use settings::{DescribedSetting, Settings};

/// Prints all settings with the values that apply here, in the form of a settings file.
pub(crate) fn run(globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let described = settings.described()?;
    if globals.json {
        for setting in &described {
            stdout::json(setting)?;
        }
    } else {
        let texts: Vec<String> = described.iter().map(text).collect();
        stdout::line(&texts.join("\n\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(setting: &DescribedSetting) -> String {
    let DescribedSetting { name, description, value, default } = setting;
    let is_set = value != default;
    let default = if is_set { format!("# default: {}\n", toml(default)) } else { String::new() };
    // A setting without a value is a comment: TOML has no null.
    let mark = if value.is_null() { "# " } else { "" };
    format!("# {description}\n{default}{mark}{name} = {}", toml(value))
}

/// A value in the syntax of TOML, in one line.
fn toml(value: &Value) -> String {
    match value {
        Value::Null => "(none)".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{} = {}", quoted(name), toml(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A string or quoted key of TOML. The escapes of JSON are valid in TOML, which also requires one for DEL.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{DescribedSetting, text, toml};

    #[test]
    fn a_setting_is_a_line_of_a_settings_file() {
        let setting = |value, default| {
            text(&DescribedSetting { name: "attempts", description: "Tries.".to_owned(), value, default })
        };
        assert_eq!(setting(json!(3), json!(3)), "# Tries.\nattempts = 3");
        assert_eq!(setting(json!(4), json!(3)), "# Tries.\n# default: 3\nattempts = 4");
        assert_eq!(setting(json!(null), json!(null)), "# Tries.\n# attempts = (none)");
    }

    #[test]
    fn values_are_toml() {
        let value = json!({"gpu": ["tag:\"a\"", 1.5, true], "x86": []});
        assert_eq!(toml(&value), r#"{ "gpu" = ["tag:\"a\"", 1.5, true], "x86" = [] }"#);
        assert_eq!(toml(&json!({})), "{}");
        let escaped = json!({"a'\u{7f}": "\u{1}\u{7f}\n\\"});
        assert_eq!(toml(&escaped), r#"{ "a'\u007F" = "\u0001\u007F\n\\" }"#);
    }
}
