//! Figures of a benchmark.

use serde_json::{Map, Value};

use crate::statistics::Percentiles;

/// Figures of a benchmark: lines of text, and the fields of a JSON object.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) lines: Vec<String>,
    pub(crate) fields: Map<String, Value>,
}

impl Figures {
    /// Adds a field without a line of text.
    pub(crate) fn field(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.fields.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a line of text without a field.
    pub(crate) fn line(&mut self, name: &str, value: f64, unit: &str) -> &mut Self {
        let decimals = if value < 10.0 { 2 } else { 0 };
        self.lines.push(format!("{name:<46} {value:>10.decimals$} {unit}"));
        self
    }

    /// Adds a field, and a line of text if the value is a number.
    pub(crate) fn figure(&mut self, key: &str, name: &str, value: impl Into<Value>, unit: &str) -> &mut Self {
        let value = value.into();
        match value.as_f64() {
            Some(number) => drop(self.line(name, number, unit)),
            None => self.lines.push(format!("{name:<46} {:>10}", "-")),
        }
        self.field(key, value)
    }

    /// Adds a field, and a line of text for each percentile.
    pub(crate) fn percentiles(&mut self, key: &str, name: &str, of: Percentiles, unit: &str) -> &mut Self {
        self.line(&format!("{name}, p50"), of.p50, unit).line(&format!("{name}, p99"), of.p99, unit);
        self.field(key, of)
    }

    /// Adds the lines of `part`, and its fields as an object.
    pub(crate) fn part(&mut self, key: &str, part: Self) -> &mut Self {
        self.lines.extend(part.lines);
        self.field(key, part.fields)
    }

    /// Adds the lines and the fields of `more`.
    pub(crate) fn append(&mut self, more: Self) -> &mut Self {
        self.lines.extend(more.lines);
        self.fields.extend(more.fields);
        self
    }
}
