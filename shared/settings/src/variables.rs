//! Environment variables that look like settings but are not.

use invariant::{Present as _, impossible};
use serde_json::Value;

use crate::Settings;

/// Variables that are read outside the settings, or set for builds.
const OTHERS: [&str; 18] = [
    "LOG",
    "LISTEN_FILE",
    "CRASH_AT",
    "NATS_SERVER",
    "REDIS_SERVER",
    "NATS_SYNC",
    "GRPC",
    "BUILD",
    "BUILD_ID",
    "GROUP",
    "PRIORITY",
    "ATTEMPT",
    "WORKSPACE",
    "LONG",
    "KEEP",
    "WAIT",
    "CHAOS",
    "E2E",
];
const PREFIX: &str = "FOREBAY_";

/// Returns a message for each variable that has the prefix of settings but is not one, with the closest setting name.
pub fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let Ok(Value::Object(settings)) = serde_json::to_value(Settings::default()) else {
        impossible!("the default settings are not a JSON object");
        return Vec::new();
    };
    let known: Vec<String> = settings.keys().map(|name| name.to_uppercase()).collect();
    let mut unknown: Vec<String> = names
        .filter_map(|name| name.strip_prefix(PREFIX).map(str::to_owned))
        .filter(|name| !known.contains(name) && !OTHERS.contains(&name.as_str()))
        .filter(|name| !name.starts_with("CHAOS_"))
        .map(|name| {
            let near = known.iter().map(|known| (distance(&name, known), known)).min();
            let hint = near.filter(|(steps, _)| *steps <= NEAR);
            let hint = hint.map(|(_, known)| format!("; did you mean {PREFIX}{known}?")).unwrap_or_default();
            format!("{PREFIX}{name} is not a setting and has no effect{hint}")
        })
        .collect();
    unknown.sort();
    unknown
}

/// Maximum edit distance of a suggested name.
const NEAR: usize = 3;

/// The edit distance: how many characters must be inserted, deleted or replaced to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (done, from) in a.chars().enumerate() {
        let mut next = vec![done + 1];
        for ((to, above), diagonal) in b.iter().zip(row.iter().skip(1)).zip(&row) {
            let left = next.last().copied().present("the last entry of a row");
            next.push((diagonal + usize::from(from != *to)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().present("the last entry of a row")
}

#[cfg(test)]
mod tests {
    use super::{distance, unknown_variables};

    #[test]
    fn a_slip_is_named_with_what_was_meant() {
        let names = ["FOREBAY_WORKSPACEZ", "FOREBAY_WORKSPACES", "FOREBAY_LOG", "PATH", "FOREBAY_QQQQQQQQ"];
        assert_eq!(
            unknown_variables(names.into_iter().map(str::to_owned)),
            [
                "FOREBAY_QQQQQQQQ is not a setting and has no effect",
                "FOREBAY_WORKSPACEZ is not a setting and has no effect; did you mean FOREBAY_WORKSPACES?",
            ]
        );
    }

    #[test]
    fn distances() {
        assert_eq!([distance("", "abc"), distance("kitten", "sitting"), distance("x", "x")], [3, 3, 0]);
    }
}
