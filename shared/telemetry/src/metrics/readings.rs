//! Gauges that one source reports together, and whose series end when the source no longer has them.

use std::collections::HashSet;

use super::{Gauge, Label, Labels, clear, set};

/// Values of gauges, read at one time.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Readings(Vec<(Gauge, Labels, i64)>);

impl Readings {
    /// Adds the value of a gauge. Values that no gauge can hold become the largest one.
    pub fn add(&mut self, gauge: Gauge, labels: &[(Label, &str)], value: impl TryInto<i64>) {
        let labels = labels.iter().map(|(label, value)| (*label, (*value).to_owned())).collect();
        self.0.push((gauge, labels, value.try_into().unwrap_or(i64::MAX)));
    }
}

/// The series that one source reported last. Other series of the same gauges stay untouched.
#[derive(Debug, Default)]
pub struct Shown(HashSet<(Gauge, Labels)>);

impl Shown {
    /// Sets the gauges to `readings`, and removes series of this source that have no reading any more.
    pub fn replace(&mut self, readings: Readings) {
        let mut shown = HashSet::with_capacity(readings.0.len());
        for (gauge, labels, value) in readings.0 {
            let given: Vec<(Label, &str)> =
                labels.iter().map(|(label, text)| (*label, text.as_str())).collect();
            set(gauge, &given, value);
            shown.insert((gauge, labels));
        }
        for (gauge, labels) in self.0.difference(&shown) {
            clear(*gauge, labels);
        }
        self.0 = shown;
    }
}
