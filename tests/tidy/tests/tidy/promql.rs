//! The names in an expression of `PromQL`. Whether it is valid is checked by promtool (`make check-rules`).

use std::collections::BTreeSet;

/// What an expression reads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// Each series that it selects: the name of the metric, and the labels that restrict the selection.
    pub(crate) series: Vec<(String, Vec<String>)>,
    /// The labels by which it groups or joins.
    pub(crate) grouped_by: BTreeSet<String>,
}

/// Operators before a list of labels.
const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Other words that are not metrics, unless they stand before a parenthesis.
const WORDS: [&str; 8] = ["and", "or", "unless", "offset", "bool", "inf", "nan", "atan2"];
/// Aggregations may have their grouping between the name and the parenthesis.
const AGGREGATIONS: [&str; 11] = [
    "avg",
    "bottomk",
    "count",
    "count_values",
    "group",
    "max",
    "min",
    "quantile",
    "stddev",
    "stdvar",
    "topk",
];

/// The names in an expression.
pub(crate) fn names(expression: &str) -> Names {
    let mut found = Names::default();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        if matches!(first, '"' | '\'' | '`') {
            rest = after_string(rest, first);
        } else if first == '[' {
            rest = after(rest, ']');
        } else if first.is_ascii_digit() {
            // Also a duration, or a number with an exponent.
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
        } else if is_of_name(first) {
            let (word, behind) = split_name(rest);
            rest = behind.trim_start();
            if GROUPINGS.contains(&word) {
                let labels;
                (labels, rest) = label_list(rest);
                found.grouped_by.extend(labels);
            } else if !is_word(word) && !rest.starts_with('(') {
                let labels;
                (labels, rest) = matchers(rest);
                found.series.push((word.to_owned(), labels));
            }
        } else {
            rest = rest.strip_prefix(first).unwrap_or_default();
        }
    }
    found
}

fn is_word(word: &str) -> bool {
    WORDS.contains(&word) || AGGREGATIONS.contains(&word) || word == "sum"
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn split_name(text: &str) -> (&str, &str) {
    let rest = text.trim_start_matches(is_of_name);
    (text.strip_suffix(rest).unwrap_or_default(), rest)
}

fn after(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

/// The text after a string that begins and ends with `quote`.
fn after_string(text: &str, quote: char) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote != '`' => escaped = true,
            c if c == quote => return text.get(at + 1..).unwrap_or_default(),
            _ => {}
        }
    }
    ""
}

/// The labels in `(a, b)`, and the text behind; a grouping may have no list.
fn label_list(text: &str) -> (Vec<String>, &str) {
    let Some((list, rest)) = text.strip_prefix('(').and_then(|text| text.split_once(')')) else {
        return (Vec::new(), text);
    };
    let labels = list.split(',').map(str::trim).filter(|label| !label.is_empty());
    (labels.map(ToOwned::to_owned).collect(), rest)
}

/// The labels in `{a="x",b=~"y"}`, and the text behind.
fn matchers(text: &str) -> (Vec<String>, &str) {
    let Some(mut rest) = text.strip_prefix('{') else { return (Vec::new(), text) };
    let mut labels = Vec::new();
    while let Some(first) = rest.chars().next() {
        if first == '}' {
            return (labels, rest.strip_prefix('}').unwrap_or_default());
        } else if matches!(first, '"' | '\'' | '`') {
            rest = after_string(rest, first);
        } else if is_of_name(first) {
            let (label, behind) = split_name(rest);
            labels.push(label.to_owned());
            rest = behind;
        } else {
            rest = rest.strip_prefix(first).unwrap_or_default();
        }
    }
    (labels, rest)
}

#[test]
fn names_are_found_and_only_names() {
    let found = names(
        r#"histogram_quantile(0.99, sum by (le, call) (rate(a_bucket{x=~"b|c{d}",y!="\"e"}[5m])))
           / on() group_left (host) (up{job="x"} > 1e3 offset 1d) and ns:rule:rate5m or vector(1)
           unless topk(10, f) < 0.5 * quantile_over_time(0.5, g[$__range])"#,
    );
    let series: Vec<(&str, String)> =
        found.series.iter().map(|(name, labels)| (name.as_str(), labels.join(","))).collect();
    let expected = [("a_bucket", "x,y"), ("up", "job"), ("ns:rule:rate5m", ""), ("f", ""), ("g", "")];
    assert_eq!(series, expected.map(|(name, labels)| (name, labels.to_owned())));
    assert_eq!(found.grouped_by, ["call", "host", "le"].map(ToOwned::to_owned).into());
}
